"""Time per iteration of infinite GPFA against the size of the data, beside Elephant's GPFA."""

import time
from typing import Any

import numpy as np
import pandas as pd

from popflow.models.infinite_gpfa import InfiniteGPFA
from popflow.runtime.seeds import generator

BIN_S, FACTORS, TRUE_FACTORS = 0.02, 10, 5
UNITS, BINS = 100, 5000
ITERATIONS = 3
PIECE_BINS = 250


def population(bins: int, units: int, seed: int = 0) -> np.ndarray:
    """Draw counts of smooth factors, half of the time off, (bins, units) int16."""
    from scipy.ndimage import gaussian_filter1d

    draw = generator(seed, "scaling")
    f = gaussian_filter1d(draw.normal(size=(bins, TRUE_FACTORS)), 25, axis=0)
    on = gaussian_filter1d(draw.normal(size=(bins, TRUE_FACTORS)), 200, axis=0) > 0
    loadings = 0.8 * draw.normal(size=(TRUE_FACTORS, units))
    gated = on * f / f.std(0)
    counts = np.empty((bins, units), np.int16)
    for start in range(0, bins, 20_000):
        rows = slice(start, start + 20_000)
        counts[rows] = draw.poisson(5 * BIN_S * np.exp(np.clip(gated[rows] @ loadings, -5, 3)))
    return counts


def seconds_per_iteration(counts: np.ndarray, kernel: str = "matern32") -> float:
    """Fit twice, for a few iterations and for twice as many: the difference has no start in it."""
    elapsed = []
    for iterations in (ITERATIONS, 2 * ITERATIONS):
        settings = {"iterations": iterations, "moves": False, "n_factors": FACTORS}
        model = InfiniteGPFA(kernel=kernel)
        model.settings |= settings
        began = time.monotonic()
        model.fit(counts, BIN_S)
        elapsed.append(time.monotonic() - began)
    return (elapsed[1] - elapsed[0]) / ITERATIONS


def elephant_seconds(counts: np.ndarray) -> float:
    """Time an EM iteration of Elephant's GPFA with as many factors, on pieces of 5 s."""
    from popflow.evaluate.placecells import fit_elephant

    elapsed = []
    for iterations in (2, 4):
        began = time.monotonic()
        fit_elephant(np.sqrt(counts.astype(float)), PIECE_BINS, BIN_S, FACTORS, iterations)
        elapsed.append(time.monotonic() - began)
    return (elapsed[1] - elapsed[0]) / 2


def measure_scaling(scaling: dict[str, Any]) -> pd.DataFrame:
    """Measure against bins (at 100 units) and units (at 5,000 bins).

    Parameters
    ----------
    scaling : dict
        bins, units (lists) and elephant_up_to (bins) of config/experiments.yaml.

    Returns
    -------
    DataFrame
        against, method, bins, units, seconds.
    """
    seconds_per_iteration(population(500, 20))  # compiles the loops
    sizes = [("bins", bins, UNITS) for bins in scaling["bins"]]
    sizes += [("units", BINS, units) for units in scaling["units"]]
    rows = []
    for against, bins, units in sizes:
        counts = population(bins, units)
        row = {"against": against, "bins": bins, "units": units}
        rows.append(row | {"method": "infinite GPFA", "seconds": seconds_per_iteration(counts)})
        if against == "bins" and bins <= scaling["elephant_up_to"]:
            seconds = elephant_seconds(counts)
            rows.append(row | {"method": "GPFA (Elephant)", "seconds": seconds})
    return pd.DataFrame(rows)


def slope(table: pd.DataFrame, against: str, method: str = "infinite GPFA") -> float:
    """Slope of log seconds against log size."""
    own = table[(table["against"] == against) & (table["method"] == method)]
    return float(np.polyfit(np.log(own[against]), np.log(own["seconds"]), 1)[0])
