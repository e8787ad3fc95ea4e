"""What masks and factors of a session follow: phases, trial types, movement, direction, place."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from popflow.evaluate.metrics import auroc
from popflow.evaluate.statistics import circular_shift_null, false_discovery, p_value
from popflow.models.infinite_gpfa import InfiniteGPFA

log = logging.getLogger(__name__)

PLACE_BINS = 8
LEAST_BINS = 20
MOST_CLASSES = 6


def associate(
    session: dict[str, np.ndarray], model: InfiniteGPFA, settings: dict[str, Any], seed: int
) -> pd.DataFrame:
    """Hold every factor against every target, and against targets rotated in time.

    For two-valued targets the score is the AUC of the mask, folded (max(AUC, 1 - AUC)); for place
    it is the share of the variance of E[z f] that the mean per place explains. `p` compares a
    factor with its own null, `fdr` adjusts over all factors and targets, and `p_best` compares the
    best factor of a target with the best of each rotation, so that choosing it is paid for.

    Parameters
    ----------
    session : dict
        Of `prepare.placecells.read_prepared`.
    model : InfiniteGPFA
    settings : dict
        `shifts`, and `min_shift_s`, the smallest rotation.
    seed : int

    Returns
    -------
    DataFrame
        factor, target, score (AUC or R2), value, p, fdr, p_best, null_best, null_high,
        energy_share, mean_mask, dwell_s, switches_per_min. Empty without targets.
    """
    shift = max(1, int(settings["min_shift_s"] / session["bin_s"]))
    known = targets(session)
    if not known or len(session["label"]) <= 2 * shift:
        log.warning("masks are held against nothing: no target, or a session below two shifts")
        return pd.DataFrame()
    tables = []
    for name, values in known.items():
        place = name == "place"
        score, series = (
            (place_shares, model.gated_mean_) if place else (folded_aucs, model.mask_probability_)
        )
        told = {"target": name, "score": "R2" if place else "AUC"}
        null = (settings["shifts"], shift, seed)
        tables.append(_held_against(score, series, values, null).assign(**told))
    table = pd.concat(tables, ignore_index=True)
    table["fdr"] = false_discovery(table["p"])
    rows = table["factor"] - 1
    table["energy_share"] = model.energy_share_[rows]
    table["mean_mask"] = model.mask_probability_.mean(0)[rows]
    dwell, switches = dwell_times(model.mask_probability_, session["epoch"], session["bin_s"])
    return table.assign(dwell_s=dwell[rows], switches_per_min=switches[rows])


def targets(session: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """List what factors may follow, (T,) each; NaN where it is not known.

    Phases and trial types against the rest; moving (faster than the median); direction along the
    main axis of the track, while moving; place, as the number of a place.
    """
    found: dict[str, np.ndarray] = {}
    for kind in ("label", "trial_label"):
        labels = session.get(kind, np.array([]))
        names = [name for name in np.unique(labels) if name] if len(labels) else []
        if 2 <= len(names) <= MOST_CLASSES:
            for name in names[1:] if len(names) == 2 else names:
                wanted = np.where(labels == "", np.nan, (labels == name).astype(float))
                found[str(name)] = wanted
    xy, speed = session.get("position"), session.get("speed")
    if xy is not None and xy.size and np.isfinite(xy).all(1).sum() > LEAST_BINS:
        found |= _movement(xy, speed)
    return {name: v for name, v in found.items() if len(np.unique(v[np.isfinite(v)])) > 1}


def _movement(xy: np.ndarray, speed: np.ndarray) -> dict[str, np.ndarray]:
    """Give moving, direction and place."""
    known = np.isfinite(xy).all(1) & np.isfinite(speed)
    moving = np.where(known, speed > np.median(speed[known]), np.nan)
    centred = xy - xy[known].mean(0)
    axis = np.linalg.svd(centred[known], full_matrices=False)[2][0]
    step = np.gradient(centred @ axis)
    direction = np.where((moving == 1) & np.isfinite(step), step > 0, np.nan)
    low, high = xy[known].min(0), xy[known].max(0)
    cell = np.clip(((xy - low) / (high - low + 1e-12) * PLACE_BINS), 0, PLACE_BINS - 1)
    place = np.full(len(xy), np.nan)
    index = cell[known].astype(int)
    place[known] = index @ (PLACE_BINS ** np.arange(xy.shape[1]))
    return {"moving": moving, "direction": direction, "place": place}


def _held_against(
    score: Callable, series: np.ndarray, values: np.ndarray, null: tuple[int, int, int]
) -> pd.DataFrame:
    """Score all factors against one target and its rotations."""
    observed = score(series, values)
    drawn = circular_shift_null(score, series, values, *null)
    p = [p_value(observed[d], drawn[:, d]) for d in range(len(observed))]
    best = drawn.max(1)
    return pd.DataFrame(
        {
            "factor": np.arange(1, len(observed) + 1),
            "value": observed,
            "p": p,
            "p_best": p_value(observed.max(), best),
            "null_best": best.mean(),
            "null_high": np.quantile(drawn, 0.95, axis=0),
        }
    )


def folded_aucs(masks: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Give max(AUC, 1 - AUC) of every mask for a target of 0, 1 and NaN."""
    known = np.isfinite(target)
    truth = target[known] == 1
    scores = np.array([auroc(truth, masks[known, d]) for d in range(masks.shape[1])])
    return np.maximum(scores, 1 - scores)


def place_shares(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Give the share of the variance of every column that its mean per place explains."""
    known = np.isfinite(place)
    index, x = place[known].astype(int), values[known]
    counts = np.maximum(np.bincount(index), 1)
    centred = x - x.mean(0)
    means = np.column_stack([np.bincount(index, column) for column in centred.T]) / counts[:, None]
    total = (centred**2).sum(0)
    return (counts[:, None] * means**2).sum(0) / np.maximum(total, 1e-300)


def dwell_times(
    masks: np.ndarray, epoch: np.ndarray, bin_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """Give the median time that a mask stays above one half, and how often it changes.

    Returns
    -------
    dwell_s : (D,) array
        NaN for a mask that is never on.
    switches_per_min : (D,) array
    """
    on = masks > 0.5
    inside = np.diff(epoch) == 0
    switches = (np.diff(on.astype(int), axis=0) != 0)[inside].sum(0)
    dwell = np.full(masks.shape[1], np.nan)
    for d in range(masks.shape[1]):
        border = (np.diff(on[:, d].astype(int)) != 0) | ~inside
        runs = np.split(on[:, d], np.flatnonzero(border) + 1)
        lengths = [len(run) for run in runs if len(run) and run[0]]
        dwell[d] = np.median(lengths) * bin_s if lengths else np.nan
    return dwell, switches / (len(masks) * bin_s / 60)
