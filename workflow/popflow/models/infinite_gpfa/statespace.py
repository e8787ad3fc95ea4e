"""Matérn factors as Markov processes: Kalman filter and smoother, linear in the number of bins.

A Matérn process of half-integer smoothness is the first entry of a linear stochastic differential
equation with s = 1, 2 or 3 states (Hartikainen & Särkkä 2010). States are the derivatives divided
by powers of λ = sqrt(2ν)/ℓ, so that their stationary covariance does not depend on ℓ.
"""

import numba
import numpy as np
import torch
from torch import Tensor

from popflow.models.infinite_gpfa.engines import SMOOTHNESS, Posterior
from popflow.runtime.refusal import Refusal

#: Drift per unit of λ dt, and stationary covariance, by the number of states.
DRIFT = {
    1: [[-1.0]],
    2: [[0.0, 1.0], [-1.0, -2.0]],
    3: [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -3.0, -3.0]],
}
STATIONARY = {
    1: [[1.0]],
    2: [[1.0, 0.0], [0.0, 1.0]],
    3: [[1.0, 0.0, -1 / 3], [0.0, 1 / 3, 0.0], [-1 / 3, 0.0, 1.0]],
}
SAME_STEP = 1e-9


class StateSpaceEngine:
    """The exact posterior under a Matérn kernel, by one pass forward and one back.

    Trials are independent; a gap between bins is one long transition, and adds no bin.

    Parameters
    ----------
    times : list of (T_r,) tensor
        Bin centres of each trial in seconds.
    kernel : {"matern12", "matern32", "matern52"}
    """

    def __init__(self, times: list[Tensor], kernel: str):
        if kernel not in SMOOTHNESS:
            found, fix = f"the kernel {kernel}", "choose matern52, or engine: sparse"
            raise Refusal("engine statespace", found, ", ".join(SMOOTHNESS), fix)
        self.nu = SMOOTHNESS[kernel]
        self.states = int(self.nu + 0.5)
        steps = np.concatenate([np.concatenate([[-1.0], np.diff(t.numpy())]) for t in times])
        self.steps, self.index = _unique_steps(steps)

    def solve(self, lengthscale: float, w: Tensor, linear: Tensor) -> Posterior:
        """Give the posterior for sites exp(l f - w f² / 2); see `engines.SparseEngine.solve`."""
        rate = np.sqrt(2 * self.nu) / lengthscale
        stationary = np.array(STATIONARY[self.states])
        move, noise = _transitions(self.steps * rate, np.array(DRIFT[self.states]), stationary)
        m, v, log_z = smooth(move, noise, stationary, self.index, w.numpy(), linear.numpy())
        mean, variance = torch.from_numpy(m), torch.from_numpy(v)
        # log q/p = sites - log Z, so its mean under q is the divergence.
        kl = float((linear * mean - 0.5 * w * (mean**2 + variance)).sum()) - log_z
        return Posterior(mean, variance, kl)


def _unique_steps(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """List the different steps, and the place of each in the list; -1 where a trial starts."""
    index = np.full(len(steps), -1)
    inside = steps >= 0
    if not inside.any():
        return np.zeros(0), index
    usual = np.median(steps[inside])
    rounded = np.round(steps[inside] / (SAME_STEP * usual)).astype(np.int64)
    _, first, index[inside] = np.unique(rounded, return_index=True, return_inverse=True)
    return steps[inside][first], index


def _transitions(scaled: np.ndarray, drift: np.ndarray, stationary: np.ndarray):
    """Give exp(F dt) and the noise P - A P Aᵀ of every step, (K, s, s) each."""
    from scipy.linalg import expm

    move = np.array([expm(drift * step) for step in scaled]).reshape(-1, *drift.shape)
    noise = stationary - move @ stationary @ move.transpose(0, 2, 1)
    return move, 0.5 * (noise + noise.transpose(0, 2, 1))


@numba.njit(cache=True)
def smooth(move, noise, stationary, index, w, linear):
    """Filter forward, then go back by Bryson & Frazier's recursion, which inverts nothing.

    Parameters
    ----------
    move, noise : (K, s, s) array
        Transitions of the different steps.
    stationary : (s, s) array
    index : (T,) int array
        Step before each bin, -1 at the start of a trial.
    w, linear : (T,) array
        Sites.

    Returns
    -------
    m, v : (T,) array
    log_z : float
        ln ∫ p(f) Π exp(l f - w f² / 2) df.
    """
    bins, s = len(w), len(stationary)
    means, covariances = np.zeros((bins, s)), np.zeros((bins, s, s))
    x, p, product, log_z = np.zeros(s), np.zeros((s, s)), np.zeros((s, s)), 0.0
    for t in range(bins):
        if index[t] < 0:
            x[:], p[:] = 0.0, stationary
        else:
            _predict(x, p, move[index[t]], noise[index[t]], product)
        means[t], covariances[t] = x, p
        scale = 1.0 + w[t] * p[0, 0]
        quadratic = linear[t] ** 2 * p[0, 0] + 2 * linear[t] * x[0] - w[t] * x[0] ** 2
        log_z += -0.5 * np.log(scale) + 0.5 * quadratic / scale
        pull = (linear[t] - w[t] * x[0]) / scale
        for i in range(s):
            x[i] += covariances[t, i, 0] * pull
            for j in range(s):
                p[i, j] -= covariances[t, i, 0] * covariances[t, 0, j] * (w[t] / scale)
    m, v = np.zeros(bins), np.zeros(bins)
    rho, big = np.zeros(s), np.zeros((s, s))
    for t in range(bins - 1, -1, -1):
        _take_in(rho, big, means[t], covariances[t], w[t], linear[t], product)
        m[t], v[t] = means[t, 0], covariances[t, 0, 0]
        for i in range(s):
            m[t] += covariances[t, 0, i] * rho[i]
            for j in range(s):
                v[t] -= covariances[t, 0, i] * big[i, j] * covariances[t, j, 0]
        if index[t] < 0:
            rho[:], big[:] = 0.0, 0.0
        else:
            _pull_back(rho, big, move[index[t]], product)
    return m, v, log_z


@numba.njit(cache=True)
def _predict(x, p, a, q, product):
    """x <- A x and P <- A P Aᵀ + Q, in place."""
    s = len(x)
    for i in range(s):
        product[0, i] = 0.0
        for k in range(s):
            product[0, i] += a[i, k] * x[k]
    x[:] = product[0]
    for i in range(s):
        for j in range(s):
            product[i, j] = 0.0
            for k in range(s):
                product[i, j] += a[i, k] * p[k, j]
    for i in range(s):
        for j in range(s):
            p[i, j] = q[i, j]
            for k in range(s):
                p[i, j] += product[i, k] * a[j, k]


@numba.njit(cache=True)
def _take_in(rho, big, x, p, w, linear, product):
    """Go back over a site: ρ <- h r + Cᵀ ρ and Λ <- h g hᵀ + Cᵀ Λ C, with C = I - g P h hᵀ."""
    s, scale = len(rho), 1.0 + w * p[0, 0]
    gain, first, corner = w / scale, 0.0, 0.0
    for i in range(s):
        first += p[i, 0] * rho[i]
        product[0, i] = 0.0
        for j in range(s):
            product[0, i] += p[j, 0] * big[j, i]
        corner += product[0, i] * p[i, 0]
    rho[0] += (linear - w * x[0]) / scale - gain * first
    for i in range(s):
        big[0, i] -= gain * product[0, i]
        big[i, 0] -= gain * product[0, i]
    big[0, 0] += gain + gain * gain * corner


@numba.njit(cache=True)
def _pull_back(rho, big, a, product):
    """ρ <- Aᵀ ρ and Λ <- Aᵀ Λ A, in place."""
    s = len(rho)
    for i in range(s):
        product[0, i] = 0.0
        for k in range(s):
            product[0, i] += a[k, i] * rho[k]
    rho[:] = product[0]
    for i in range(s):
        for j in range(s):
            product[i, j] = 0.0
            for k in range(s):
                product[i, j] += a[k, i] * big[k, j]
    for i in range(s):
        for j in range(s):
            big[i, j] = 0.0
            for k in range(s):
                big[i, j] += product[i, k] * a[k, j]
