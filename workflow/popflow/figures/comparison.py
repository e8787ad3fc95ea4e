"""The method comparison: every method on the same splits, with its interval."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from popflow.evaluate.statistics import mean_interval
from popflow.figures import style


@dataclass
class Panel:
    """One panel of a comparison.

    Attributes
    ----------
    task, metric : str
        Select the rows of evaluation.tsv.
    label : str
        Axis label, with its unit.
    chance : float or None
        Where a dashed line is drawn: chance, or the constant predictor.
    """

    task: str
    metric: str
    label: str
    chance: float | None = None


def summarise(evaluation: pd.DataFrame) -> pd.DataFrame:
    """Average folds within a seed, then give mean and t interval over seeds.

    Parameters
    ----------
    evaluation : DataFrame
        evaluation.tsv.

    Returns
    -------
    DataFrame
        task, metric, method, variant, mean, low, high, repeats (seeds), n (test items).
    """
    keys = ["task", "metric", "method", "variant"]
    rows = []
    frame = evaluation.copy()
    frame["variant"] = frame["variant"].fillna("")
    frame["seed"] = frame["seed"].astype(object).where(frame["seed"].notna(), "")
    for key, group in frame.groupby(keys, sort=False):
        values = group.groupby("seed", sort=False)["value"].mean().to_numpy()
        mean, low, high = mean_interval(values)
        row = dict(zip(keys, key, strict=True))
        row |= {"mean": mean, "low": low, "high": high, "repeats": len(values)}
        rows.append(row | {"n": group["n"].max()})
    return pd.DataFrame(rows)


def draw(
    evaluation: pd.DataFrame,
    panels: list[Panel],
    png_path: str | Path,
    models: tuple[str, ...] = ("maestro", "urlost", "popt", "infinite_gpfa"),
    names: dict[str, str] | None = None,
) -> None:
    """Draw a panel per task, a row per method: mean, 95 % interval over seeds, seeds as dots.

    Parameters
    ----------
    evaluation : DataFrame
        evaluation.tsv of one dataset.
    panels : list of Panel
    png_path : path
        PDF and TSV are written beside it.
    models : tuple of str
        Methods drawn in colour; all others are baselines, in grey.
    names : dict, optional
        Readable names by "method" or "method variant".
    """
    names = names or {}
    parts = [
        evaluation[(evaluation["task"] == p.task) & (evaluation["metric"] == p.metric)]
        for p in panels
    ]
    if not any(len(part) for part in parts):
        style.say(png_path, "Nothing to compare: no label or task was scored.", evaluation[:0])
        return
    wanted = pd.concat(parts)
    table = summarise(wanted)
    order = list(dict.fromkeys(zip(table["method"], table["variant"], strict=True)))
    order.sort(key=lambda pair: (pair[0] not in models, pair[1] != "default"))
    height = 14 + 4.6 * len(order)
    fig = style.figure("double", max(height, 45))
    axes = fig.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    labels = [_name(method, variant, names) for method, variant in order]
    for ax, panel in zip(axes, panels, strict=True):
        _panel(ax, wanted, table, panel, order, models)
        ax.set_yticks(range(len(order)), labels)
        ax.set_ylim(len(order) - 0.5, -0.5)
    style.save(fig, png_path, table)


def _name(method: str, variant: str, names: dict[str, str]) -> str:
    plain = method if variant in ("", "default") else f"{method} {variant}"
    return names.get(plain, plain.replace("_", " "))


def _panel(ax, rows, table, panel, order, models) -> None:
    """Fill one panel."""
    rows = rows[(rows["task"] == panel.task) & (rows["metric"] == panel.metric)]
    table = table[(table["task"] == panel.task) & (table["metric"] == panel.metric)]
    sizes, repeats = set(), set()
    for place, (method, variant) in enumerate(order):
        here = table[(table["method"] == method) & (table["variant"] == variant)]
        if here.empty:
            continue
        row = here.iloc[0]
        colour = style.NEUTRAL
        if method in models:
            colour = style.COLOURS[0] if variant in ("", "default") else style.COLOURS[4]
        own = rows[(rows["method"] == method) & (rows["variant"].fillna("") == variant)]
        seeds = own.groupby(own["seed"].astype(object).where(own["seed"].notna(), ""))["value"]
        dots = seeds.mean().to_numpy()
        spread = (np.arange(len(dots)) - (len(dots) - 1) / 2) * 0.12
        ax.plot(dots, place + spread, ".", color=colour, alpha=0.45, markersize=3, zorder=1)
        if np.isfinite(row["low"]):
            ax.plot([row["low"], row["high"]], [place] * 2, color=colour, linewidth=1.4, zorder=2)
        ax.plot(row["mean"], place, "o", color=colour, markersize=4, zorder=3)
        sizes.add(int(row["n"]))
        repeats.add(int(row["repeats"]))
    if panel.chance is not None:
        ax.axvline(panel.chance, color="0.4", linewidth=0.7, linestyle="--", zorder=0)
    ax.grid(axis="y", color="0.92", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(axis="y", length=0)
    noun = "seed" if _span(repeats) == "1" else "seeds"
    ax.set_xlabel(f"{panel.label}\nn = {_span(sizes)}, {_span(repeats)} {noun}")


def _span(values: set[int]) -> str:
    return (
        str(min(values)) if len(values) == 1 else f"{min(values)}–{max(values)}" if values else "0"
    )
