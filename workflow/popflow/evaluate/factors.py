"""Fits to simulated factors held against the truth: factors, masks, number, held-out likelihood."""

from typing import Any

import numpy as np
import pandas as pd

from popflow.evaluate.metrics import auroc
from popflow.inputs.config import preset
from popflow.models.infinite_gpfa import InfiniteGPFA
from popflow.runtime.seeds import generator

CALIBRATION_BINS = 5


def match_factors(found: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pair true factors with fitted ones by the correlation of z f (Hungarian matching).

    Parameters
    ----------
    found : (T, D) array
    truth : (T, K) array

    Returns
    -------
    partner : (K,) int array
        Fitted factor of every true one; -1 where there are too few.
    correlation : (K,) array
        Absolute; 0 without a partner.
    """
    from scipy.optimize import linear_sum_assignment

    def standard(x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(0)
        return centred / np.maximum(np.linalg.norm(centred, axis=0), 1e-12)

    similar = np.abs(standard(truth).T @ standard(found))
    rows, columns = linear_sum_assignment(-similar)
    partner, correlation = np.full(truth.shape[1], -1), np.zeros(truth.shape[1])
    partner[rows], correlation[rows] = columns, similar[rows, columns]
    return partner, correlation


def mask_scores(model: InfiniteGPFA, truth: Any, partner: np.ndarray) -> dict[str, float]:
    """AUC of the masks, over all bins and where the factor is strong, and their calibration.

    A factor is strong in a bin where |C_d| |f| exceeds 1, about the noise of a unit: where f is
    near zero, on and off look the same. A factor without a partner scores 0.5.
    """
    aucs, strong_aucs, shares, gaps = [], [], [], []
    for d, match in enumerate(partner):
        on = truth.masks[:, d] == 1
        if on.all() or not on.any():
            continue
        tau = model.mask_probability_[:, match] if match >= 0 else np.full(len(on), 0.5)
        strong = np.abs(truth.factors[:, d]) * np.linalg.norm(truth.loadings[:, d]) > 1
        aucs.append(auroc(on, tau))
        if 0 < on[strong].mean() < 1:
            strong_aucs.append(auroc(on[strong], tau[strong]))
        for low in np.arange(CALIBRATION_BINS) / CALIBRATION_BINS:
            here = strong & (tau >= low) & (tau < low + 1 / CALIBRATION_BINS + 1e-9)
            if here.any():
                gaps.append(abs(tau[here].mean() - on[here].mean()))
                shares.append(here.sum())
    if not aucs:
        return {}
    found = {"mask AUC": float(np.mean(aucs))}
    if strong_aucs:
        found["mask AUC, strong"] = float(np.mean(strong_aucs))
        found["calibration error"] = float(np.average(gaps, weights=shares))
    return found


def subspace_angle(a: np.ndarray, b: np.ndarray) -> float:
    """Largest principal angle in degrees between what the columns of b span and those of a."""
    from scipy.linalg import subspace_angles

    return float(np.degrees(subspace_angles(a, b)[: b.shape[1]].max()))


def run_scenario(
    name: str,
    scenario: dict[str, Any],
    truth: Any,
    common: dict[str, Any],
    held_out: float,
    seed: int,
) -> pd.DataFrame:
    """Fit every variant at every truncation to one draw of a scenario.

    Parameters
    ----------
    name : str
    scenario : dict
    truth : simulate.factors.Factors
        Its draw.
    common : dict
        Settings of the preset for all scenarios.
    held_out : float
        Share of the entries.
    seed : int

    Returns
    -------
    DataFrame
        scenario, seed, variant, n_factors, metric, value; the metrics are log-likelihood (nats per
        held-out entry), correlation, mask AUC, mask AUC strong, calibration error, factors, angle,
        elbo, iterations and seconds.
    """
    import time

    held = generator(seed, "held out").random(truth.y.shape) < held_out
    rows: list[dict[str, Any]] = []
    base = {"scenario": name, "seed": seed}
    for variant in scenario["fits"]:
        for d in scenario["n_factors"]:
            chosen = {"n_factors": d, "engine": "sparse"} | common | scenario["settings"]
            settings = preset("infinite_gpfa", "small", variant) | chosen
            if settings["likelihood"] == "auto":
                gaussian = scenario["likelihood"] == "gaussian"
                settings["likelihood"] = "gaussian" if gaussian else "poisson"
            began = time.monotonic()
            model = InfiniteGPFA(settings=settings, seed=seed).fit(truth.y, truth.bin_s, ~held)
            seconds = time.monotonic() - began
            for metric, value in _metrics(model, truth, held).items():
                row = {"variant": variant, "n_factors": d, "metric": metric, "value": value}
                rows.append(base | row)
            rows.append(
                base | {"variant": variant, "n_factors": d, "metric": "seconds", "value": seconds}
            )
    return pd.DataFrame(rows)


def _metrics(model: InfiniteGPFA, truth: Any, held: np.ndarray) -> dict[str, float]:
    """Score one fit."""
    partner, correlation = match_factors(model.gated_mean_, truth.masks * truth.factors)
    found = {
        "log-likelihood": model.score(truth.y, held, draws=100),
        "correlation": float(correlation.mean()),
        "factors": float(model.n_effective_),
        "angle": subspace_angle(model.loadings_, truth.loadings),
        "elbo": model.elbo_trace_[-1]["elbo"],
        "iterations": float(len(model.elbo_trace_)),
    }
    return found | (mask_scores(model, truth, partner) if model.settings["masks"] else {})
