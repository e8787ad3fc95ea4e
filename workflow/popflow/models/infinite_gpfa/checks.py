"""Arrays that cannot be fitted, told at the door."""

from typing import Any

import numpy as np

from popflow.runtime.refusal import Refusal

WHERE = "counts"


def looks_like_counts(y: np.ndarray) -> bool:
    """Tell whether all values are whole and none is negative."""
    return bool((y >= 0).all() and np.array_equal(y, np.round(y)))


def check(
    trials: list[np.ndarray],
    seen: list[np.ndarray],
    share: list[np.ndarray],
    settings: dict[str, Any],
    bin_width: float,
) -> None:
    """Refuse trials that cannot be fitted.

    Parameters
    ----------
    trials : list of (T_r, N) array
    seen : list of (T_r, N) bool array
    share : list of (T_r,) array
        Share of each bin that was recorded.
    settings : dict
    bin_width : float

    Raises
    ------
    Refusal
        Naming the trial, what was found and what is accepted.
    """
    if not (np.isfinite(bin_width) and bin_width > 0):
        raise Refusal("bin_width", f"found {bin_width}", "seconds, more than 0", "give the bin")
    if not trials:
        raise Refusal(WHERE, "no trial", "one or more", "check the epochs")
    for number, (y, used, recorded) in enumerate(zip(trials, seen, share, strict=True)):
        _check_trial(f"{WHERE}, trial {number}", y, used, recorded, settings["likelihood"])
    units = {y.shape[1] for y in trials}
    if len(units) > 1:
        fix = "give the same units in every trial"
        raise Refusal(WHERE, f"trials of {sorted(units)} units", "equal numbers of units", fix)
    if sum(len(y) for y in trials) < 2:
        raise Refusal(WHERE, "one bin", "two or more", "use shorter bins or longer epochs")
    scale = settings["lengthscale_s"]
    if scale and scale < bin_width:
        found = f"lengthscale_s {scale:g} s, below the bin of {bin_width:g} s"
        raise Refusal("settings", found, "a bin or more", "leave it empty, or use shorter bins")


def _check_trial(place: str, y: np.ndarray, used: np.ndarray, recorded: np.ndarray, likelihood):
    if y.ndim != 2 or 0 in y.shape:
        found = f"an array of shape {y.shape}"
        raise Refusal(place, found, "(bins, units), none of them zero", "check the binning")
    if used.shape != y.shape:
        found = f"observed has shape {used.shape}, counts {y.shape}"
        raise Refusal(place, found, "equal shapes", "give one flag per entry")
    if recorded.shape != (len(y),) or not np.isfinite(recorded).all() or (recorded < 0).any():
        found = f"exposure of shape {recorded.shape}, from {np.min(recorded, initial=0)}"
        raise Refusal(place, found, "one share of 0 or more per bin", "mend the exposure")
    values = y[used]
    if values.size == 0:
        raise Refusal(place, "no observed entry", "some observed entries", "check the mask")
    if not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).sum())
        fix = "mark them in observed, or drop them"
        raise Refusal(place, f"{bad} observed entries are NaN or infinite", "numbers", fix)
    if likelihood in ("poisson", "negative_binomial") and not looks_like_counts(values):
        fix = "give spike counts, or use likelihood='gaussian'"
        raise Refusal(place, "negative or fractional values", "whole counts", fix)
    if likelihood == "bernoulli" and not np.isin(values, (0, 1)).all():
        found, fix = f"values up to {values.max():g}", "use shorter bins, or poisson"
        raise Refusal(place, found, "0 or 1 in every bin", fix)
