"""Optimisers and learning-rate schedules of PopT."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR


class Lamb(torch.optim.Optimizer):
    """LAMB as PopT uses it: no bias correction (You et al., ICLR 2020).

    m and v are Adam's moments; u = m / (sqrt(v) + eps) + decay w; w -= lr |w| / |u| u per tensor,
    with the ratio 1 where a norm is 0.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 5e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Do one step."""
        loss = closure() if closure else None
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(weight), torch.zeros_like(weight)
                state["m"].lerp_(weight.grad, 1 - first)
                state["v"].mul_(second).addcmul_(weight.grad, weight.grad, value=1 - second)
                update = state["m"] / (state["v"].sqrt() + group["eps"]) + group["decay"] * weight
                ratio = weight.norm() / update.norm()
                trust = float(ratio) if torch.isfinite(ratio) and ratio > 0 else 1.0
                weight.add_(update, alpha=-group["lr"] * trust)
        return loss


def optimiser(name: str, groups: list[dict[str, Any]], decay: float) -> torch.optim.Optimizer:
    """Make ``adamw`` or ``lamb`` over groups of parameters that have an `lr` each."""
    if name == "lamb":
        return Lamb(groups, weight_decay=decay)
    return torch.optim.AdamW(groups, weight_decay=decay)


def schedule(optimizer: torch.optim.Optimizer, kind: str, steps: int, warmup: float) -> LambdaLR:
    """Warm up linearly, then fall.

    Parameters
    ----------
    optimizer : Optimizer
    kind : {"cosine", "decay"}
        ``cosine`` to 0; ``decay`` by 0.99 every 1 % of the steps, as the reference (0.37 at the
        end).
    steps : int
    warmup : float
        Share of the steps.
    """
    rise = max(1, round(warmup * steps))

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        done = (step - rise) / max(1, steps - rise)
        return 0.5 * (1 + math.cos(math.pi * done)) if kind == "cosine" else 0.99 ** int(100 * done)

    return LambdaLR(optimizer, factor)
