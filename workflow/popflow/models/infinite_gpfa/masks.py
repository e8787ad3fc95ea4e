"""The finite beta-Bernoulli prior of the masks: π_d ~ Beta(α/D, 1), z_dt ~ Bernoulli(π_d).

Its limit for D → ∞ is the Indian buffet process.
"""

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
        if self.alpha is None:
            e1, _ = self.expected_logs()
            self.h1 = self.prior[0] + count
            self.h2 = self.prior[1] - float(e1.sum()) / count

    def divergences(self, tau: Tensor) -> dict[str, float]:
        """KL of q(z), q(π) and q(α) from their priors, in nats."""
        e1, e0 = self.expected_logs()
        off = 1 - tau
        entropy = torch.xlogy(tau, tau) + torch.xlogy(off, off)
        kl_z = entropy.sum() - (tau.sum(1) * e1 + off.sum(1) * e0).sum()
        count = len(self.a)
        log_beta = torch.lgamma(self.a + self.b) - torch.lgamma(self.a) - torch.lgamma(self.b)
        log_count = float(torch.log(torch.tensor(float(count), dtype=torch.float64)))
        kl_pi = (
            log_beta
            - self.mean_log_alpha
            + log_count
            + (self.a - self.mean_alpha / count) * e1
            + (self.b - 1) * e0
        ).sum()
        found = {"kl_z": float(kl_z), "kl_pi": float(kl_pi)}
        if self.alpha is None:
            found["kl_alpha"] = self._kl_alpha()
        return found

    def _kl_alpha(self) -> float:
        (s1, s2), h1, h2 = self.prior, self.h1, self.h2
        t = [torch.tensor(x, dtype=torch.float64) for x in (h1, h2, s1, s2)]
        digamma, log_gamma = torch.digamma(t[0]), torch.lgamma(t[2]) - torch.lgamma(t[0])
        ratio = s1 * (torch.log(t[1]) - torch.log(t[3])) + h1 * (s2 / h2 - 1)
        return float((h1 - s1) * digamma + log_gamma + ratio)


def expected_active(alpha: float, factors: int) -> float:
    """Prior mean number of factors that are on in a bin, α / (1 + α/D)."""
    return alpha / (1 + alpha / factors)
