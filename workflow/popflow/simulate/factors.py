"""Populations driven by smooth factors that are switched on and off, with the truth beside them.

The generator is ours; its length-scales, noise and switching rate follow the calibration runs that
docs/placecells.md quotes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from popflow.runtime.seeds import generator


@dataclass
class Factors:
    """A simulated population.

    Attributes
    ----------
    y : (T, N) array
        Counts, or signals with Gaussian noise.
    masks, factors : (T, D) array
        z and f; the population follows z · f.
    loadings : (N, D) array
    bin_s : float
    """

    y: np.ndarray
    masks: np.ndarray
    factors: np.ndarray
    loadings: np.ndarray
    bin_s: float


def simulate_factors(scenario: dict[str, Any], seed: int) -> Factors:
    """Draw a population.

    Parameters
    ----------
    scenario : dict
        Of ``workflow/schemas/experiments-infinite_gpfa.schema.yaml``: bins, units, bin_s,
        lengthscales_s, active, likelihood, rate_hz, noise_variance, size.
    seed : int
    """
    draw = generator(seed, "factors")
    t = np.arange(scenario["bins"]) * scenario["bin_s"]
    f = np.column_stack([_smooth(t, scale, draw) for scale in scenario["lengthscales_s"]])
    c = draw.normal(size=(scenario["units"], f.shape[1]))
    z = _masks(scenario["active"], len(t), f.shape[1], draw)
    if scenario["active"] == "duplicate":
        # Two factors with the loadings of one, on in turn: one factor explains both.
        c[:, 1], z[:, 1], f[:, 1] = c[:, 0], 1 - z[:, 0], f[:, 0]
    h = (z * f) @ c.T
    return Factors(_observe(h, scenario, draw), z, f, c, scenario["bin_s"])


def _smooth(t: np.ndarray, lengthscale: float, draw: np.random.Generator) -> np.ndarray:
    """Draw a squared-exponential process of variance 1 on an even grid, by its spectrum."""
    step, count = t[1] - t[0], 2 ** int(np.ceil(np.log2(2 * len(t) + 12 * lengthscale)))
    lag = np.minimum(np.arange(count), count - np.arange(count)) * step
    power = np.maximum(np.fft.rfft(np.exp(-0.5 * (lag / lengthscale) ** 2)).real, 0.0)
    noise = np.fft.rfft(draw.normal(size=count))
    return np.fft.irfft(noise * np.sqrt(power), count)[: len(t)]


def _masks(on: str, bins: int, factors: int, draw: np.random.Generator) -> np.ndarray:
    """Draw when factors are on, (T, D)."""
    if on == "all":
        return np.ones((bins, factors))
    if on == "nested":
        # The first alone, the first two, the second alone, in blocks; the others switch.
        z = _switching(bins, factors, 0.01, draw)
        phase = (np.arange(bins) // max(1, bins // 9)) % 3
        z[:, 0], z[:, 1] = phase != 2, phase != 0
        return z
    z = _switching(bins, factors, 0.01, draw)
    if on == "rare":
        z[:, 0] = 0.0
        length = max(1, bins // 200)
        for start in draw.permutation(bins // length - 1)[:4] * length:
            z[start : start + length, 0] = 1.0
    return z


def _switching(bins: int, factors: int, hazard: float, draw: np.random.Generator) -> np.ndarray:
    changes = (draw.random((bins, factors)) < hazard).cumsum(0)
    return ((changes + draw.integers(0, 2, factors)) % 2).astype(float)


def _observe(h: np.ndarray, scenario: dict[str, Any], draw: np.random.Generator) -> np.ndarray:
    if scenario["likelihood"] == "gaussian":
        return h + draw.normal(0, np.sqrt(scenario["noise_variance"]), h.shape)
    rate = scenario["rate_hz"] * scenario["bin_s"] * np.exp(np.clip(h, -6.0, 4.0))
    if scenario["likelihood"] == "negative_binomial":
        rate = draw.gamma(scenario["size"], rate / scenario["size"])
    return draw.poisson(rate)
