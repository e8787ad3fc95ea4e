"""Figures of expression datasets."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from popflow.evaluate.metrics import balanced_accuracy
from popflow.figures import comparison, style

if TYPE_CHECKING:
    import anndata

NAMES = {
    "urlost": "URLOST",
    "urlost untrained": "URLOST, untrained weights",
    "urlost mae_rand": "URLOST, random clusters",
    "urlost shared": "URLOST, one shared projection",
    "urlost plain_autoencoder": "URLOST, nothing masked",
    "urlost mean_token": "URLOST, mean of tokens",
    "urlost class_token": "URLOST, class token",
    "raw": "raw values",
    "pca": "principal components",
}


def draw_clusters(model: dict[str, Any], affinity: dict[str, np.ndarray], png: str | Path) -> None:
    """Draw the neighbour graph with genes ordered by cluster, the cluster sizes and eigenvalues.

    Parameters
    ----------
    model : dict
        model.json of a fit.
    affinity : dict
        rows, columns, weights of the neighbour graph.
    """
    labels = np.array(model["clusters"])
    order = np.argsort(labels, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    sizes, values = np.bincount(labels), np.array(model["eigenvalues"])
    fig = style.figure("double", 78)
    left, middle, right = fig.subplots(1, 3, width_ratios=[1.25, 1, 1])
    weights = affinity["weights"]
    strong = np.argsort(weights, kind="stable")
    dots = left.scatter(
        place[affinity["columns"]][strong],
        place[affinity["rows"]][strong],
        c=weights[strong],
        s=0.25,
        cmap=style.SEQUENTIAL,
        vmin=0,
        vmax=float(np.quantile(weights, 0.99)),
        linewidths=0,
        rasterized=True,
    )
    edges = np.concatenate([[0], np.cumsum(sizes)]) - 0.5
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        box = [low, high, high, low, low]
        left.plot(box, [low, low, high, high, low], color="0.35", linewidth=0.4)
    left.set(xlim=(-0.5, len(order) - 0.5), ylim=(len(order) - 0.5, -0.5), aspect="equal")
    left.set(xlabel="gene, ordered by cluster", ylabel="gene, ordered by cluster")
    left.set_title("Affinity of neighbours")
    fig.colorbar(dots, ax=left, label="mutual information (nats)", shrink=0.8)
    middle.bar(np.arange(len(sizes)), np.sort(sizes)[::-1], color=style.COLOURS[0], width=0.85)
    middle.set(xlabel="cluster, by size", ylabel="genes in the cluster")
    middle.set_title(f"{len(sizes)} clusters of {len(labels)} genes")
    right.plot(np.arange(1, len(values) + 1), values, "o-", color=style.COLOURS[0], markersize=2.5)
    right.axvline(len(sizes) + 0.5, color="0.4", linestyle="--", linewidth=0.7)
    right.set(xlabel="eigenvector", ylabel="eigenvalue of the adjusted Laplacian")
    right.set_title("Spectrum (dashed: cut)")
    names = model["names"] or [str(i) for i in range(len(labels))]
    style.save(fig, png, pd.DataFrame({"gene": names, "cluster": labels}).iloc[order])


def draw_embedding(embedding: "anndata.AnnData", png: str | Path) -> None:
    """Draw a t-SNE of the representation, coloured by label, training and test samples apart."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    labels = embedding.obs["label"].to_numpy().astype(str)
    view = embedding[labels != ""]
    labels = labels[labels != ""]
    few = PCA(min(30, view.n_obs - 1, view.n_vars), random_state=0).fit_transform(view.X)
    xy = TSNE(perplexity=min(30, (view.n_obs - 1) / 3), random_state=0).fit_transform(few)
    split = view.obs["split"].to_numpy().astype(str)
    names, counts = np.unique(labels, return_counts=True)
    names = names[np.argsort(-counts, kind="stable")]
    colours = style.colour_map(list(names))
    fig = style.figure("double", 92)
    axes = fig.subplots(1, 2, sharex=True, sharey=True)
    for ax, role in zip(axes, ("train", "test"), strict=True):
        here = split == role
        ax.plot(*xy.T, ".", color="0.9", markersize=2, zorder=0)
        for name in names:
            dots = here & (labels == name)
            ax.plot(*xy[dots].T, ".", color=colours[name], markersize=3.5, label=name)
        ax.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
        title = {"train": "Samples of the fit", "test": "Test samples, never seen"}[role]
        ax.set_title(f"{title} (n = {here.sum()})")
    handles, texts = axes[0].get_legend_handles_labels()
    fig.legend(handles, texts, loc="outside right center", markerscale=2.2, title="label")
    table = pd.DataFrame({"sample": view.obs_names, "label": labels, "split": split})
    style.save(fig, png, table.assign(tsne_1=xy[:, 0], tsne_2=xy[:, 1]))


def draw_confusion(predictions: pd.DataFrame, png: str | Path) -> None:
    """Draw the confusion of the linear probe on URLOST and on raw values, test folds together."""
    fig = style.figure("double", 105)
    axes = fig.subplots(1, 2, sharey=True)
    classes = sorted(predictions["truth"].astype(str).unique())
    tables = []
    for ax, (method, variant) in zip(axes, (("urlost", "default"), ("raw", "")), strict=True):
        rows = predictions[
            (predictions["method"] == method) & (predictions["variant"].fillna("") == variant)
        ]
        truth, predicted = rows["truth"].astype(str), rows["predicted"].astype(str)
        counts = pd.crosstab(truth, predicted).reindex(index=classes, columns=classes, fill_value=0)
        share = counts.div(counts.sum(1), axis=0)
        image = ax.imshow(share, cmap="Blues", vmin=0, vmax=1)
        for i, j in np.argwhere(counts.to_numpy() > 0):
            shade = "white" if share.iat[i, j] > 0.6 else "0.15"
            ax.text(j, i, counts.iat[i, j], ha="center", va="center", fontsize=5.5, color=shade)
        ax.set_xticks(range(len(classes)), classes, rotation=40, ha="right", rotation_mode="anchor")
        ax.set_yticks(range(len(classes)), classes)
        score = balanced_accuracy(truth, predicted)
        ax.set(xlabel="predicted", ylabel="true" if ax is axes[0] else "")
        ax.set_title(f"{NAMES[method]}\nbalanced accuracy {score:.2f}, n = {len(rows)}")
        long = counts.stack().rename("count").reset_index()
        long.columns = ["truth", "predicted", "count"]
        tables.append(long.assign(method=method, variant=variant))
    fig.colorbar(image, ax=axes, label="share of the true class", shrink=0.7)
    style.save(fig, png, pd.concat(tables))


def draw_comparison(evaluation: pd.DataFrame, png: str | Path) -> None:
    """Draw every method on the same splits."""
    rows = evaluation[(evaluation["method"] == "majority class") & (evaluation["task"] == "label")]
    level = rows.groupby("metric")["value"].mean()
    panels = [
        comparison.Panel("label", metric, f"{metric}, linear probe", level[metric])
        for metric in ("accuracy", "balanced accuracy", "macro F1")
    ]
    comparison.draw(evaluation, panels, png, names=NAMES)


def draw_training(histories: dict[str, pd.DataFrame], png: str | Path) -> None:
    """Draw the reconstruction error of training and of held-out rows against the step.

    Parameters
    ----------
    histories : dict of path to DataFrame
        history.tsv of every fit; variant and seed are read from the path.
    """
    tables = []
    for path, history in histories.items():
        variant, seed = Path(path).parts[-3], Path(path).parts[-2].removeprefix("seed-")
        if len(history):
            tables.append(history.assign(variant=variant, seed=seed))
    if not tables:
        style.say(png, "No training: only untrained variants were fitted.", pd.DataFrame())
        return
    table = pd.concat(tables)
    fig = style.figure("double", 62)
    axes = fig.subplots(1, 2, sharey=True)
    colours = style.colour_map(list(dict.fromkeys(table["variant"])))
    for ax, column in zip(axes, ("loss", "held_out_loss"), strict=True):
        for (variant, _), rows in table.groupby(["variant", "seed"], sort=False):
            if column in rows:
                style_of = {"color": colours[variant], "alpha": 0.75, "linewidth": 0.9}
                ax.plot(rows["step"], rows[column], **style_of)
        ax.set(xlabel="optimiser step")
    axes[0].set(ylabel="loss of hidden genes (Huber by default)", ylim=(0, None))
    axes[0].set_title("Training rows (means over an epoch)")
    axes[1].set_title("Held-out rows")
    for variant, colour in colours.items():
        axes[1].plot([], [], color=colour, label=NAMES.get(f"urlost {variant}", "URLOST"))
    seeds = table["seed"].nunique()
    axes[1].legend(title=f"{seeds} seeds each", loc="lower right")
    style.save(fig, png, table)
