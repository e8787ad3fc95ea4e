"""Where coordinate ascent starts: leading directions of the data, rotated so that masks can act."""

from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter1d
from torch import Tensor

from popflow.runtime.seeds import generator

BLOCK_BINS = (10, 25, 50)
LARGEST_SWEEPS, SMALLEST_SINE = 100, 1e-8


def initial_loadings(likelihood: Any, kind: str, d: int, seed: int) -> tuple[Tensor, Tensor]:
    """Give loadings and offsets from the leading directions of smoothed data.

    Entries that are held out are replaced by the mean of the neuron's observed entries. Loadings
    of unit-variance factors are the singular vectors times their standard deviations, rotated by
    `switching_rotation`, with a little noise by the seed.

    Parameters
    ----------
    likelihood : object
        Of `likelihoods`.
    kind : {"poisson", "gaussian"}
    d : int
        Number of factors.
    seed : int

    Returns
    -------
    loadings : (N, D) tensor
    offset : (N,) tensor
    """
    y, seen = likelihood.y.numpy(), likelihood.observed.numpy()
    mean = (y * seen).sum(0) / np.maximum(seen.sum(0), 1)
    filled = np.where(seen > 0, y, mean)
    if kind == "poisson":
        exposure = np.exp(likelihood.log_exposure.numpy()).mean()
        offset = np.log(np.maximum(mean, 1e-3) / exposure)
        smooth = gaussian_filter1d(filled, 2.0, axis=0)
        signal = np.log(smooth + 0.1 * mean + 0.05)
    else:
        offset, signal = mean.copy(), gaussian_filter1d(filled, 1.0, axis=0)
    signal = signal - signal.mean(0)
    rank = min(d, *signal.shape)
    left, s, directions = np.linalg.svd(signal, full_matrices=False)
    rotation = switching_rotation(left[:, :rank] * np.sqrt(len(y)))
    loadings = np.zeros((y.shape[1], d))
    loadings[:, :rank] = (directions[:rank].T * s[:rank] / np.sqrt(len(y))) @ rotation
    loadings += generator(seed, "loadings").normal(0, 0.05, loadings.shape)
    return torch.from_numpy(loadings), torch.from_numpy(offset)


def switching_rotation(scores: np.ndarray) -> np.ndarray:
    """Rotate unit-variance scores so that each changes its power over time on its own.

    Any rotation of the leading directions fits as well before masks act, and coordinate ascent
    does not leave a wrong one. Factors that are switched on and off have covariances that are
    diagonal within every block of time only in their own axes, so the rotation diagonalises the
    covariances of all blocks jointly (Pham & Cardoso 2001), at three lengths of block.

    Parameters
    ----------
    scores : (T, rank) array

    Returns
    -------
    (rank, rank) array
        Orthogonal; ``scores @ rotation`` are the new scores.
    """
    scores = scores - scores.mean(0)
    covariances = []
    for length in BLOCK_BINS:
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
