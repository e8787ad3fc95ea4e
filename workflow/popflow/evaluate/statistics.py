"""Intervals, tests and nulls."""

from collections.abc import Callable

import numpy as np
from scipy import stats

from popflow.runtime.seeds import generator


def mean_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """Mean and t interval over seeds, subjects or folds.

    Returns
    -------
    mean, low, high : float
        Low and high are NaN for fewer than two values.
    """
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return float("nan"), float("nan"), float("nan")
    mean = float(values.mean())
    if len(values) == 1:
        return mean, float("nan"), float("nan")
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return mean, mean - float(half), mean + float(half)


def bootstrap_interval(
    score: Callable[..., float],
    *arrays: np.ndarray,
    seed: int = 0,
    groups: np.ndarray | None = None,
    draws: int = 1000,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile interval of a score, resampling rows or whole groups with replacement.

    Parameters
    ----------
    score : callable
        Of the arrays.
    *arrays : (n, …) array
    groups : (n,) array, optional
        Subjects; rows of one subject are drawn together.
    """
    draw = generator(seed, "bootstrap")
    groups = np.arange(len(arrays[0])) if groups is None else np.asarray(groups)
    members = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    scores = []
    for _ in range(draws):
        rows = np.concatenate([members[i] for i in draw.integers(len(members), size=len(members))])
        scores.append(score(*(array[rows] for array in arrays)))
    tail = (1 - level) / 2
    return tuple(float(v) for v in np.nanquantile(scores, [tail, 1 - tail]))


def paired_difference(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """Mean of a - b with its t interval; a and b are paired (same seeds or subjects)."""
    return mean_interval(np.asarray(a, float) - np.asarray(b, float))


def holm(p: np.ndarray) -> np.ndarray:
    """Adjust p values for the number of tests (Holm 1979)."""
    p = np.asarray(p, float)
    order = np.argsort(p)
    scaled = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted


def false_discovery(p: np.ndarray) -> np.ndarray:
    """Adjust p values to false discovery rates (Benjamini & Hochberg 1995)."""
    return stats.false_discovery_control(np.asarray(p, float))


def circular_shift_null(
    score: Callable[[np.ndarray, np.ndarray], float],
    series: np.ndarray,
    labels: np.ndarray,
    draws: int,
    min_shift: int,
    seed: int,
) -> np.ndarray:
    """Scores after the labels were rotated in time against the series.

    A rotation keeps the autocorrelation of both, which shuffling would destroy.

    Parameters
    ----------
    score : callable
        Of (series, labels).
    series, labels : (T, …), (T,) array
    draws : int
    min_shift : int
        Smallest rotation in bins, in either direction.
    """
    length = len(labels)
    if length <= 2 * min_shift:
        raise ValueError(f"{length} bins are too few for shifts of at least {min_shift}")
    shifts = generator(seed, "shift").integers(min_shift, length - min_shift + 1, size=draws)
    return np.array([score(series, np.roll(labels, shift)) for shift in shifts])


def p_value(observed: float, null: np.ndarray) -> float:
    """One-sided p value of an observed score against draws of its null, (1 + k) / (1 + n)."""
    null = np.asarray(null)[np.isfinite(null)]
    return float((1 + np.sum(null >= observed)) / (1 + len(null)))
