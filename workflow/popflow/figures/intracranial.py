"""Figures of intracranial datasets: electrodes, pretraining, objectives, decoding."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from popflow.evaluate.statistics import mean_interval
from popflow.figures import comparison, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from popflow.prepare.intracranial import Session

VIEWS = (
    ("y", "z", "from the left", "posterior – anterior, y (mm)", "inferior – superior, z (mm)"),
    ("x", "z", "from the front", "left – right, x (mm)", "inferior – superior, z (mm)"),
    ("x", "y", "from above", "left – right, x (mm)", "posterior – anterior, y (mm)"),
)
NAMES = {
    "popt": "PopT, fine-tuned",
    "popt not_pretrained": "PopT, not pretrained",
    "popt_frozen": "PopT frozen, linear on CLS",
    "popt_frozen not_pretrained": "random PopT, linear on CLS",
    "popt_shuffled_positions": "PopT, positions shuffled",
    "popt_shuffled_positions not_pretrained": "not pretrained, positions shuffled",
    "linear_concatenated": "linear, all channels",
    "linear_squared": "linear, squared features",
    "linear_mean": "linear, mean over channels",
    "linear_spectrogram": "linear, spectrogram",
    "circular_shift_null": "labels rotated in time (null)",
    "kernel_score": "closeness × likeness (untrained)",
}
OBJECTIVE_NAMES = NAMES | {"popt": "PopT, pretrained"}
METRIC_LABELS = {"auc": "ROC-AUC", "r": "correlation r"}


def draw_electrodes(sessions: "list[Session]", scores: pd.DataFrame, png: str | Path) -> None:
    """Draw the electrodes on three projections: by region, and by what each decodes alone.

    Parameters
    ----------
    sessions : list of Session
    scores : DataFrame
        session, task, name, metric, value: of a linear probe on one channel.
    png : path
    """
    places = pd.concat([s.electrodes.assign(session=s.name) for s in sessions], ignore_index=True)
    regions = sorted(places["region"].astype(str).unique())
    by_region = len(regions) > 1
    groups = places["region" if by_region else "shaft"].astype(str)
    tasks = list(dict.fromkeys(scores["task"]))
    fig = style.figure("double", 52 * (1 + len(tasks)))
    ratios = {"width_ratios": [1, 1, 1, 0.3]}
    axes = fig.subplots(1 + len(tasks), 4, squeeze=False, gridspec_kw=ratios)
    for ax in axes[:, 3]:
        ax.axis("off")
    colours = style.colour_map(sorted(groups.unique()))
    for ax, view in zip(axes[0, :3], VIEWS, strict=True):
        for group, colour in colours.items():
            _scatter(ax, places[groups == group], view, color=colour, label=group)
        ax.set_title(view[2])
    handles, labels = axes[0, 0].get_legend_handles_labels()
    title = "region" if by_region else "shaft"
    axes[0, 3].legend(handles, labels, title=title, loc="center left", borderpad=0)
    for row, task in zip(axes[1:], tasks, strict=True):
        one = scores[scores["task"] == task].merge(places, on=["session", "name"])
        metric = METRIC_LABELS[one["metric"].iloc[0]]
        middle = 0.5 if one["metric"].iloc[0] == "auc" else 0.0
        reach = max(0.05, float((one["value"] - middle).abs().max()))
        limits = {"cmap": style.DIVERGING, "vmin": middle - reach, "vmax": middle + reach}
        for ax, view in zip(row[:3], VIEWS, strict=True):
            _scatter(ax, places, view, color="0.85")
            order = one.reindex((one["value"] - middle).abs().sort_values().index)
            drawn = _scatter(ax, order, view, c=order["value"], edgecolor="0.4", **limits)
        row[0].set_title(f"{task}: one electrode alone")
        count = one["session"].nunique()
        label = f"{metric} of {task}\n{len(one)} electrodes, {count} session{'s'[: count - 1]}"
        fig.colorbar(drawn, cax=row[3].inset_axes([0.0, 0.05, 0.15, 0.9]), label=label)
    table = places.merge(
        scores.rename(columns={"value": "score"}), on=["session", "name"], how="left"
    )
    style.save(fig, png, table)


def _scatter(ax: "Axes", places: pd.DataFrame, view: tuple[str, ...], **options: Any) -> Any:
    """Draw one projection with equal axes."""
    across, up, _, xlabel, ylabel = view
    options = {"s": 11, "linewidth": 0.3} | options
    drawn = ax.scatter(places[across], places[up], **options)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.set_aspect("equal", adjustable="datalim")
    return drawn


def draw_pretraining(histories: dict[tuple[str, int], pd.DataFrame], png: str | Path) -> None:
    """Draw loss and held-out AUC of both objectives over the steps, a line per seed.

    Parameters
    ----------
    histories : dict of (variant, seed) to DataFrame
        history.tsv of each fit; those without a step are left out.
    png : path
    """
    trained = {key: frame for key, frame in histories.items() if len(frame)}
    fig = style.figure("double", 100)
    axes = fig.subplots(2, 2, sharex=True)
    variants = list(dict.fromkeys(variant for variant, _ in trained))
    colours = style.colour_map(variants)
    tables = []
    for (variant, seed), history in trained.items():
        tables.append(history.assign(variant=variant, seed=seed))
        for column, objective in enumerate(("ensemble", "channel")):
            first = seed == min(s for v, s in trained if v == variant)
            options = {"color": colours[variant], "alpha": 0.8, "linewidth": 0.9}
            options["label"] = variant if first else None
            axes[0, column].plot(history["step"], history[objective], **options)
            name = f"validation_{objective}_auc"
            if name in history:
                axes[1, column].plot(history["step"], history[name], **options)
    for column, (title, chance) in enumerate(
        [("Ensemble: neighbouring moments?", 0.693), ("Channel: activity swapped?", 0.693)]
    ):
        axes[0, column].set_title(title)
        axes[0, column].axhline(chance, color="0.4", linestyle="--", linewidth=0.7)
        axes[0, column].set_ylabel("training loss (nats)")
        axes[1, column].axhline(0.5, color="0.4", linestyle="--", linewidth=0.7)
        axes[1, column].set_ylabel("ROC-AUC, validation time")
        axes[1, column].set_xlabel("step")
        lowest = min(0.4, *(np.nanmin(line.get_ydata()) for line in axes[1, column].lines))
        axes[1, column].set_ylim(np.floor(lowest * 10) / 10, 1.0)
    seeds = len({seed for _, seed in trained})
    axes[0, 1].legend(title=f"variant ({seeds} seeds, a line each)", loc="best")
    table = pd.concat(tables) if tables else pd.DataFrame({"step": []})
    style.save(fig, png, table)


def draw_objectives(evaluation: pd.DataFrame, png: str | Path) -> None:
    """Draw both objectives on held-out time, beside the untrained score and the controls."""
    kinds = {
        "ensemble_objective": "ensemble ROC-AUC,\nheld-out time",
        "channel_objective": "channel ROC-AUC,\nheld-out time",
        "ensemble_objective_unseen_subject": "ensemble ROC-AUC,\nunseen subject",
        "channel_objective_unseen_subject": "channel ROC-AUC,\nunseen subject",
    }
    there = set(evaluation["task"])
    panels = [
        comparison.Panel(task, "auc", label, 0.5) for task, label in kinds.items() if task in there
    ]
    rows = evaluation[evaluation["task"].isin(kinds)]
    models = ("popt", "popt_frozen")
    comparison.draw(rows, panels, png, models=models, names=OBJECTIVE_NAMES)


def draw_comparison(evaluation: pd.DataFrame, png: str | Path) -> None:
    """Draw decoding of every method, mean over sessions and folds, interval over seeds."""
    rows = decoding_rows(evaluation)
    kinds = rows[["task", "metric"]].drop_duplicates().itertuples(index=False)
    panels = [
        comparison.Panel(task, metric, f"{METRIC_LABELS[metric]} of {task}", _chance(metric))
        for task, metric in kinds
    ]
    models = ("popt", "popt_frozen")
    # The rotations are no seeds: their mean is drawn.
    rows.loc[rows["method"] == "circular_shift_null", "seed"] = np.nan
    comparison.draw(rows, panels, png, models=models, names=NAMES)


def decoding_rows(evaluation: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of decoding tasks, with the session taken from `fold`."""
    objective = evaluation["task"].str.contains("_objective")
    rows = evaluation[~objective].copy()
    rows["session"] = rows["fold"].astype(str).str.replace(r"-\d+$", "", regex=True)
    null = rows["method"] == "circular_shift_null"
    rows.loc[null, "session"] = rows.loc[null, "fold"]
    return rows


def draw_decoding(evaluation: pd.DataFrame, roles: dict[str, str], png: str | Path) -> None:
    """Draw decoding per session: a column per session, a mark per method.

    Parameters
    ----------
    evaluation : DataFrame
    roles : dict of str to str
        Role of each session; those that no model was pretrained on are marked.
    png : path
    """
    rows = decoding_rows(evaluation)
    rows["variant"] = rows["variant"].fillna("")
    tasks = list(dict.fromkeys(rows["task"]))
    if not tasks:
        style.say(png, "No task was decoded: the sessions hold none of its events.", rows)
        return
    methods = list(dict.fromkeys(zip(rows["method"], rows["variant"], strict=True)))
    table = _per_session(rows)
    fig = style.figure("double", 26 + 40 * len(tasks))
    axes = fig.subplots(len(tasks), 1, squeeze=False)[:, 0]
    colours, marks = style.colour_map(methods), "oDsv^<>PX*pd"
    colours[("circular_shift_null", "")] = style.NEUTRAL
    sessions = list(dict.fromkeys(rows["session"]))
    for ax, task in zip(axes, tasks, strict=True):
        here = table[table["task"] == task]
        for number, method in enumerate(methods):
            offset = (number - (len(methods) - 1) / 2) * 0.8 / len(methods)
            mine = here[(here["method"] == method[0]) & (here["variant"] == method[1])]
            at = [sessions.index(name) + offset for name in mine["session"]]
            options = {"color": colours[method], "linestyle": "none", "markersize": 4}
            label = comparison._name(*method, NAMES)
            ax.vlines(at, mine["low"], mine["high"], color=colours[method], linewidth=1.0)
            ax.plot(at, mine["mean"], marks[number % len(marks)], label=label, **options)
        metric = here["metric"].iloc[0]
        ax.axhline(_chance(metric), color="0.4", linestyle="--", linewidth=0.7)
        counts = [int(here[here["session"] == name]["n"].max()) for name in sessions]
        unseen = [", unseen" if roles.get(name) == "held_out" else "" for name in sessions]
        labels = [f"{s}{u}\nn = {n}" for s, u, n in zip(sessions, unseen, counts, strict=True)]
        ax.set_xticks(range(len(sessions)), labels)
        ax.set_xlim(-0.6, len(sessions) - 0.4)
        ax.set_ylabel(f"{METRIC_LABELS[metric]} of {task}")
    axes[0].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    style.save(fig, png, table)


def _per_session(rows: pd.DataFrame) -> pd.DataFrame:
    """Average the folds of each seed; give mean and t interval over seeds per session."""
    keys = ["session", "task", "metric", "method", "variant"]
    table = []
    for key, group in rows.groupby(keys, sort=False):
        per_seed = group.groupby(group["seed"].fillna(-1))["value"].mean()
        mean, low, high = mean_interval(per_seed.to_numpy())
        if key[3] == "circular_shift_null":
            low, high = np.quantile(per_seed, [0.025, 0.975])
        row = dict(zip(keys, key, strict=True))
        tested = group.drop_duplicates("fold")["n"].sum()
        row |= {"mean": mean, "low": low, "high": high, "repeats": len(per_seed), "n": tested}
        table.append(row)
    return pd.DataFrame(table)


def _chance(metric: str) -> float:
    return 0.5 if metric == "auc" else 0.0
