"""Observation models: expected log-likelihood and its closed-form coordinate updates.

Shapes: y, observed (T, N); loadings C (N, D); offset b (N,); tau, m, v (D, T). The exposure is the
bin width times the share of the bin that was recorded, in seconds, (T,).
"""

import logging

import torch
from torch import Tensor

from popflow.models.infinite_gpfa.moments import (
    gated_mean,
    gated_variance,
    log_gated_exponential,
    log_rate_moments,
)

log = logging.getLogger(__name__)

LARGEST_LOG_RATE = 50.0


class Poisson:
    """y ~ Poisson(exposure · exp(h)), with the exact expectation of the rate.

    E[exp(h)] = exp(b_n) Π_d (1 - τ + τ exp(C m + C² v / 2)).

    Parameters
    ----------
    y, observed : (T, N) tensor
        Counts; `observed` is 1 where an entry is used.
    exposure : (T,) tensor
    chunk : int
        Bins per pass where an array of (bins, neurons, factors) is needed.
    """

    exact_sites = False

    def __init__(self, y: Tensor, observed: Tensor, exposure: Tensor, chunk: int = 4096):
        self.y, self.observed, self.chunk = y, observed, chunk
        self.log_exposure = torch.log(exposure.clamp(min=1e-12))
        self.constant = float((observed * (torch.lgamma(y + 1))).sum())

    def start(self, loadings: Tensor, offset: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> None:
        """Compute the sum over factors of their log-expectations, (T, N)."""
        self.total = sum(
            self._term(loadings[:, d], tau[d], m[d], v[d]) for d in range(loadings.shape[1])
        )

    def _term(self, c: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> Tensor:
        eta = m[:, None] * c + 0.5 * v[:, None] * c**2
        return log_gated_exponential(tau[:, None], eta)

    def _log_rate(self, offset: Tensor, rows: slice = slice(None)) -> Tensor:
        log_rate = self.total[rows] + offset + self.log_exposure[rows, None]
        return log_rate.clamp(max=LARGEST_LOG_RATE)

    def without(self, c: Tensor, offset: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> Tensor:
        """Take a factor out of the sum; give the expected counts without it, (T, N)."""
        self.total = self.total - self._term(c, tau, m, v)
        return self.observed * torch.exp(self._log_rate(offset))

    def put_back(self, c: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> None:
        """Add a factor to the sum again."""
        self.total = self.total + self._term(c, tau, m, v)

    def sites(self, rest: Tensor, c: Tensor, tau: Tensor, m: Tensor, v: Tensor):
        """Give the sites of a factor: w = -2 dELL/dv and l = dELL/dm + w m.

        Parameters
        ----------
        rest : (T, N) tensor
            Of `without`.
        c : (N,) tensor
            Loadings of the factor.
        tau, m, v : (T,) tensor
        """
        eta = (m[:, None] * c + 0.5 * v[:, None] * c**2).clamp(max=LARGEST_LOG_RATE)
        tilted = rest * torch.exp(eta)
        slope = tau * ((self.observed * self.y) @ c - tilted @ c)
        w = tau * (tilted @ c**2)
        return w, slope + w * m

    def factor_bound(self, rest: Tensor, c: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> float:
        """Give the part of the expected log-likelihood that depends on one factor."""
        gate = torch.exp(self._term(c, tau, m, v).clamp(max=LARGEST_LOG_RATE))
        linear = (tau * m) @ ((self.observed * self.y) @ c)
        return float(linear - (rest * gate).sum())

    def mask_evidence(self, rest: Tensor, c: Tensor, m: Tensor, v: Tensor) -> Tensor:
        """Give the log-odds that the data add for z = 1, (T,); the bound is linear in τ."""
        eta = (m[:, None] * c + 0.5 * v[:, None] * c**2).clamp(max=LARGEST_LOG_RATE)
        return m * ((self.observed * self.y) @ c) - (rest * torch.expm1(eta)).sum(1)

    def expected(
        self, loadings: Tensor, offset: Tensor, tau: Tensor, m: Tensor, v: Tensor
    ) -> float:
        """Give the expected log-likelihood over the observed entries, in nats."""
        self.start(loadings, offset, tau, m, v)
        mean, _ = log_rate_moments(loadings, offset, tau, m, v)
        linear = (self.observed * self.y * (mean + self.log_exposure[:, None])).sum()
        return (
            float(linear - (self.observed * torch.exp(self._log_rate(offset))).sum())
            - self.constant
        )

    def maximise(self, loadings, offset, tau, m, v, prior_variance: float):
        """Take a damped Newton step in (C_n, b_n) of every neuron; the bound is concave in them."""
        before = self._per_neuron(loadings, offset, tau, m, v, prior_variance)
        gradient, hessian = self._newton(loadings, offset, tau, m, v, prior_variance)
        step = torch.linalg.solve(hessian, gradient[:, :, None])[:, :, 0].clamp(-2.0, 2.0)
        size = torch.ones(len(offset), 1, dtype=offset.dtype)
        for _ in range(8):
            new_c, new_b = loadings + size * step[:, :-1], offset + (size * step)[:, -1]
            after = self._per_neuron(new_c, new_b, tau, m, v, prior_variance)
            worse = ~(after >= before - 1e-9 * before.abs())
            if not worse.any():
                break
            size[worse] *= 0.5
        size[worse] = 0.0
        return loadings + size * step[:, :-1], offset + (size * step)[:, -1]

    def _per_neuron(self, loadings, offset, tau, m, v, prior_variance) -> Tensor:
        self.start(loadings, offset, tau, m, v)
        mean, _ = log_rate_moments(loadings, offset, tau, m, v)
        rate = torch.exp(self._log_rate(offset))
        fit = (self.observed * (self.y * mean - rate)).sum(0)
        return fit - 0.5 * (loadings**2).sum(1) / prior_variance

    def _newton(self, loadings, offset, tau, m, v, prior_variance):
        """Gradient (N, D+1) and negative Hessian (N, D+1, D+1), chunk by chunk."""
        n, d = loadings.shape
        gradient = torch.zeros(n, d + 1, dtype=offset.dtype)
        hessian = torch.zeros(n, d + 1, d + 1, dtype=offset.dtype)
        g = gated_mean(tau, m)
        for start in range(0, len(self.y), self.chunk):
            rows = slice(start, start + self.chunk)
            rate = self.observed[rows] * torch.exp(self._log_rate(offset, rows))
            gate, slope, curve = _tilted_moments(loadings, tau[:, rows], m[:, rows], v[:, rows])
            seen = self.observed[rows] * self.y[rows]
            gradient[:, :d] += seen.T @ g[:, rows].T - torch.einsum("tn,tnd->nd", rate, slope)
            gradient[:, d] += (seen - rate).sum(0)
            weighted = rate[:, :, None] * slope
            hessian[:, :d, :d] += torch.einsum("tnd,tnk->ndk", weighted, slope)
            extra = torch.einsum("tn,tnd->nd", rate, curve - slope**2)
            hessian[:, :d, :d] += torch.diag_embed(extra)
            hessian[:, :d, d] += weighted.sum(0)
            hessian[:, d, d] += rate.sum(0)
        hessian[:, d, :d] = hessian[:, :d, d]
        gradient[:, :d] -= loadings / prior_variance
        ridge = torch.full((d + 1,), 1 / prior_variance, dtype=offset.dtype)
        ridge[d] = 1e-6
        return gradient, hessian + torch.diag(ridge)

    def log_density(self, y: Tensor, h: Tensor, exposure: Tensor) -> Tensor:
        """ln p(y | h), elementwise; exposure broadcasts."""
        h = h.clamp(max=LARGEST_LOG_RATE)
        return y * (h + torch.log(exposure)) - exposure * torch.exp(h) - torch.lgamma(y + 1)


def _tilted_moments(loadings: Tensor, tau: Tensor, m: Tensor, v: Tensor):
    """Give G, d ln G / dC and G''/G of every factor, (bins, N, D) each."""
    c = loadings[None]
    mean, variance, on = m.T[:, None, :], v.T[:, None, :], tau.T[:, None, :]
    eta = c * mean + 0.5 * c**2 * variance
    gate = log_gated_exponential(on, eta)
    share = torch.exp((torch.log(on.clamp(min=1e-300)) + eta - gate).clamp(max=0.0))
    shifted = mean + c * variance
    return gate, share * shifted, share * (shifted**2 + variance)


class Gaussian:
    """y ~ N(h, ψ_n), with exact updates; for square-root counts or z-scored signals.

    Parameters
    ----------
    y, observed : (T, N) tensor
    exposure : (T,) tensor
        Not used.
    """

    exact_sites = True

    def __init__(self, y: Tensor, observed: Tensor, exposure: Tensor, chunk: int = 4096):
        self.y, self.observed = y, observed
        count = observed.sum(0).clamp(min=1)
        mean = (observed * y).sum(0) / count
        variance = (observed * (y - mean) ** 2).sum(0) / count
        # Without a floor, silent bins are explained by z = 0 and the noise runs to zero.
        self.floor = 0.05 * variance.clamp(min=1e-12)
        self.noise = variance.clamp(min=1e-12)

    def start(self, loadings, offset, tau, m, v) -> None:
        """Compute the mean of h, (T, N)."""
        self.mean = gated_mean(tau, m).T @ loadings.T + offset

    def without(self, c, offset, tau, m, v) -> Tensor:
        """Take a factor out of the mean; give the residual without it, (T, N)."""
        self.mean = self.mean - gated_mean(tau, m)[:, None] * c
        return self.y - self.mean

    def put_back(self, c, tau, m, v) -> None:
        """Add a factor to the mean again."""
        self.mean = self.mean + gated_mean(tau, m)[:, None] * c

    def sites(self, rest, c, tau, m, v):
        """w = τ Σ_n P C², l = τ Σ_n P C ρ; τ and not τ², since E[z²] = E[z]."""
        precision = self.observed / self.noise
        return tau * (precision @ c**2), tau * ((precision * rest) @ c)

    def factor_bound(self, rest, c, tau, m, v) -> float:
        """Give the part of the expected log-likelihood that depends on one factor."""
        precision = self.observed / self.noise
        linear = (tau * m) * ((precision * rest) @ c)
        return float((linear - 0.5 * tau * (m**2 + v) * (precision @ c**2)).sum())

    def mask_evidence(self, rest, c, m, v) -> Tensor:
        """Give the log-odds that the data add for z = 1, (T,)."""
        precision = self.observed / self.noise
        return m * ((precision * rest) @ c) - 0.5 * (m**2 + v) * (precision @ c**2)

    def expected(self, loadings, offset, tau, m, v) -> float:
        """Give the expected log-likelihood over the observed entries, in nats."""
        mean, variance = log_rate_moments(loadings, offset, tau, m, v)
        self.mean = mean
        error = ((self.y - mean) ** 2 + variance) / self.noise
        log_noise = torch.log(2 * torch.pi * self.noise)
        return float(-0.5 * (self.observed * (error + log_noise)).sum())

    def maximise(self, loadings, offset, tau, m, v, prior_variance: float):
        """Solve for (C_n, b_n) of every neuron, then for the noise variances."""
        g = gated_mean(tau, m)
        ones = torch.ones(1, g.shape[1], dtype=g.dtype)
        x = torch.cat([g, ones])
        spread = torch.cat([gated_variance(tau, m, v), torch.zeros_like(ones)])
        precision = self.observed / self.noise
        second = torch.einsum("tn,dt,kt->ndk", precision, x, x)
        second += torch.diag_embed(precision.T @ spread.T)
        ridge = torch.full((len(x),), 1 / prior_variance, dtype=g.dtype)
        ridge[-1] = 0.0
        first = (precision * self.y).T @ x.T
        solved = torch.linalg.solve(second + torch.diag(ridge), first[:, :, None])[:, :, 0]
        loadings, offset = solved[:, :-1], solved[:, -1]
        mean, variance = log_rate_moments(loadings, offset, tau, m, v)
        error = (self.observed * ((self.y - mean) ** 2 + variance)).sum(0)
        self.noise = torch.maximum(error / self.observed.sum(0).clamp(min=1), self.floor)
        self.mean = mean
        return loadings, offset

    def log_density(self, y, h, exposure) -> Tensor:
        """ln p(y | h), elementwise, with the noise of each neuron on the last axis."""
        return -0.5 * ((y - h) ** 2 / self.noise + torch.log(2 * torch.pi * self.noise))


LIKELIHOODS = {"poisson": Poisson, "gaussian": Gaussian}
