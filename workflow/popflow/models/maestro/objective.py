"""What MAESTRO learns from: hidden blocks of cells, optimal transport and self-distillation."""

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def hidden_count(share: float, cells: int) -> int:
    """Give how many of the cells are hidden: floor(share * cells), at least one stays visible."""
    # The guard keeps 0.6 * 10 from becoming 5.999….
    return min(math.floor(share * cells + 1e-9), cells - 1)


def block_mask(cells: Tensor, share: float, draws: Tensor) -> Tensor:
    """Hide blocks of similar cells (NRBM, Algorithm 1 of the paper).

    Cells are ranked by cosine similarity to a reference cell; alternate blocks of ranks are hidden,
    the nearest first.

    Parameters
    ----------
    cells : (B, N, D) Tensor
    share : float
        Of the cells that are hidden, 0 to 1.
    draws : (B, N) Tensor
        Random numbers; the largest of a row chooses its reference cell.

    Returns
    -------
    (B, N) bool Tensor
        True is hidden; every row has the same count.
    """
    n = cells.shape[1]
    reference = draws.argmax(dim=1)
    unit = F.normalize(cells, dim=-1)
    anchor = unit[torch.arange(len(cells), device=cells.device), reference]
    order = (unit @ anchor[:, :, None])[..., 0].argsort(dim=1, descending=True, stable=True)
    return _from_ranks(order, block_ranks(share, n).to(cells.device))


def block_ranks(share: float, n: int) -> Tensor:
    """Mark the hidden ranks: [0, b), [2b, 3b), … until the count is reached; (n,) bool Tensor."""
    count = hidden_count(share, n)
    marked = torch.zeros(n, dtype=torch.bool)
    if count == 0:
        return marked
    size = max(1, count // (n // count))
    left, start = count, 0
    while left > 0:
        marked[start : start + min(size, left)] = True
        left, start = left - size, start + 2 * size
    return marked


def random_mask(cells: Tensor, share: float, draws: Tensor) -> Tensor:
    """Hide cells without regard to what they are; arguments as for `block_mask`."""
    n = cells.shape[1]
    ranks = torch.arange(n, device=cells.device) < hidden_count(share, n)
    return _from_ranks(draws.argsort(dim=1), ranks)


def pc1_mask(cells: Tensor, share: float, draws: Tensor) -> Tensor:
    """Hide one end of the first principal component; arguments as for `block_mask`."""
    n = cells.shape[1]
    centred = cells - cells.mean(dim=1, keepdim=True)
    scores = centred @ torch.linalg.eigh(centred.transpose(1, 2) @ centred)[1][..., -1:]
    side = torch.where(draws[:, :1] < 0.5, -1.0, 1.0)
    ranks = torch.arange(n, device=cells.device) < hidden_count(share, n)
    return _from_ranks((scores[..., 0] * side).argsort(dim=1), ranks)


def _from_ranks(order: Tensor, ranks: Tensor) -> Tensor:
    """Map marked ranks back to the cells."""
    mask = torch.zeros_like(order, dtype=torch.bool)
    return mask.scatter(1, order, ranks.expand(order.shape))


MASKS = {"nrbm": block_mask, "random": random_mask, "pc1": pc1_mask}


def visible_cells(cells: Tensor, mask: Tensor) -> Tensor:
    """Remove the hidden cells: (B, N, D) and (B, N) to (B, N - hidden, D)."""
    return cells[~mask].view(len(cells), -1, cells.shape[-1])


@cache
def _sinkhorn(blur: float, scaling: float) -> Any:
    from geomloss import SamplesLoss

    return SamplesLoss("sinkhorn", p=2, blur=blur, scaling=scaling, backend="tensorized")


def sinkhorn_divergence(
    x: Tensor, y: Tensor, x_weights: Tensor, y_weights: Tensor, blur: float, scaling: float = 0.5
) -> Tensor:
    """Debiased Sinkhorn divergence between weighted sets, cost |x - y|²/2, in the log domain.

    Parameters
    ----------
    x, y : (B, N, D), (B, M, D) Tensor
    x_weights, y_weights : (B, N), (B, M) Tensor
        Rows sum to 1.
    blur : float
        Square root of the regularisation.
    scaling : float
        Of the annealing; nearer to 1 is slower and more exact.

    Returns
    -------
    Tensor
        Mean over the batch.
    """
    return _sinkhorn(blur, scaling)(x_weights, x, y_weights, y).mean()


def energy_distance(x: Tensor, y: Tensor, x_weights: Tensor, y_weights: Tensor) -> Tensor:
    """Half the energy distance between weighted sets, mean over the batch.

    Arguments as for `sinkhorn_divergence`.
    """
    return _energy()(x_weights, x, y_weights, y).mean()


@cache
def _energy() -> Any:
    from geomloss import SamplesLoss

    return SamplesLoss("energy", backend="tensorized")


def teacher_target(logits: Tensor, centre: Tensor, temperature: float) -> Tensor:
    """Give the teacher's probabilities ``softmax((p - c) / tau)``, (B, L): one softmax only."""
    return ((logits - centre) / temperature).softmax(dim=-1)


def distillation(target: Tensor, student_logits: Tensor, temperature: float) -> Tensor:
    """Kullback-Leibler divergence from the student's probabilities to the teacher's.

    ``KL(q_teacher || softmax(p_student / tau))``, mean over the batch; the teacher has no gradient.

    Parameters
    ----------
    target : (B, L) Tensor
        Probabilities of `teacher_target`.
    student_logits : (B, L) Tensor
    temperature : float
    """
    student = (student_logits / temperature).log_softmax(dim=-1)
    return F.kl_div(student, target, reduction="batchmean")


def entropy(probabilities: Tensor) -> Tensor:
    """Entropy in nats, mean over the batch of rows."""
    return torch.special.entr(probabilities).sum(dim=-1).mean()


def effective_rank(z: Tensor) -> float:
    """Give the effective rank of vectors (n, L): exp of the entropy of the squared singular values.

    1 means that all samples lie on a line; the vectors are centred first.
    """
    z = z.detach().double()
    power = torch.linalg.svdvals(z - z.mean(dim=0)) ** 2
    if float(power.sum()) <= 0:
        return 1.0
    return float(torch.special.entr(power / power.sum()).sum().exp())


class Centre(nn.Module):
    """The running mean of the teacher's logits, a buffer: it is saved and moves with the device.

    Parameters
    ----------
    width : int
    momentum : float
    """

    def __init__(self, width: int, momentum: float):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("value", torch.zeros(width))

    @torch.no_grad()
    def update(self, logits: Tensor) -> Tensor:
        """Take in a batch (B, L) and give the centre."""
        self.value += (1 - self.momentum) * (logits.mean(dim=0) - self.value)
        return self.value


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, decay: float) -> None:
    """Move the teacher's parameters: ``decay * teacher + (1 - decay) * student``."""
    for own, other in zip(teacher.parameters(), student.parameters(), strict=True):
        own.mul_(decay).add_(other, alpha=1 - decay)
