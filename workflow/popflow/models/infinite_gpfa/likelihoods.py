"""Observation models whose bound is quadratic in h: Gaussian, and by Pólya-Gamma variables negative
binomial and Bernoulli. `poisson` holds the Poisson models; all have the same methods.

Shapes: y, observed (T, N); loadings C (N, D); offset b (N,); tau, m, v (D, T). The exposure is the
bin width times the share of the bin that was recorded, in seconds, (T,). Arrays of (bins, units,
factors) are made for `chunk` bins at a time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from popflow.models.infinite_gpfa.moments import gated_mean, gated_variance, log_rate_moments

SMALLEST_NOISE = 0.05
SIZE_BOUNDS = (1e-2, 1e3)
SIZE_STEPS = (0.5, 0.8, 0.95, 1.05, 1.25, 2.0)


@dataclass
class Influence:
    """How the rest of a model acts on one factor.

    Attributes
    ----------
    w, linear : (T,) tensor
        Sites exp(l f - w f² / 2), at the optimum given the present posterior.
    bound : float
        The part of the expected log-likelihood that depends on the factor.
    evidence : (T,) tensor
        Log-odds that the data add for z = 1.
    """

    w: Tensor
    linear: Tensor
    bound: float
    evidence: Tensor


class Quadratic:
    """Expected log-likelihood -Σ P (h - target)² / 2 + constants, updated in closed form.

    Parameters
    ----------
    y, observed : (T, N) tensor
        `observed` is 1 where an entry is used; other entries of y are not looked at.
    exposure : (T,) tensor
        Seconds.
    chunk : int
        Bins per pass.
    """

    exact_sites = True
    exact_masks = True

    def __init__(self, y: Tensor, observed: Tensor, exposure: Tensor, chunk: int = 4096):
        self.observed, self.chunk = observed.bool(), chunk
        self.y = torch.where(self.observed, y, torch.zeros((), dtype=y.dtype))
        self.log_exposure = torch.log(exposure.clamp(min=1e-12))

    def parameters(self) -> dict[str, Tensor]:
        """Give what is learned beside loadings and offsets, by name, (N,) each."""
        return {}

    def _quadratic(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Give the precision P and P · target of some bins; both 0 where nothing is observed."""
        raise NotImplementedError

    def _rows(self):
        for start in range(0, len(self.y), self.chunk):
            yield slice(start, min(start + self.chunk, len(self.y)))

    def start(self, loadings: Tensor, offset: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> None:
        """Compute the mean of h, (T, N)."""
        self.mean = gated_mean(tau, m).T @ loadings.T + offset

    def take_out(self, c: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> Influence:
        """Take a factor out of the mean, and tell how the rest acts on it.

        w = τ Σ_n P C², l = τ Σ_n P C ρ with the residual ρ; τ and not τ², since E[z²] = E[z].

        Parameters
        ----------
        c : (N,) tensor
        tau, m, v : (T,) tensor
        """
        self.first, self.second = torch.empty_like(m), torch.empty_like(m)
        for rows in self._rows():
            self.mean[rows] -= (tau[rows] * m[rows])[:, None] * c
            precision, target = self._quadratic(rows)
            self.first[rows] = (target - precision * self.mean[rows]) @ c
            self.second[rows] = precision @ c**2
        bound, evidence = self.factor_bound(c, tau, m, v)
        return Influence(tau * self.second, tau * self.first, bound, evidence)

    def factor_bound(self, c: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> tuple[float, Tensor]:
        """Give the bound of a factor that is taken out, and its evidence, for other moments."""
        evidence = m * self.first - 0.5 * (m**2 + v) * self.second
        return float((tau * evidence).sum()), evidence

    def put_back(self, c: Tensor, tau: Tensor, m: Tensor, v: Tensor) -> None:
        """Add a factor to the mean again."""
        for rows in self._rows():
            self.mean[rows] += (tau[rows] * m[rows])[:, None] * c

    def residual(self) -> Tensor:
        """Give what a fresh fit leaves over on the scale of h, 0 where unobserved, (T, N)."""
        precision, target = self._quadratic(slice(None))
        return torch.where(precision > 0, target / precision.clamp(min=1e-12) - self.mean, 0.0)

    def maximise(
        self, loadings: Tensor, offset: Tensor, tau: Tensor, m: Tensor, v: Tensor, variance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Solve for (C_n, b_n) of every unit, then for the parameters of the model.

        Parameters
        ----------
        variance : (D,) tensor
            Of the Gaussian prior of the loadings.
        """
        d, n = m.shape[0], len(offset)
        second = torch.zeros(n, d + 1, d + 1, dtype=m.dtype)
        first = torch.zeros(n, d + 1, dtype=m.dtype)
        for rows in self._rows():
            precision, target = self._quadratic(rows)
            x = torch.cat([gated_mean(tau[:, rows], m[:, rows]), torch.ones(1, len(target))]).T
            outer = (x[:, :, None] * x[:, None]).reshape(len(x), -1)
            second += (precision.T @ outer).reshape(n, d + 1, d + 1)
            spread = gated_variance(tau[:, rows], m[:, rows], v[:, rows])
            second[:, :d, :d] += torch.diag_embed(precision.T @ spread.T)
            first += target.T @ x
        ridge = torch.cat([1 / variance, torch.zeros(1, dtype=m.dtype)])
        # A unit whose entries are all held out has no precision: its offset stays.
        second[:, d, d] += 1e-10
        first[:, d] += 1e-10 * offset
        solved = torch.linalg.solve(second + torch.diag(ridge), first[:, :, None])[:, :, 0]
        loadings, offset = solved[:, :d].contiguous(), solved[:, d].contiguous()
        self._learn(loadings, offset, tau, m, v)
        return loadings, offset

    def _learn(self, loadings, offset, tau, m, v) -> None:
        """Update parameters beside loadings and offsets."""


class Gaussian(Quadratic):
    """y ~ N(h, ψ_n); for square roots of counts or standardised signals."""

    def __init__(self, y: Tensor, observed: Tensor, exposure: Tensor, chunk: int = 4096):
        super().__init__(y, observed, exposure, chunk)
        seen = self.observed.to(y.dtype)
        self.count = seen.sum(0).clamp(min=1)
        mean = self.y.sum(0) / self.count
        variance = (seen * (self.y - mean) ** 2).sum(0) / self.count
        # Without a floor, silent bins are explained by z = 0 and the noise runs to zero.
        self.floor = SMALLEST_NOISE * variance.clamp(min=1e-12)
        self.noise = variance.clamp(min=1e-12)

    def parameters(self) -> dict[str, Tensor]:
        """Noise variance of every unit."""
        return {"noise": self.noise}

    def _quadratic(self, rows: slice) -> tuple[Tensor, Tensor]:
        precision = self.observed[rows] / self.noise
        return precision, precision * self.y[rows]

    def _learn(self, loadings, offset, tau, m, v) -> None:
        self.noise = torch.maximum(
            self._errors(loadings, offset, tau, m, v) / self.count, self.floor
        )

    def _errors(self, loadings, offset, tau, m, v) -> Tensor:
        total = torch.zeros_like(offset)
        for rows in self._rows():
            mean, variance = log_rate_moments(
                loadings, offset, tau[:, rows], m[:, rows], v[:, rows]
            )
            total += (self.observed[rows] * ((self.y[rows] - mean) ** 2 + variance)).sum(0)
        return total

    def expected(self, loadings, offset, tau, m, v) -> float:
        """Give the expected log-likelihood over the observed entries, in nats."""
        self.start(loadings, offset, tau, m, v)
        error = self._errors(loadings, offset, tau, m, v) / self.noise
        count = self.observed.sum(0)
        return float(-0.5 * (error + count * torch.log(2 * torch.pi * self.noise)).sum())

    @staticmethod
    def log_density(y: Tensor, h: Tensor, exposure: Tensor, noise: Tensor) -> Tensor:
        """ln p(y | h), elementwise, units on the last axis."""
        return -0.5 * ((y - h) ** 2 / noise + torch.log(2 * torch.pi * noise))


class PolyaGamma(Quadratic):
    """Negative binomial and Bernoulli: ln p ≥ κ ψ - ω ψ² / 2 + … at ω = tanh(ξ/2) (y + r) / (2 ξ).

    ψ = h + shift, and ξ² = E[ψ²] makes the bound tight (Polson, Scott & Windle 2013). The trials of
    the binomial, `y + r` or 1, and κ come from the subclass.
    """

    def _trials(self, rows: slice) -> Tensor:
        raise NotImplementedError

    def _kappa(self, rows: slice) -> Tensor:
        raise NotImplementedError

    def _shift(self, rows: slice) -> Tensor:
        raise NotImplementedError

    def _normaliser(self, rows: slice) -> Tensor:
        raise NotImplementedError

    def start(self, loadings, offset, tau, m, v) -> None:
        """Compute the mean of h and the ω of every entry, (T, N) each."""
        super().start(loadings, offset, tau, m, v)
        self.omega = torch.empty_like(self.mean)
        for rows in self._rows():
            xi = self._xi(rows, loadings, offset, tau, m, v)
            # tanh(ξ/2) / ξ goes to 1/2 at ξ = 0.
            ratio = torch.where(xi < 1e-6, 0.5, torch.tanh(xi / 2) / xi.clamp(min=1e-6))
            self.omega[rows] = 0.5 * self._trials(rows) * ratio

    def _xi(self, rows, loadings, offset, tau, m, v) -> Tensor:
        part = (tau[:, rows], m[:, rows], v[:, rows])
        mean, variance = log_rate_moments(loadings, offset, *part)
        return torch.sqrt((mean + self._shift(rows)) ** 2 + variance)

    def _quadratic(self, rows: slice) -> tuple[Tensor, Tensor]:
        seen = self.observed[rows]
        precision = seen * self.omega[rows]
        return precision, seen * self._kappa(rows) - precision * self._shift(rows)

    def _per_unit(self, loadings, offset, tau, m, v) -> Tensor:
        """Expected log-likelihood per unit, at the best ξ, (N,)."""
        total = torch.zeros_like(offset)
        for rows in self._rows():
            xi = self._xi(rows, loadings, offset, tau, m, v)
            mean = gated_mean(tau[:, rows], m[:, rows]).T @ loadings.T + offset
            log_cosh = xi / 2 + torch.log1p(torch.exp(-xi)) - LN2
            terms = self._kappa(rows) * (mean + self._shift(rows)) + self._normaliser(rows)
            terms -= self._trials(rows) * (log_cosh + LN2)
            total += (self.observed[rows] * terms).sum(0)
        return total

    def expected(self, loadings, offset, tau, m, v) -> float:
        """Give the bound of the expected log-likelihood over the observed entries, in nats."""
        self.start(loadings, offset, tau, m, v)
        return float(self._per_unit(loadings, offset, tau, m, v).sum())


LN2 = 0.6931471805599453


class NegativeBinomial(PolyaGamma):
    """y ~ NB(r_n, logit ψ) with ψ = h + ln(exposure) - ln r_n, so that E[y] = exposure · exp(h)."""

    def __init__(self, y: Tensor, observed: Tensor, exposure: Tensor, chunk: int = 4096):
        super().__init__(y, observed, exposure, chunk)
        self.size = torch.full((y.shape[1],), 5.0, dtype=y.dtype)

    def parameters(self) -> dict[str, Tensor]:
        """Size r of every unit; large ones mean Poisson."""
        return {"size": self.size}

    def _trials(self, rows):
        return self.y[rows] + self.size

    def _kappa(self, rows):
        return 0.5 * (self.y[rows] - self.size)

    def _shift(self, rows):
        return self.log_exposure[rows, None] - torch.log(self.size)

    def _normaliser(self, rows):
        y = self.y[rows]
        return torch.lgamma(y + self.size) - torch.lgamma(self.size) - torch.lgamma(y + 1)

    def _learn(self, loadings, offset, tau, m, v) -> None:
        """Keep, for every unit, the size among a few around the present one that is best."""
        best = self._per_unit(loadings, offset, tau, m, v)
        now = chosen = self.size
        for step in SIZE_STEPS:
            self.size = (now * step).clamp(*SIZE_BOUNDS)
            value = self._per_unit(loadings, offset, tau, m, v)
            chosen = torch.where(value > best, self.size, chosen)
            best = torch.maximum(best, value)
        self.size = chosen

    @staticmethod
    def log_density(y: Tensor, h: Tensor, exposure: Tensor, size: Tensor) -> Tensor:
        """ln p(y | h), elementwise, units on the last axis."""
        psi = h + torch.log(exposure) - torch.log(size)
        constant = torch.lgamma(y + size) - torch.lgamma(size) - torch.lgamma(y + 1)
        return constant + y * psi - (y + size) * torch.nn.functional.softplus(psi)


class Bernoulli(PolyaGamma):
    """y ~ Bernoulli(logit h), for bins that hold at most one spike."""

    def _trials(self, rows):
        return torch.ones((), dtype=self.y.dtype)

    def _kappa(self, rows):
        return self.y[rows] - 0.5

    def _shift(self, rows):
        return torch.zeros((), dtype=self.y.dtype)

    def _normaliser(self, rows):
        return torch.zeros((), dtype=self.y.dtype)

    @staticmethod
    def log_density(y: Tensor, h: Tensor, exposure: Tensor) -> Tensor:
        """ln p(y | h), elementwise."""
        return y * h - torch.nn.functional.softplus(h)
