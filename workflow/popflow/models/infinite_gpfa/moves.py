"""Moves out of local optima: merge split factors, revive dead ones; kept when the bound rises."""

import logging

import numpy as np
import torch

from popflow.models.infinite_gpfa.inference import Ascent, State
from popflow.models.infinite_gpfa.start import leading_residual

log = logging.getLogger(__name__)

ITERATIONS = 6
MOST_MOVES = 3
SIMILAR = 0.8
DEAD_SHARE = 1e-3


def improve(ascent: Ascent, state: State) -> State:
    """Try to merge the most similar pair of factors and to revive dead ones, by a few iterations.

    Parameters
    ----------
    ascent : Ascent
        Fresh for `state`.
    state : State
        Converged.

    Returns
    -------
    State
        With a higher bound, or the same object.
    """
    for _ in range(MOST_MOVES):
        found = _merged(ascent, state) or _revived(ascent, state)
        if found is None:
            break
        state = found
    ascent.refresh(state)
    return state


def energies(state: State) -> torch.Tensor:
    """Give |C_d|² mean(τ (m² + v)) of every factor, (D,)."""
    return (state.loadings**2).sum(0) * (state.tau * (state.m**2 + state.v)).mean(1)


def _tried(ascent: Ascent, state: State, changed: State, name: str) -> State | None:
    """Iterate on a changed copy; give it when its bound ends above that of the state."""
    before, parameters = state.trace[-1]["elbo"], ascent.likelihood.parameters()
    kept = {key: value.clone() for key, value in parameters.items()}
    ascent.refresh(changed)
    for _ in range(ITERATIONS):
        after = ascent.iterate(changed, len(changed.trace))
    if after > before + 1e-6 * abs(before):
        log.info("%s: the bound rises from %.1f to %.1f", name, before, after)
        return changed
    for key, value in kept.items():
        setattr(ascent.likelihood, key, value)
    return None


def _merged(ascent: Ascent, state: State) -> State | None:
    """Join the two factors whose loadings point the same way, where there are such."""
    norms = state.loadings.norm(dim=0).clamp(min=1e-12)
    similar = ((state.loadings / norms).T @ (state.loadings / norms)).abs()
    share = energies(state) / energies(state).sum()
    similar[share < DEAD_SHARE] = 0.0
    similar[:, share < DEAD_SHARE] = 0.0
    similar.fill_diagonal_(0.0)
    i, j = np.unravel_index(int(similar.argmax()), similar.shape)
    if similar[i, j] < SIMILAR:
        return None
    changed = state.clone()
    big, small = (i, j) if share[i] >= share[j] else (j, i)
    tau = torch.maximum(state.tau[i], state.tau[j])
    for d in (big, small):
        changed.forget(d, ascent.settings["tau_start"] if ascent.gated else 1.0)
    changed.tau[big] = tau
    changed.loadings[:, small] = 0.0
    return _tried(ascent, state, changed, f"factors {i + 1} and {j + 1} merged")


def _revived(ascent: Ascent, state: State) -> State | None:
    """Start a factor that explains nothing again, along the largest residual."""
    share = energies(state) / energies(state).sum()
    d = int(share.argmin())
    if share[d] > DEAD_SHARE:
        return None
    changed = state.clone()
    changed.forget(d, ascent.settings["tau_start"] if ascent.gated else 1.0)
    changed.loadings[:, d] = 0.0
    ascent.refresh(changed)
    changed.loadings[:, d] = leading_residual(ascent.likelihood)
    return _tried(ascent, state, changed, f"factor {d + 1} revived")
