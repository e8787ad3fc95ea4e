"""Figures of the experiments with known factors."""

from pathlib import Path

import numpy as np
import pandas as pd

from popflow.evaluate.scaling import slope
from popflow.evaluate.statistics import mean_interval
from popflow.figures import style

LABELS = {
    "default": "infinite GPFA",
    "no_mask": "without masks",
    "ard": "ARD instead of masks",
    "taylor2": "Taylor expectation",
    "dispersed": "negative binomial",
}
PANELS = {
    "gain": "log-likelihood above the model\nwithout masks (nats per entry)",
    "correlation": "|correlation| with the truth",
    "mask AUC, strong": "AUC of the masks\nwhere factors are strong",
    "factors": "effective number of factors",
}


def with_gains(table: pd.DataFrame) -> pd.DataFrame:
    """Add the metric ``gain``: held-out log-likelihood minus that of the fit without masks."""
    keys = ["scenario", "seed", "n_factors"]
    likelihood = table[table["metric"] == "log-likelihood"]
    base = likelihood[likelihood["variant"] == "no_mask"].set_index(keys)["value"]
    gains = likelihood[likelihood["variant"] != "no_mask"].copy()
    gains["value"] -= base.reindex(pd.MultiIndex.from_frame(gains[keys])).to_numpy()
    return pd.concat([table, gains.assign(metric="gain")], ignore_index=True)


def draw_scenarios(table: pd.DataFrame, png: str | Path) -> None:
    """Draw every scenario and truncation in a row, every metric in a column."""
    table = with_gains(table)
    rows = list(table.groupby(["scenario", "n_factors"], sort=False).groups)
    variants = [v for v in LABELS if v in set(table["variant"])]
    colours = style.colour_map(variants)
    fig = style.figure("double", 24 + 9 * len(rows))
    axes = fig.subplots(1, len(PANELS), sharey=True)
    summary = []
    for ax, (metric, label) in zip(axes, PANELS.items(), strict=True):
        own = table[table["metric"] == metric]
        for place, (scenario, d) in enumerate(rows):
            for number, variant in enumerate(variants):
                chosen = own["variant"].eq(variant) & own["scenario"].eq(scenario)
                values = own[chosen & own["n_factors"].eq(d)]["value"].to_numpy()
                if not len(values):
                    continue
                y = place + (number - (len(variants) - 1) / 2) * 0.8 / len(variants)
                mean, low, high = mean_interval(values)
                ax.plot(values, np.full(len(values), y), ".", color=colours[variant], markersize=2)
                ax.plot([low, high], [y, y], color=colours[variant], linewidth=1.2)
                ax.plot(mean, y, "o", color=colours[variant], markersize=3.5)
                row = {"scenario": scenario, "n_factors": d, "variant": variant, "metric": metric}
                summary.append(row | {"mean": mean, "low": low, "high": high, "n": len(values)})
        ax.set(xlabel=label)
        for edge in np.arange(len(rows) - 1) + 0.5:
            ax.axhline(edge, color="0.9", linewidth=0.5)
    axes[0].axvline(0, color="0.4", linestyle="--", linewidth=0.7)
    axes[2].axvline(0.5, color="0.4", linestyle="--", linewidth=0.7)
    _mark_truth(axes[3], rows)
    names = [f"{scenario.replace('_', ' ')}, D = {d}" for scenario, d in rows]
    axes[0].set_yticks(range(len(rows)), names)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    handles = [axes[0].plot([], [], "o", color=colours[v], label=LABELS[v])[0] for v in variants]
    fig.legend(handles=handles, loc="outside upper center", ncols=len(variants))
    style.save(fig, png, pd.DataFrame(summary))


def _mark_truth(ax, rows) -> None:
    """Draw the true number of factors of every scenario."""
    for place, (scenario, _) in enumerate(rows):
        truth = 2 if scenario == "duplicate" else 3
        ax.plot([truth, truth], [place - 0.45, place + 0.45], color="0.4", linestyle="--", lw=0.8)


def draw_scaling(table: pd.DataFrame, png: str | Path) -> None:
    """Draw seconds per iteration against bins and units, on logarithmic axes."""
    fig = style.figure("double", 65)
    axes = fig.subplots(1, 2)
    colours = style.colour_map(["infinite GPFA", "GPFA (Elephant)"])
    labels = {"bins": "bins (100 units, 10 factors)", "units": "units (5,000 bins, 10 factors)"}
    for ax, (against, label) in zip(axes, labels.items(), strict=True):
        own = table[table["against"] == against]
        for method, rows in own.groupby("method", sort=False):
            told = (
                f"{method}, slope {slope(table, against, method):.2f}" if len(rows) > 1 else method
            )
            ax.plot(rows[against], rows["seconds"], "o-", color=colours[method], label=told)
        ax.set(xscale="log", yscale="log", xlabel=label, ylabel="seconds per iteration")
        ax.legend()
    style.save(fig, png, table)
