"""Gaussian-process posteriors of one factor given per-bin sites: dense and sparse.

A site is a precision w_t and a linear term l_t: the rest of the model acts on the factor as
exp(l_t f_t - w_t f_t² / 2). Kernels come from gpytorch, with variance 1: loadings hold the scale.
"""

from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from popflow.runtime.refusal import Refusal

JITTER, LARGEST_JITTER = 1e-6, 1e-3
FEW_BINS = 300
SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


def covariance(kernel: str, x: Tensor, y: Tensor, lengthscale: float, period: float = 1.0):
    """Evaluate a kernel of variance 1, (len(x), len(y)) float64; times in seconds.

    Parameters
    ----------
    kernel : str
        ``rbf``, ``matern12``, ``matern32``, ``matern52``, ``periodic``, or several joined by +,
        whose mean is taken.
    x, y : (K,) tensor
    lengthscale : float
        Seconds; of a periodic kernel in periods.
    period : float
        Seconds.
    """
    parts = [_one_kernel(name, x, y, lengthscale, period) for name in kernel.split("+")]
    return sum(parts) / len(parts)


def _one_kernel(name: str, x: Tensor, y: Tensor, lengthscale: float, period: float) -> Tensor:
    if name in SMOOTHNESS:
        # gpytorch takes the distance from squares and loses half of its digits near zero.
        a = (x[:, None] - y[None]).abs() * (2 * SMOOTHNESS[name]) ** 0.5 / lengthscale
        polynomial = {"matern12": 1.0, "matern32": 1 + a, "matern52": 1 + a + a**2 / 3}[name]
        return polynomial * torch.exp(-a)
    k = gpytorch.kernels.RBFKernel() if name == "rbf" else gpytorch.kernels.PeriodicKernel()
    k = k.double()
    k.lengthscale = lengthscale if name == "rbf" else lengthscale / period
    if name == "periodic":
        k.period_length = period
    with torch.no_grad():
        return k(x.reshape(-1, 1), y.reshape(-1, 1)).to_dense()


def cholesky(matrix: Tensor, name: str) -> tuple[Tensor, float]:
    """Factorise with the least jitter that works; give the factor and the jitter.

    Raises
    ------
    Refusal
        When the largest jitter does not help; `name` tells the factor and its length-scale.
    """
    scale, jitter = float(matrix.diagonal().mean()), JITTER
    identity = torch.eye(len(matrix), dtype=matrix.dtype)
    while jitter <= LARGEST_JITTER * 1.001:
        factor, failed = torch.linalg.cholesky_ex(matrix + jitter * scale * identity)
        if not failed and torch.isfinite(factor).all():
            return factor, jitter
        jitter *= 10
    fix = "use fewer inducing points or a longer bin, or a Matern kernel"
    raise Refusal(name, "its covariance is not positive definite", "a jitter up to 1e-3", fix)


@dataclass
class Posterior:
    """q(f) of one factor at the bins.

    Attributes
    ----------
    m, v : (T,) tensor
    kl : float
        KL of q from the prior, in nats.
    """

    m: Tensor
    v: Tensor
    kl: float


class SparseEngine:
    """Whitened inducing points per trial: u = chol(K) w, q(w) = N(μ, S).

    Parameters
    ----------
    times : list of (T_r,) tensor
        Bin centres of each trial in seconds.
    kernel : str
        See `covariance`.
    inducing : int
        Number of inducing points in all; shared out over trials by duration, on even grids.
    period : float
        Seconds, of a periodic kernel.
    """

    def __init__(self, times: list[Tensor], kernel: str, inducing: int, period: float = 1.0):
        self.times, self.kernel, self.period = times, kernel, period
        total = sum(len(t) for t in times)
        self.points = []
        for t in times:
            count = max(1, min(len(t), round(inducing * len(t) / total)))
            self.points.append(torch.linspace(float(t[0]), float(t[-1]), count, dtype=t.dtype))
        self._bases: dict[float, list[Tensor]] = {}

    def bases(self, lengthscale: float) -> list[Tensor]:
        """Give B = K_tξ chol(K_ξξ)^-T of each trial, (T_r, M_r); the last few are remembered."""
        if lengthscale not in self._bases:
            found = []
            for t, xi in zip(self.times, self.points, strict=True):
                k = covariance(self.kernel, xi, xi, lengthscale, self.period)
                factor, _ = cholesky(k, f"a factor of length-scale {lengthscale:.3g} s")
                cross = covariance(self.kernel, xi, t, lengthscale, self.period)
                found.append(torch.linalg.solve_triangular(factor, cross, upper=False).T)
            while len(self._bases) >= 12:
                self._bases.pop(next(iter(self._bases)))
            self._bases[lengthscale] = [b.contiguous() for b in found]
        return self._bases[lengthscale]

    def solve(self, lengthscale: float, w: Tensor, linear: Tensor) -> Posterior:
        """Give the posterior for sites: S = (I + Bᵀ diag(w) B)⁻¹, μ = S Bᵀ l.

        Parameters
        ----------
        lengthscale : float
        w, linear : (T,) tensor
            Of all trials, one after the other.
        """
        means, variances, kl, start = [], [], 0.0, 0
        for b in self.bases(lengthscale):
            stop = start + len(b)
            precision = b.T @ (w[start:stop, None] * b)
            precision.diagonal().add_(1.0)
            factor = torch.linalg.cholesky(precision)
            mu = torch.cholesky_solve((b.T @ linear[start:stop])[:, None], factor)[:, 0]
            half = torch.linalg.solve_triangular(factor, b.T, upper=False)
            means.append(b @ mu)
            variances.append((1 - (b**2).sum(1)).clamp(min=0) + (half**2).sum(0))
            trace = torch.linalg.solve_triangular(
                factor, torch.eye(len(mu), dtype=b.dtype), upper=False
            )
            log_det = 2 * factor.diagonal().log().sum()
            kl += 0.5 * float((trace**2).sum() + mu @ mu - len(mu) + log_det)
            start = stop
        return Posterior(torch.cat(means), torch.cat(variances), kl)


class DenseEngine(SparseEngine):
    """The exact posterior, with every bin an inducing point: the oracle, for small T."""

    def __init__(self, times: list[Tensor], kernel: str, inducing: int = 0, period: float = 1.0):
        super().__init__(times, kernel, sum(len(t) for t in times), period)
        self.points = [t.clone() for t in times]


def choose_engine(name: str, kernel: str, bins: int) -> str:
    """Choose an engine: the state space for a Matérn kernel, else dense for few bins, or sparse."""
    if name != "auto":
        return name
    if kernel in SMOOTHNESS:
        return "statespace"
    return "dense" if bins <= FEW_BINS else "sparse"


def make_engine(name: str, times: list[Tensor], kernel: str, inducing: int, period: float):
    """Make an engine by its name."""
    if name == "statespace":
        from popflow.models.infinite_gpfa.statespace import StateSpaceEngine

        return StateSpaceEngine(times, kernel)
    return {"sparse": SparseEngine, "dense": DenseEngine}[name](times, kernel, inducing, period)
