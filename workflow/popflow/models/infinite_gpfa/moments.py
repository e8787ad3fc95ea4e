"""Moments of a gated factor g = z f, with z ~ Bernoulli(τ) and f ~ N(m, v), and of h = b + C g.

All exact under the factorised posterior; the derivations stand beside each function.
"""

import torch
from torch import Tensor


def gated_mean(tau: Tensor, m: Tensor) -> Tensor:
    """E[z f] = τ m."""
    return tau * m


def gated_variance(tau: Tensor, m: Tensor, v: Tensor) -> Tensor:
    """Var[z f] = τ (v + m²) - τ² m² = τ v + τ (1 - τ) m², since z² = z."""
    return tau * v + tau * (1 - tau) * m**2


def log_gated_exponential(tau: Tensor, eta: Tensor) -> Tensor:
    """log E[exp(c z f)] = log(1 - τ + τ exp(η)) with η = c m + c² v / 2; safe for any η.

    Parameters
    ----------
    tau, eta : Tensor
        Broadcast against each other.
    """
    # log1p is exact near η = 0; away from it expm1 overflows, or meets -1 where τ is 1.
    near = torch.log1p(tau * torch.expm1(eta.clamp(-1.0, 30.0)))
    away = torch.logaddexp(torch.log1p(-tau), torch.log(tau) + eta)
    return torch.where((eta < -1.0) | (eta > 30.0), away, near)


def log_rate_moments(
    loadings: Tensor, offset: Tensor, tau: Tensor, m: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of h = b + C g.

    Parameters
    ----------
    loadings : (N, D) tensor
    offset : (N,) tensor
    tau, m, v : (D, T) tensor

    Returns
    -------
    mean, variance : (T, N) tensor
    """
    mean = gated_mean(tau, m).T @ loadings.T + offset
    return mean, gated_variance(tau, m, v).T @ (loadings**2).T
