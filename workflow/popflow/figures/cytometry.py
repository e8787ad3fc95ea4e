"""Figures of a cytometry cohort: quality, embedding, proportions, comparison, training."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from popflow.evaluate.metrics import mean_absolute_error, r_squared
from popflow.evaluate.statistics import mean_interval
from popflow.figures import comparison, style
from popflow.prepare.cytometry import NOT_LABELS

if TYPE_CHECKING:
    import anndata

#: Readable names of methods, for the comparison.
NAMES = {
    "maestro": "MAESTRO",
    "maestro untrained": "MAESTRO, untrained weights",
    "maestro_states": "MAESTRO, mean + SD of cell states",
    "maestro_states untrained": "the same, untrained weights",
    "constant": "constant",
    "mean_sd": "marker mean + SD",
    "quantiles": "marker quantiles",
    "mean_covariance": "marker mean + covariance",
    "kmeans_proportions": "k-means proportions",
}
#: Methods drawn in colour.
OURS = ("maestro", "maestro_states")


def draw_quality(qc: pd.DataFrame, cohort: pd.DataFrame, png_path: str | Path) -> None:
    """Draw how many events of each sample were kept, and why the others were not.

    Parameters
    ----------
    qc : DataFrame
        qc.tsv.
    cohort : DataFrame
        cohort.tsv, for the order of batches.
    png_path : path
    """
    fig = style.figure("double", 72)
    left, right = fig.subplots(1, 2, width_ratios=(3, 2))
    qc = qc.assign(batch=qc["batch"].fillna("").astype(str))
    order = qc.drop_duplicates("sample").sort_values(["batch", "sample"], kind="stable")
    place = {name: i for i, name in enumerate(order["sample"])}
    kept = qc[qc["outcome"] == "kept"]
    colours = style.colour_map(sorted(order["batch"].unique()))
    for batch, rows in kept.groupby("batch"):
        left.bar(
            [place[name] for name in rows["sample"]],
            rows["events"],
            width=1.0 if len(order) > 40 else 0.8,
            color=colours[batch],
            label=batch or "one batch",
        )
    out = [name for name in place if name not in set(cohort["sample"].astype(str))]
    if out:
        left.plot([place[name] for name in out], [0] * len(out), "x", color="k", label="excluded")
    left.set_xlabel(f"sample, by batch (n = {len(order)})")
    left.set_ylabel("cells kept")
    if len(order) <= 24:
        left.set_xticks(range(len(order)), order["sample"], rotation=60, ha="right", fontsize=6)
    else:
        left.set_xticks([])
    left.margins(x=0.01)
    left.set_ylim(0, kept["events"].max() * 1.25)
    left.legend(ncols=4, loc="upper left")
    _draw_reasons(right, qc, place, colours)
    style.panel_letter(left, "a")
    style.panel_letter(right, "b")
    style.save(fig, png_path, qc)


def _draw_reasons(ax, qc, place, colours) -> None:
    """Draw a row per reason, a dot per sample: share of the events that were dropped."""
    dropped = qc[qc["outcome"] != "kept"]
    reasons = list(dict.fromkeys(dropped["outcome"]))
    spread, labels = max(len(place) - 1, 1), []
    for row, reason in enumerate(reasons):
        rows = dropped[dropped["outcome"] == reason]
        shift = [place[name] / spread * 0.6 - 0.3 for name in rows["sample"]]
        tint = [colours[batch] for batch in rows["batch"]]
        ax.scatter(100 * rows["share"], row + np.array(shift), c=tint, s=4, linewidths=0)
        total = rows["events"].sum()
        broken = reason.replace(" on ", "\non ")
        labels.append(f"{broken}\n{total:,} events")
    ax.set_yticks(range(len(reasons)), labels)
    ax.set_ylim(len(reasons) - 0.5, -0.5)
    ax.set_xlabel("events dropped (% of a sample)")
    ax.set_xlim(left=-0.02 * max(100 * dropped["share"].max(), 0.1))
    ax.grid(axis="x", color="0.92", linewidth=0.6)
    ax.set_axisbelow(True)


def draw_embedding(embeddings: "dict[str, anndata.AnnData]", png_path: str | Path) -> None:
    """Draw the first two principal components of sample vectors, coloured by batch and labels.

    Parameters
    ----------
    embeddings : dict of str to AnnData
        By variant, e.g. default and untrained; a row of panels each. Labels stand in obs.
    png_path : path
    """
    fig = style.figure("double", 14 + 40 * len(embeddings))
    obs = next(iter(embeddings.values())).obs
    labels = [c for c in obs if c not in NOT_LABELS and 1 < obs[c].nunique() <= 8]
    shown = [*["batch"] * (obs["batch"].nunique() > 1), *labels][:5] or ["split"]
    axes = fig.subplots(len(embeddings), len(shown), squeeze=False)
    tables = []
    for row, (title, adata) in zip(axes, embeddings.items(), strict=True):
        points, explained = _components(np.asarray(adata.X, float))
        table = pd.DataFrame(points, columns=["pc1", "pc2"]).assign(sample=list(adata.obs_names))
        for ax, label in zip(row, shown, strict=True):
            values = adata.obs[label].astype(str).to_numpy()
            colours = style.colour_map(sorted(set(values)))
            for value, colour in colours.items():
                here = values == value
                name = f"{value} ({here.sum()})"
                ax.plot(*points[here].T, ".", color=colour, alpha=0.8, markersize=4, label=name)
            ax.set_xlabel(f"PC1 ({explained[0]:.0%})")
            ax.set_xticks([])
            ax.set_yticks([])
            if ax in axes[0]:
                ax.set_title(label.replace("_", " "))
                place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13)}
                ax.legend(**place, handletextpad=0.1, labelspacing=0.25)
            table[label] = values
        name = {"default": "MAESTRO", "untrained": "untrained weights"}.get(title, title)
        row[0].set_ylabel(f"{name}\nPC2 ({explained[1]:.0%})")
        tables.append(table.assign(fit=title))
    style.save(fig, png_path, pd.concat(tables, ignore_index=True))


def _components(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Project on the first two principal components, signs fixed; give the share of variance."""
    centred = z - z.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    points = u[:, :2] * s[:2]
    points *= np.sign(points[np.abs(points).argmax(axis=0), [0, 1]])
    return points, s[:2] ** 2 / max((s**2).sum(), 1e-30)


def draw_proportions(predictions: pd.DataFrame, png_path: str | Path) -> None:
    """Draw predicted against gated proportions, a panel per cell type.

    Parameters
    ----------
    predictions : DataFrame
        predictions.tsv; rows of MAESTRO's default variant, or else its first, and of its first
        seed are drawn.
    png_path : path
    """
    rows = predictions[
        (predictions["method"] == "maestro") & (predictions["task"] == "proportions")
    ]
    variants = rows["variant"].unique().tolist()
    rows = rows[rows["variant"] == ("default" if "default" in variants else variants[0])]
    rows = rows[rows["seed"] == rows["seed"].min()]
    types = rows.groupby("target")["truth"].mean().sort_values(ascending=False).index.tolist()
    columns = min(6, len(types))
    lines = -(-len(types) // columns)
    fig = style.figure("double", 12 + 32 * lines)
    axes = np.ravel(fig.subplots(lines, columns, squeeze=False))
    for ax, name in zip(axes, types, strict=False):
        truth = 100 * rows.loc[rows["target"] == name, "truth"].to_numpy()
        predicted = 100 * rows.loc[rows["target"] == name, "predicted"].to_numpy()
        low, high = min(truth.min(), predicted.min(), 0), max(truth.max(), predicted.max()) * 1.05
        ax.plot([low, high], [low, high], color="0.6", linewidth=0.7, zorder=0)
        ax.plot(truth, predicted, ".", color=style.COLOURS[0], markersize=2.5, alpha=0.6)
        ax.set(xlim=(low, high), ylim=(low, high), aspect="equal")
        ax.locator_params(nbins=4)
        r2, mae = r_squared(truth, predicted), mean_absolute_error(truth, predicted)
        ax.set_title(name)
        text = f"R² {r2:.2f}\nMAE {mae:.1f} %"
        ax.text(0.03, 0.98, text, va="top", fontsize=6, transform=ax.transAxes)
    for ax in axes[len(types) :]:
        ax.set_axis_off()
    fig.supxlabel(f"gated proportion (% of cells), n = {rows['sample'].nunique()} samples", size=7)
    fig.supylabel("predicted out of fold (% of cells)", size=7)
    style.save(fig, png_path, rows)


def draw_comparison(evaluation: pd.DataFrame, png_path: str | Path) -> None:
    """Draw all methods: proportions where cells are gated, phenotypes, batch.

    Parameters
    ----------
    evaluation : DataFrame
        evaluation.tsv.
    png_path : path
    """
    if "accuracy_low" in set(evaluation["metric"]):
        _draw_few(evaluation, png_path)
        return
    panels = []
    found = set(zip(evaluation["task"], evaluation["metric"], strict=True))
    if ("proportions", "r2") in found:
        panels.append(comparison.Panel("proportions", "r2", "proportions, R²", 0.0))
    phenotypes = sorted({task for task, _ in found if task.startswith("phenotype_")})
    for task in phenotypes[:4]:
        label = task.removeprefix("phenotype_").replace("_", " ")
        panels.append(comparison.Panel(task, "auroc", f"{label},\nAUROC", 0.5))
    if ("batch", "auroc") in found:
        panels.append(comparison.Panel("batch", "auroc", "batch (lower is\nbetter), AUROC", 0.5))
    comparison.draw(evaluation, panels, png_path, OURS, _all_names(evaluation))


def _all_names(evaluation: pd.DataFrame) -> dict[str, str]:
    """Add names of variants that have none."""
    names = dict(NAMES)
    pairs = evaluation[["method", "variant"]].drop_duplicates()
    for method, variant in zip(pairs["method"], pairs["variant"].fillna(""), strict=True):
        if variant not in ("", "default"):
            names.setdefault(f"{method} {variant}", f"{NAMES[method]}, {variant.replace('_', ' ')}")
    return names


def _draw_few(evaluation: pd.DataFrame, png_path: str | Path) -> None:
    """Draw a small cohort: share of samples that are right, with its Wilson interval."""
    task = sorted(t for t in set(evaluation["task"]) if t.startswith("phenotype_"))[0]
    rows = evaluation[evaluation["task"] == task].assign(variant=evaluation["variant"].fillna(""))
    table = rows.pivot_table(
        index=["method", "variant"], columns="metric", values="value", sort=False
    ).reset_index()
    table["n"] = int(rows["n"].max())
    table["ours"] = table["method"].isin(OURS)
    table = table.sort_values(["ours", "variant"], ascending=[False, True], kind="stable")
    fig = style.figure("double", 14 + 5 * len(table))
    ax = fig.subplots()
    names, labels = _all_names(evaluation), []
    for place, row in enumerate(table.to_dict("records")):
        trained = row["variant"] in ("", "default")
        colour = style.COLOURS[0 if trained else 4] if row["ours"] else style.NEUTRAL
        span = [row["accuracy_low"], row["accuracy_high"]]
        ax.plot(span, [place] * 2, color=colour, linewidth=1.4)
        ax.plot(row["accuracy"], place, "o", color=colour, markersize=4)
        plain = row["method"] if trained else f"{row['method']} {row['variant']}"
        labels.append(names.get(plain, plain))
    ax.set_yticks(range(len(table)), labels)
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.set_xlim(-0.02, 1.02)
    label = task.removeprefix("phenotype_").replace("_", " ")
    text = f"{label}: share of samples whose nearest neighbour is of their class"
    seeds = rows["seed"].nunique()
    mean = f"mean of {seeds} seeds, line: 95 % Wilson interval"
    ax.set_xlabel(f"{text}\nn = {table['n'].iloc[0]}, {mean}")
    ax.grid(axis="y", color="0.92", linewidth=0.6)
    style.save(fig, png_path, table.drop(columns="ours"))


def draw_training(histories: dict[tuple[str, int], pd.DataFrame], png_path: str | Path) -> None:
    """Draw what happened during the fits.

    Parameters
    ----------
    histories : dict of (variant, seed) to DataFrame
        history.tsv of every fit; untrained ones are left out.
    png_path : path
    """
    panels = [
        ("reconstruction", "reconstruction loss\n(energy, then Sinkhorn)"),
        ("held_out_energy", "energy distance,\nheld-out subjects"),
        ("target_entropy", "entropy of the teacher's\ntarget (of ln L)"),
        ("effective_rank", "effective rank of\nsample vectors"),
    ]
    tables = [
        table.assign(variant=variant, seed=seed)
        for (variant, seed), table in histories.items()
        if len(table)
    ]
    if not tables:
        tables = [pd.DataFrame({"epoch": [0], "variant": "untrained", "seed": 0, "loss": np.nan})]
        panels = [("loss", "loss (no fit was trained)")]
    table = pd.concat(tables, ignore_index=True)
    panels = [(column, label) for column, label in panels if column in table]
    fig = style.figure("double", 52)
    axes = fig.subplots(1, len(panels), squeeze=False)[0]
    colours = style.colour_map(list(dict.fromkeys(table["variant"])))
    for ax, (column, label) in zip(axes, panels, strict=True):
        for variant, rows in table.groupby("variant", sort=False):
            if rows[column].notna().any():
                _curve(ax, rows, column, colours[variant], variant.replace("_", " "))
        ax.set_xlabel("epoch")
        ax.set_ylabel(label)
        ax.set_ylim(bottom=0)
        if column == "target_entropy":
            ax.set_ylim(0, 1.02)
    seeds = table.groupby("variant")["seed"].nunique()
    handles, labels = axes[0].get_legend_handles_labels()
    labels = [f"{name} ({seeds[name.replace(' ', '_')]} seeds)" for name in labels]
    fig.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    style.save(fig, png_path, table)


def _curve(ax, rows, column, colour, name) -> None:
    """Draw mean and interval over seeds, and the seeds."""
    for _, own in rows.groupby("seed"):
        ax.plot(own["epoch"], own[column], color=colour, alpha=0.3, linewidth=0.6)
    by_epoch = [(epoch, *mean_interval(own[column])) for epoch, own in rows.groupby("epoch")]
    epoch, mean, low, high = np.array(by_epoch).T
    ax.plot(epoch, mean, color=colour, label=name)
    if rows["seed"].nunique() >= 3:
        ax.fill_between(epoch, low, high, color=colour, alpha=0.15, linewidth=0)
