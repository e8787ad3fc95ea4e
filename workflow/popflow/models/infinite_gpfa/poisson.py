"""Poisson counts with a log link: the exact expectation of the rate, and two approximations of it.

Shapes as in `likelihoods`.
"""

import torch
from torch import Tensor

from popflow.models.infinite_gpfa import counts
from popflow.models.infinite_gpfa.likelihoods import Influence
from popflow.models.infinite_gpfa.moments import gated_mean, gated_variance, log_rate_moments

LARGEST_LOG_RATE = 50.0
#: Products over all factors must stay below the largest float.
LARGEST_LOG_PRODUCT = 600.0
HALVINGS = 8


class Poisson:
    """y ~ Poisson(exposure · exp(h)).

    E[exp(h)] = exp(b_n) Π_d (1 - τ + τ exp(C m + C² v / 2)), exact under the factorised posterior.
    The expected counts are kept, and a factor is divided out and multiplied in again.

    Parameters
    ----------
    y, observed : (T, N) tensor
        Counts; `observed` is 1 where an entry is used.
    exposure : (T,) tensor
        Seconds.
    chunk : int
        Bins per pass.
    """

    exact_sites = False
    exact_masks = True

    def __init__(self, y: Tensor, observed: Tensor, exposure: Tensor, chunk: int = 4096):
        self.observed, self.chunk = observed.bool(), chunk
        # Counts are whole numbers, exact in half the memory.
        self.y = torch.where(self.observed, y, torch.zeros((), dtype=y.dtype)).float()
        self.log_exposure = torch.log(exposure.double().clamp(min=1e-12))
        self.constant = sum(float(torch.lgamma(self.y[r].double() + 1).sum()) for r in self._rows())

    def _rows(self):
        for start in range(0, len(self.observed), self.chunk):
            yield slice(start, min(start + self.chunk, len(self.observed)))

    def parameters(self) -> dict[str, Tensor]:
        """Nothing is learned beside loadings and offsets."""
        return {}

    def start(self, loadings: Tensor, offset: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> None:
        """Compute the expected counts, (T, N); 0 where nothing is observed."""
        self.limit = min(LARGEST_LOG_RATE, LARGEST_LOG_PRODUCT / max(loadings.shape[1], 1))
        counts.use_threads(self.y.numel(), torch.get_num_threads())
        if not hasattr(self, "rate"):
            self.rate = torch.empty(self.y.shape, dtype=torch.float64)
        moments = [x.T.contiguous() for x in (tau, m, v)]
        arrays = (self.rate, self.observed, offset, self.log_exposure, loadings, *moments)
        counts.expect(*_numpy(*arrays), self.limit)

    def take_out(self, c: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> Influence:
        """Divide a factor out, and tell how the rest acts on it: w = -2 dL/dv, l = dL/dm + w m.

        Parameters
        ----------
        c : (N,) tensor
        tau, m, v : (T,) tensor
        """
        sums = [torch.empty_like(m) for _ in range(5)]
        arrays = _numpy(self.rate, self.y, c.contiguous(), tau, m, v)
        counts.take_out(*arrays, self.limit, *_numpy(*sums))
        self.linear, self.rest, tilted, first, second = sums
        w, slope = tau * second, tau * (self.linear - first)
        evidence = m * self.linear - (tilted - self.rest)
        bound = float((tau * evidence - self.rest).sum())
        return Influence(w, slope + w * m, bound, evidence)

    def factor_bound(self, c: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> tuple[float, Tensor]:
        """Give the bound of a factor that is taken out, and its evidence, for other moments.

        The bound is linear in τ: its slope is the evidence.
        """
        tilted = torch.empty_like(m)
        arrays = _numpy(self.rate, c.contiguous(), m, v)
        counts.tilt_sums(*arrays, self.limit, tilted.numpy())
        evidence = m * self.linear - (tilted - self.rest)
        return float((tau * evidence - self.rest).sum()), evidence

    def put_back(self, c: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> None:
        """Multiply a factor in again."""
        counts.put_back(*_numpy(self.rate, c.contiguous(), tau, m, v), self.limit)

    def expected(
        self, loadings: Tensor, offset: Tensor, tau: Tensor, m: Tensor, v: Tensor
    ) -> float:
        """Give the expected log-likelihood over the observed entries, in nats."""
        self.start(loadings, offset, tau, m, v)
        exposed = sum(float(self.y[r].double().sum(1) @ self.log_exposure[r]) for r in self._rows())
        return float(self._per_unit(loadings, offset, tau, m).sum()) + exposed - self.constant

    def _per_unit(self, loadings, offset, tau, m) -> Tensor:
        """Σ_t y E[h] - E[counts] of every unit, with the present rates, (N,)."""
        total = torch.zeros_like(offset)
        for rows in self._rows():
            mean = gated_mean(tau[:, rows], m[:, rows]).T @ loadings.T + offset
            total += (self.y[rows] * mean - self.rate[rows]).sum(0)
        return total

    def residual(self) -> Tensor:
        """Give what a fresh fit leaves over, in units of h; 0 where unobserved, (T, N)."""
        scale = self.rate.sum(0) / self.observed.sum(0).clamp(min=1)
        return (self.y - self.rate) / (self.rate + 0.1 * scale + 0.05)

    def maximise(
        self, loadings: Tensor, offset: Tensor, tau: Tensor, m: Tensor, v: Tensor, variance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take a damped Newton step in (C_n, b_n) of every unit; the bound is concave in them.

        Parameters
        ----------
        variance : (D,) tensor
            Of the Gaussian prior of the loadings.
        """

        def value(c: Tensor, b: Tensor) -> Tensor:
            self.start(c, b, tau, m, v)
            return self._per_unit(c, b, tau, m) - 0.5 * (c**2 / variance).sum(1)

        before = value(loadings, offset)
        gradient, hessian = self._newton(loadings, offset, tau, m, v, variance)
        step = torch.linalg.solve(hessian, gradient[:, :, None])[:, :, 0].clamp(-2.0, 2.0)
        size = torch.ones(len(offset), 1, dtype=offset.dtype)
        for _ in range(HALVINGS):
            c, b = loadings + size * step[:, :-1], offset + (size * step)[:, -1]
            worse = ~(value(c, b) >= before - 1e-9 * before.abs())
            if not worse.any():
                return c, b
            size[worse] *= 0.5
        size[worse] = 0.0
        return loadings + size * step[:, :-1], offset + (size * step)[:, -1]

    def _newton(self, loadings, offset, tau, m, v, variance):
        """Gradient (N, D+1) and negative Hessian (N, D+1, D+1)."""
        n, d = loadings.shape
        gradient = torch.zeros(n, d + 1, dtype=offset.dtype)
        hessian = torch.zeros(n, d + 1, d + 1, dtype=offset.dtype)
        self._add_newton(gradient, hessian, loadings, tau, m, v)
        gradient[:, :d] -= loadings / variance
        hessian = hessian.tril() + hessian.tril(-1).transpose(1, 2)
        ridge = torch.cat([1 / variance, torch.tensor([1e-6], dtype=variance.dtype)])
        return gradient, hessian + torch.diag(ridge)

    def _add_newton(self, gradient, hessian, loadings, tau, m, v) -> None:
        moments = [x.T.contiguous() for x in (tau, m, v)]
        arrays = _numpy(self.rate, self.y, loadings.contiguous(), *moments)
        counts.newton(*arrays, self.limit, gradient.numpy(), hessian.numpy())

    @staticmethod
    def log_density(y: Tensor, h: Tensor, exposure: Tensor) -> Tensor:
        """ln p(y | h), elementwise; exposure broadcasts."""
        h = h.clamp(max=LARGEST_LOG_RATE)
        return y * (h + torch.log(exposure)) - exposure * torch.exp(h) - torch.lgamma(y + 1)


class MomentPoisson(Poisson):
    """The same with E[exp(h)] from mean and variance of h only: for comparison, not a bound.

    ``lognormal`` takes exp(μ + s/2), ``taylor2`` exp(μ) (1 + s/2). Both fall short of the exact
    expectation where masks are uncertain or the variance is large.
    """

    exact_masks = False
    expectation = "taylor2"

    def start(self, loadings, offset, tau, m, v) -> None:
        """Compute mean and variance of h with the exposure, and the expected counts."""
        self.mean, self.variance = log_rate_moments(loadings, offset, tau, m, v)
        self.mean += self.log_exposure[:, None]
        self.rate = self._expected(self.mean, self.variance)[0]

    def _expected(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Give expected counts, and their derivative by the variance."""
        base = torch.exp(mean.clamp(max=LARGEST_LOG_RATE)) * self.observed
        if self.expectation == "taylor2":
            return base * (1 + 0.5 * variance), 0.5 * base
        whole = base * torch.exp((0.5 * variance).clamp(max=LARGEST_LOG_RATE))
        return whole, 0.5 * whole

    def take_out(self, c, tau, m, v) -> Influence:
        """Take a factor's moments out; the evidence is the slope of the bound in τ."""
        counted, by_variance = self._expected(self.mean, self.variance)
        self.linear = self.y.double() @ c
        by_variance = by_variance @ c**2
        error = self.linear - counted @ c
        slope = tau * error - 2 * tau * (1 - tau) * m * by_variance
        w = 2 * tau * by_variance
        evidence = m * error - (v + m**2 - 2 * tau * m**2) * by_variance
        self._add(c, tau, m, v, -1.0)
        bound, _ = self.factor_bound(c, tau, m, v)
        return Influence(w, slope + w * m, bound, evidence)

    def _add(self, c, tau, m, v, sign: float) -> None:
        self.mean += sign * torch.outer(gated_mean(tau, m), c)
        self.variance += sign * torch.outer(gated_variance(tau, m, v), c**2)

    def factor_bound(self, c, tau, m, v) -> tuple[float, Tensor]:
        """Give the bound of a factor that is taken out, and its terms per bin, at other moments."""
        mean = self.mean + torch.outer(gated_mean(tau, m), c)
        variance = self.variance + torch.outer(gated_variance(tau, m, v), c**2)
        terms = tau * m * self.linear - self._expected(mean, variance)[0].sum(1)
        return float(terms.sum()), terms

    def put_back(self, c, tau, m, v) -> None:
        """Add a factor's moments again."""
        self._add(c, tau, m, v, 1.0)

    def _add_newton(self, gradient, hessian, loadings, tau, m, v) -> None:
        """Gauss-Newton in place of the exact curvature; the step is damped in either case."""
        d, mean, spread = len(m), gated_mean(tau, m).T, gated_variance(tau, m, v).T
        counted, by_variance = self._expected(self.mean, self.variance)
        error = self.y - counted
        gradient[:, :d] += error.T @ mean - 2 * loadings * (by_variance.T @ spread)
        gradient[:, d] += error.sum(0)
        hessian[:, :d, :d] += torch.einsum("tn,td,tk->ndk", counted, mean, mean)
        hessian[:, :d, :d] += torch.diag_embed(2 * by_variance.T @ spread)
        hessian[:, d, :d] += counted.T @ mean
        hessian[:, d, d] += counted.sum(0)


class LognormalPoisson(MomentPoisson):
    """`MomentPoisson` with exp(μ + s/2)."""

    expectation = "lognormal"


def _numpy(*tensors: Tensor):
    """Give views of tensors for `counts`."""
    return [tensor.numpy() for tensor in tensors]
