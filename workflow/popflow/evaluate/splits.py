"""Folds that keep together what belongs together: subjects, patients, blocks of time."""

import numpy as np

from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator


def grouped_folds(
    groups: np.ndarray, k: int, seed: int, labels: np.ndarray | None = None
) -> np.ndarray:
    """Deal groups into folds so that no group stands in two.

    Parameters
    ----------
    groups : (n,) array
        Subject, patient, plate … of each row.
    k : int
        Number of folds; at most the number of groups.
    seed : int
        Of the order in which groups of equal size are dealt.
    labels : (n,) array, optional
        Classes, whose shares are kept alike over folds as far as groups allow.

    Returns
    -------
    (n,) int array
        The fold in which a row is tested, 0 … k-1.
    """
    groups = np.asarray(groups).astype(str)
    names, index = np.unique(groups, return_inverse=True)
    if not 2 <= k <= len(names):
        raise Refusal(
            "folds",
            f"{k} folds for {len(names)} groups",
            f"2 to {len(names)} folds",
            "change `folds` under `evaluate`, or add subjects",
        )
    classes = np.zeros(len(groups), int)
    if labels is not None:
        classes = np.unique(np.asarray(labels).astype(str), return_inverse=True)[1]
    counts = np.zeros((len(names), classes.max() + 1))
    np.add.at(counts, (index, classes), 1)
    order = generator(seed, "grouped_folds").permutation(len(names))
    order = order[np.argsort(-counts[order].sum(1), kind="stable")]
    filled = np.zeros((k, counts.shape[1]))
    fold = np.zeros(len(names), int)
    share = counts.sum(0) / k
    for group in order:
        # The fold that is furthest below its share of the classes that this group holds.
        load = ((filled + counts[group]) / share).max(1) + 1e-3 * filled.sum(1) / share.sum()
        fold[group] = int(np.argmin(load))
        filled[fold[group]] += counts[group]
    return fold[index]


def blocked_folds(
    start: np.ndarray, stop: np.ndarray, k: int, purge: float = 0.0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Cut events or windows into contiguous blocks of time, with a purge around each test block.

    Parameters
    ----------
    start, stop : (n,) float array
        Span of each event's data in seconds.
    k : int
        Number of folds.
    purge : float
        Seconds kept free between a training window and the test block, beyond not overlapping.

    Returns
    -------
    list of (train, test)
        Row indices of each fold.
    """
    start, stop = np.asarray(start, float), np.asarray(stop, float)
    order = np.argsort(start, kind="stable")
    folds = []
    for test in np.array_split(order, k):
        low, high = start[test].min() - purge, stop[test].max() + purge
        free = (stop <= low) | (start >= high)
        free[test] = False
        folds.append((np.flatnonzero(free), np.sort(test)))
    return folds


def assert_disjoint(
    start: np.ndarray, stop: np.ndarray, train: np.ndarray, test: np.ndarray
) -> float:
    """Prove that no training span meets a test span; give the smallest distance in seconds.

    Raises
    ------
    AssertionError
        When two spans share time.
    """
    gap = np.inf
    for begin, end in zip(start[test], stop[test], strict=True):
        distance = np.maximum(start[train] - end, begin - stop[train])
        gap = min(gap, float(distance.min(initial=np.inf)))
    if gap < 0:
        raise AssertionError(f"training and test windows overlap by {-gap:.3f} s")
    return gap
