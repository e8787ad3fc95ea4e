"""Priors of the masks z_dt ~ Bernoulli(π_d): two finite forms of the Indian buffet process.

`MaskPosterior` has π_d ~ Beta(α/D, 1); `StickPosterior` breaks sticks, π_d = v_1 · … · v_d with
v_k ~ Beta(α, 1), so that factors come in order.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST = 1e-3


@dataclass
class MaskPosterior:
    """q(π_d) = Beta(a_d, b_d), and q(α) = Gamma(h1, h2) when α is learned.

    Attributes
    ----------
    a, b : (D,) tensor
    h1, h2 : float
        Shape and rate; unused when `alpha` is fixed.
    alpha : float or None
        The fixed concentration; None when it is learned.
    prior : (float, float)
        Shape s1 and rate s2 of the prior of α.
    """

    a: Tensor
    b: Tensor
    alpha: float | None = None
    h1: float = 1.0
    h2: float = 1.0
    prior: tuple[float, float] = (1.0, 1.0)

    @property
    def mean_alpha(self) -> float:
        """E[α]."""
        return self.h1 / self.h2 if self.alpha is None else self.alpha

    @property
    def mean_log_alpha(self) -> float:
        """E[ln α]."""
        if self.alpha is None:
            h1, h2 = torch.tensor(self.h1, dtype=torch.float64), self.h2
            return float(torch.digamma(h1) - torch.log(torch.tensor(h2, dtype=torch.float64)))
        return float(torch.log(torch.tensor(self.alpha, dtype=torch.float64)))

    def expected_logs(self) -> tuple[Tensor, Tensor]:
        """E[ln π_d] and E[ln(1 - π_d)], (D,) each."""
        both = torch.digamma(self.a + self.b)
        return torch.digamma(self.a) - both, torch.digamma(self.b) - both

    def update(self, tau: Tensor) -> None:
        """Maximise the bound over q(π), and over q(α) when α is learned.

        Parameters
        ----------
        tau : (D, T) tensor
            Of bins that hold observations.
        """
        count = len(self.a)
        self.a = (self.mean_alpha / count + tau.sum(1)).clamp(min=SMALLEST)
        self.b = 1 + (1 - tau).sum(1)
        self._update_alpha(self.expected_logs()[0].sum() / count)

    def _update_alpha(self, logs: Tensor) -> None:
        """Maximise the bound over q(α), which sees Σ E[ln v] of D draws v ~ Beta(α, 1)."""
        if self.alpha is None:
            self.h1 = self.prior[0] + len(self.a)
            self.h2 = self.prior[1] - float(logs)

    def divergences(self, tau: Tensor) -> dict[str, float]:
        """KL of q(z), q(π) and q(α) from their priors, in nats."""
        e1, e0 = self.expected_logs()
        off = 1 - tau
        entropy = torch.xlogy(tau, tau) + torch.xlogy(off, off)
        kl_z = entropy.sum() - (tau.sum(1) * e1 + off.sum(1) * e0).sum()
        found = {"kl_z": float(kl_z), "kl_pi": self._kl_pi()}
        if self.alpha is None:
            found["kl_alpha"] = self._kl_alpha()
        return found

    def _kl_pi(self) -> float:
        """KL of the Beta posteriors from Beta(α/D, 1)."""
        return self._kl_beta(len(self.a))

    def _kl_beta(self, count: int) -> float:
        """Σ KL of Beta(a, b) from Beta(α/count, 1), averaged over q(α)."""
        both = torch.digamma(self.a + self.b)
        on, off = torch.digamma(self.a) - both, torch.digamma(self.b) - both
        log_beta = torch.lgamma(self.a + self.b) - torch.lgamma(self.a) - torch.lgamma(self.b)
        log_prior = self.mean_log_alpha - math.log(count)
        change = (self.a - self.mean_alpha / count) * on + (self.b - 1) * off
        return float((log_beta - log_prior + change).sum())

    def _kl_alpha(self) -> float:
        (s1, s2), h1, h2 = self.prior, self.h1, self.h2
        t = [torch.tensor(x, dtype=torch.float64) for x in (h1, h2, s1, s2)]
        digamma, log_gamma = torch.digamma(t[0]), torch.lgamma(t[2]) - torch.lgamma(t[0])
        ratio = s1 * (torch.log(t[1]) - torch.log(t[3])) + h1 * (s2 / h2 - 1)
        return float((h1 - s1) * digamma + log_gamma + ratio)


class StickPosterior(MaskPosterior):
    """q(v_k) = Beta(a_k, b_k) of stick breaking, π_d = Π_{k ≤ d} v_k.

    E[ln(1 - π_d)] has no closed form; it is bounded from below by the multinomial bound of
    Doshi-Velez et al. (2009), at its best weights.
    """

    def _log_weights(self) -> Tensor:
        """ln of the terms whose sum bounds E[1 - π_d], (D,); the first d of them count."""
        both = torch.digamma(self.a + self.b)
        on = torch.digamma(self.a)
        return torch.digamma(self.b) + (on.cumsum(0) - on) - both.cumsum(0)

    def expected_logs(self) -> tuple[Tensor, Tensor]:
        """E[ln π_d], and the bound of E[ln(1 - π_d)], (D,) each."""
        log_v = torch.digamma(self.a) - torch.digamma(self.a + self.b)
        return log_v.cumsum(0), torch.logcumsumexp(self._log_weights(), 0)

    def update(self, tau: Tensor) -> None:
        """Maximise the bound over q(v) at the best weights, and over q(α) when it is learned."""
        count = len(self.a)
        on, off = tau.sum(1), (1 - tau).sum(1)
        weights = self._log_weights().expand(count, count).tril().clone()
        weights[torch.ones(count, count).triu(1).bool()] = -torch.inf
        share = torch.softmax(weights, 1) * off[:, None]
        below = share.sum(1, keepdim=True) - share.cumsum(1)
        self.a = self.mean_alpha + on.flip(0).cumsum(0).flip(0) + below.sum(0)
        self.b = 1 + share.sum(0)
        self._update_alpha((torch.digamma(self.a) - torch.digamma(self.a + self.b)).sum())

    def _kl_pi(self) -> float:
        return self._kl_beta(1)


PRIORS = {"finite": MaskPosterior, "stick_breaking": StickPosterior}


def expected_active(alpha: float, factors: int, prior: str = "finite") -> float:
    """Prior mean number of factors that are on in a bin.

    α / (1 + α/D) of the finite form, Σ_k (α / (1 + α))^k of stick breaking.
    """
    if prior == "finite":
        return alpha / (1 + alpha / factors)
    return sum((alpha / (1 + alpha)) ** k for k in range(1, factors + 1))
