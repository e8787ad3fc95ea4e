"""Where coordinate ascent starts: leading directions of the data, rotated so that masks can act."""

from typing import Any
from zlib import crc32

import numpy as np
import torch
from scipy.ndimage import gaussian_filter1d
from torch import Tensor

from popflow.runtime.seeds import generator

#: Lengths of block of the first start, the second, and so on.
BLOCK_BINS = ((10, 25, 50), (5, 10), (50, 100, 200), (15, 30))
LARGEST_SWEEPS, SMALLEST_SINE = 100, 1e-8


def initial_loadings(
    likelihood: Any, kind: str, d: int, seed: int, restart: int = 0
) -> tuple[Tensor, Tensor]:
    """Give loadings and offsets from the leading directions of smoothed data.

    Entries that are held out are replaced by the mean of the neuron's observed entries. Loadings
    of unit-variance factors are the singular vectors times their standard deviations, rotated by
    `switching_rotation`, with a little noise by the seed.

    Parameters
    ----------
    likelihood : object
        Of `likelihoods`.
    kind : {"poisson", "negative_binomial", "bernoulli", "gaussian"}
    d : int
        Number of factors.
    seed : int
    restart : int
        Starts differ by the time over which masks are expected to change.

    Returns
    -------
    loadings : (N, D) tensor
    offset : (N,) tensor
    """
    signal, offset = _signal(likelihood, kind)
    bins, units = signal.shape
    rank = min(d, bins, units)
    # The units' covariance is small; singular vectors of a long session would not be.
    variances, directions = np.linalg.eigh(signal.T @ signal / bins)
    order = np.argsort(-variances, kind="stable")[:rank]
    s, directions = np.sqrt(np.maximum(variances[order], 1e-12)), directions[:, order]
    scores = signal @ (directions / s)
    # The sign of a singular vector is free; the skew of its scores does not depend on the order.
    side = np.where((scores**3).sum(0) < 0, -1.0, 1.0)
    rotation = switching_rotation(scores * side, BLOCK_BINS[restart % len(BLOCK_BINS)])
    directions = directions * side
    loadings = np.zeros((units, d))
    loadings[:, :rank] = (directions * s) @ rotation
    for n in range(units):
        # By the unit's own data, so that the order of units does not matter.
        own = crc32(np.ascontiguousarray(likelihood.y[:, n].numpy()).tobytes())
        loadings[n] += generator(seed, "loadings", own).normal(0, 0.05, d)
    return torch.from_numpy(loadings), torch.from_numpy(offset)


def _signal(likelihood: Any, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Give data smoothed on the scale of h and centred, (T, N), and the offset of every unit."""
    seen, y = likelihood.observed.numpy(), likelihood.y.numpy()
    exposure = float(torch.exp(likelihood.log_exposure).mean())
    signal, offset = np.empty(y.shape), np.empty(y.shape[1])
    for n in range(y.shape[1]):
        mean = y[:, n].sum(dtype=float) / max(seen[:, n].sum(), 1)
        filled = np.where(seen[:, n], y[:, n].astype(float), mean)
        if kind == "gaussian":
            offset[n], signal[:, n] = mean, gaussian_filter1d(filled, 1.0)
        elif kind == "bernoulli":
            share = min(max(mean, 1e-3), 1 - 1e-3)
            offset[n] = np.log(share / (1 - share))
            signal[:, n] = gaussian_filter1d(filled, 2.0) / (share * (1 - share))
        else:
            offset[n] = np.log(max(mean, 1e-3) / exposure)
            signal[:, n] = np.log(gaussian_filter1d(filled, 2.0) + 0.1 * mean + 0.05)
    signal -= signal.mean(0)
    return signal, offset


def switching_rotation(scores: np.ndarray, lengths: tuple[int, ...] = BLOCK_BINS[0]) -> np.ndarray:
    """Rotate unit-variance scores so that each changes its power over time on its own.

    Any rotation of the leading directions fits as well before masks act, and coordinate ascent
    does not leave a wrong one. Factors that are switched on and off have covariances that are
    diagonal within every block of time only in their own axes, so the rotation diagonalises the
    covariances of all blocks jointly (Pham & Cardoso 2001), at several lengths of block.

    Parameters
    ----------
    scores : (T, rank) array
    lengths : tuple of int
        Bins per block.

    Returns
    -------
    (rank, rank) array
        Orthogonal; ``scores @ rotation`` are the new scores.
    """
    scores = scores - scores.mean(0)
    covariances = []
    for length in lengths:
        count = max(1, len(scores) // length)
        blocks = scores[: count * length].reshape(count, -1, scores.shape[1])
        covariances.append(np.einsum("kti,ktj->kij", blocks, blocks) / blocks.shape[1])
    return joint_diagonaliser(np.concatenate(covariances))


def joint_diagonaliser(matrices: np.ndarray) -> np.ndarray:
    """Find the orthogonal axes in which symmetric matrices are as diagonal as they jointly can be.

    Jacobi rotations, each at the angle that is best for its pair of axes over all matrices
    (Cardoso & Souloumiac 1996).

    Parameters
    ----------
    matrices : (K, n, n) array

    Returns
    -------
    (n, n) array
        The axes in columns.
    """
    rotated, axes = np.array(matrices), np.eye(matrices.shape[1])
    for _ in range(LARGEST_SWEEPS):
        largest = 0.0
        for p in range(len(axes) - 1):
            for q in range(p + 1, len(axes)):
                turn = _best_turn(rotated, p, q)
                rotated[:, :, [p, q]] = rotated[:, :, [p, q]] @ turn
                rotated[:, [p, q]] = turn.T @ rotated[:, [p, q]]
                axes[:, [p, q]] = axes[:, [p, q]] @ turn
                largest = max(largest, abs(turn[1, 0]))
        if largest < SMALLEST_SINE:
            break
    return axes


def _best_turn(matrices: np.ndarray, p: int, q: int) -> np.ndarray:
    """Give the rotation of two axes that lowers the off-diagonal entries (p, q) the most."""
    gap, cross = matrices[:, p, p] - matrices[:, q, q], 2 * matrices[:, p, q]
    on, off = gap @ gap - cross @ cross, 2 * gap @ cross
    angle = 0.5 * np.arctan2(off, on + np.hypot(on, off))
    sine, cosine = np.sin(angle), np.cos(angle)
    return np.array([[cosine, -sine], [sine, cosine]])


def leading_residual(likelihood: Any) -> Tensor:
    """Give the direction in which units deviate together from a fit, scaled like loadings, (N,)."""
    signal = likelihood.residual().numpy()
    signal = gaussian_filter1d(signal, 2.0, axis=0)
    signal -= signal.mean(0)
    variances, directions = np.linalg.eigh(signal.T @ signal / len(signal))
    return torch.from_numpy(directions[:, -1] * np.sqrt(max(variances[-1], 1e-12)))
