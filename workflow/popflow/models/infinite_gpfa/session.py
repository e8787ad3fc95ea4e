"""Fit infinite GPFA to a prepared session, and write its posterior beside the clock."""

from pathlib import Path
from typing import Any

import numpy as np

from popflow.models.infinite_gpfa.model import InfiniteGPFA
from popflow.runtime.files import atomic
from popflow.runtime.refusal import Refusal


def hold_out_of(session: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Give the hold-out mask that a fit with a seed uses, (T, N) bool."""
    return session["held_out"][seed % len(session["held_out"])]


def scored_of(session: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Give the held-out entries that are scored, (T, N) bool."""
    return session["scored"][seed % len(session["scored"])]


def activity_of(session: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Give what is fitted and scored, (T, N): counts, or traces in standard deviations.

    Means and standard deviations of traces come from the entries that the seed leaves.
    """
    if session["kind"] == "spikes":
        return session["counts"]
    seen = ~hold_out_of(session, seed) & session["used"][:, None]
    values = np.where(seen, session["counts"], np.nan)
    mean, spread = np.nanmean(values, 0), np.nanstd(values, 0)
    return (session["counts"] - mean) / np.where(spread > 0, spread, 1.0)


def fit_session(
    session: dict[str, np.ndarray],
    settings: dict[str, Any],
    seed: int,
    checkpoints: str | Path | None = None,
    title: str = "infinite GPFA",
) -> InfiniteGPFA:
    """Fit to the entries that the seed's hold-out mask leaves.

    Parameters
    ----------
    session : dict
        Of `prepare.placecells.read_prepared`.
    settings : dict
        The preset; the likelihood ``auto`` is poisson for spikes and gaussian for traces.
    seed : int
        Of the start, and of the hold-out mask (modulo their number).

    Raises
    ------
    Refusal
        For traces under a likelihood of counts.
    """
    chosen = {"spikes": "poisson", "traces": "gaussian"}[session["kind"]]
    if settings["likelihood"] == "auto":
        settings = settings | {"likelihood": chosen}
    if session["kind"] == "traces" and settings["likelihood"] != "gaussian":
        found = f"calcium traces under the likelihood {settings['likelihood']}"
        raise Refusal("preset", found, "auto or gaussian", "set likelihood: auto")
    observed = ~hold_out_of(session, seed) & session["used"][:, None]
    model = InfiniteGPFA(settings=settings, seed=seed)
    return model.fit(
        activity_of(session, seed),
        session["bin_s"],
        observed,
        session["exposure"],
        [session["t"]],
        checkpoints,
        title,
    )


def write_posterior(model: InfiniteGPFA, session: dict[str, np.ndarray], path: str | Path) -> None:
    """Write posterior.h5: t, epoch, label, and per bin and factor mask, mean, variance, E[z f]."""
    import h5py

    arrays = {
        "t": session["t"],
        "epoch": session["epoch"],
        "label": np.char.encode(session["label"], "utf-8"),
        "mask_probability": model.mask_probability_,
        "factor_mean": model.factor_mean_,
        "factor_variance": model.factor_variance_,
        "gated_mean": model.gated_mean_,
        "loadings": model.loadings_,
        "unit": np.char.encode(session["unit"], "utf-8"),
    }
    with atomic(path) as temporary, h5py.File(temporary, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, track_times=False)
