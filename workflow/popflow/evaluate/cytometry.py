"""What a sample's vector tells about the sample: proportions, phenotypes, batch, beside baselines.

Every method gives one row of features per sample. All of them are read by the same linear probes on
the same folds, which keep a subject's samples together. MAESTRO, the k-means clusters and the
scaling of the markers are learned, without labels, from the training samples of splits.tsv.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from popflow.evaluate import metrics
from popflow.evaluate.probes import logistic_probe, ridge_probe
from popflow.evaluate.splits import grouped_folds
from popflow.prepare.cytometry import Cohort, read_cohort
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
#: Inverse penalties of the logistic probes.
STRENGTHS = (0.001, 0.03, 1.0)


def evaluate_cytometry(
    prepared: str | Path,
    fits: list[dict[str, Any]],
    settings: dict[str, Any],
    dataset: str,
) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """Compare fits and baselines on one cohort.

    Parameters
    ----------
    prepared : path
        As `popflow.prepare.cytometry.prepare_cytometry` wrote it.
    fits : list of dict
        variant, seed, and path of an embedding.h5ad, as `fits_from_paths` gives them.
    settings : dict
        As `evaluate-cytometry.schema.yaml` describes.
    dataset : str

    Returns
    -------
    evaluation : DataFrame
        Columns of evaluation.tsv.
    predictions : DataFrame
        method, variant, seed, task, sample, target, truth, predicted: what was predicted out of
        fold; proportions, and probabilities of classes.

    Notes
    -----
    The seed of a fit is the seed of its folds too; baselines are read on the folds of all seeds.
    """
    import pandas as pd

    cohort = read_cohort(prepared)
    seeds = sorted({fit["seed"] for fit in fits}) or [0]
    proportions = cell_type_proportions(cohort)
    few = cohort.samples["subject"].nunique() < settings["few_subjects"]
    rows: list[dict[str, Any]] = []
    told: list[pd.DataFrame] = []
    for head, features in _methods(cohort, fits, seeds, settings):
        arguments = (features, cohort, settings, head["seed"])
        found = list(_class_tasks(*arguments, few))
        if proportions is not None and not few:
            found += list(_proportion_tasks(features, proportions, cohort, settings, head["seed"]))
        for task, scores, predicted in found:
            for metric, value, n in scores:
                row = {"dataset": dataset} | head | {"fold": None, "task": task}
                rows.append(row | {"metric": metric, "value": value, "n": n})
            told.append(predicted.assign(**head, task=task))
    if not told:
        raise Refusal(
            f"dataset {dataset}",
            "nothing to score: no label of two classes, no batches, no cell types",
            "a label or batch column in the samples sheet, or tables of cell types",
            "add one; the vectors alone are in results/<dataset>/maestro/",
        )
    columns = ["dataset", "method", "variant", "seed", "fold", "task", "metric", "value", "n"]
    order = ["method", "variant", "seed", "task", "sample", "target", "truth", "predicted"]
    return pd.DataFrame(rows, columns=columns), pd.concat(told, ignore_index=True)[order]


def fits_from_paths(paths: list[str]) -> list[dict[str, Any]]:
    """Read variant and seed of fits off their paths, ``…/<variant>/seed-<seed>/<file>``."""
    return [
        {
            "variant": Path(path).parts[-3],
            "seed": int(Path(path).parts[-2].removeprefix("seed-")),
            "path": path,
        }
        for path in paths
    ]


def _methods(cohort, fits, seeds, settings) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Give the features of every method, for every seed."""
    import anndata

    plain = {
        "constant": np.zeros((len(cohort.samples), 1)),
        **sample_statistics(cohort),
    }
    for seed in seeds:
        for method, features in plain.items():
            yield {"method": method, "variant": "", "seed": seed}, features
        clusters = kmeans_proportions(cohort, settings["clusters"], settings["cluster_cells"], seed)
        yield {"method": "kmeans_proportions", "variant": "", "seed": seed}, clusters
    for fit in fits:
        adata = anndata.read_h5ad(fit["path"])
        if adata.obs_names.tolist() != cohort.samples["sample"].tolist():
            raise Refusal(
                f"file {fit['path']}",
                "its samples differ from the cohort's",
                "an embedding of the prepared cohort",
                "fit the model again",
            )
        head = {"variant": fit["variant"], "seed": fit["seed"]}
        yield {"method": "maestro"} | head, np.asarray(adata.X, float)
        yield {"method": "maestro_states"} | head, np.asarray(adata.obsm["states"], float)


def sample_statistics(cohort: Cohort) -> dict[str, np.ndarray]:
    """Summarise every sample by the plain statistics of its markers.

    Returns
    -------
    dict of str to (samples, features) array
        ``mean_sd`` (2 D), ``quantiles`` (7 D), ``mean_covariance`` (D + D (D + 1) / 2).
    """
    found: dict[str, list[np.ndarray]] = {"mean_sd": [], "quantiles": [], "mean_covariance": []}
    for sample in cohort.samples["sample"]:
        x = np.asarray(cohort.cells(sample), float)
        mean, covariance = x.mean(0), np.atleast_2d(np.cov(x.T))
        found["mean_sd"].append(np.concatenate([mean, x.std(0)]))
        found["quantiles"].append(np.quantile(x, QUANTILES, axis=0).ravel())
        upper = np.triu_indices(len(mean))
        found["mean_covariance"].append(np.concatenate([mean, covariance[upper]]))
    return {method: np.array(rows) for method, rows in found.items()}


def kmeans_proportions(cohort: Cohort, clusters: int, cells: int, seed: int) -> np.ndarray:
    """Share of each sample's cells in clusters learned from training cells.

    Parameters
    ----------
    cohort : Cohort
    clusters : int
    cells : int
        Training cells to learn from, the same number of every training sample.
    seed : int

    Returns
    -------
    (samples, clusters) array
        Rows sum to 1.
    """
    from sklearn.cluster import MiniBatchKMeans

    mean, sd = cohort.markers["mean"].to_numpy(), cohort.markers["sd"].to_numpy()
    table = cohort.samples
    train = table.loc[table["split"] == "train", "sample"].tolist()
    each = max(cells // len(train), 1)
    drawn = []
    for sample in train:
        x, draw = cohort.cells(sample), generator(seed, "kmeans", sample)
        drawn.append(x[np.sort(draw.choice(len(x), min(each, len(x)), replace=False))])
    drawn = np.concatenate(drawn)
    model = MiniBatchKMeans(min(clusters, len(drawn)), random_state=seed, n_init=3)
    model.fit((drawn - mean) / sd)
    shares = [
        np.bincount(
            model.predict((np.asarray(cohort.cells(sample), float) - mean) / sd),
            minlength=model.n_clusters,
        )
        for sample in table["sample"]
    ]
    shares = np.array(shares, float)
    return shares / shares.sum(axis=1, keepdims=True)


def cell_type_proportions(cohort: Cohort) -> "pd.DataFrame | None":
    """Count the gated types: samples x types, rows sum to 1; None when no cells are gated.

    Cells without a type (empty) are left out of the counts.
    """
    import pandas as pd

    counts = {}
    for sample in cohort.samples["sample"]:
        types = cohort.cell_types(sample)
        if types is None:
            return None
        names, number = np.unique(types[types != ""], return_counts=True)
        counts[sample] = dict(zip(names.tolist(), number.tolist(), strict=True))
    table = pd.DataFrame.from_dict(counts, orient="index").fillna(0.0).sort_index(axis=1)
    return table.div(table.sum(axis=1), axis=0)


def _proportion_tasks(features, proportions, cohort, settings, seed):
    """Regress the proportions: over folds of all subjects, and from training to held-out ones."""
    truth, table = proportions.to_numpy(), cohort.samples
    folds = grouped_folds(table["subject"].to_numpy(), settings["folds"], seed)
    held = np.flatnonzero(table["split"] == "test")
    tasks = {"proportions": folds}
    if len(held) >= 5:
        tasks["proportions_held_out"] = [(np.flatnonzero(table["split"] == "train"), held)]
    for task, splits in tasks.items():
        predicted = ridge_probe(features, truth, splits)
        tested = np.isfinite(predicted).all(axis=1)
        scores = [
            ("r2", metrics.r_squared(truth[tested], predicted[tested]), int(tested.sum())),
            ("mae", metrics.mean_absolute_error(truth[tested], predicted[tested]), tested.sum()),
        ]
        names = table["sample"].to_numpy()[tested]
        yield task, scores, _long(names, proportions.columns, truth[tested], predicted[tested])


def _class_tasks(features, cohort, settings, seed, few):
    """Predict phenotypes and batch."""
    table = cohort.samples
    wanted = settings["phenotypes"] or [n for n in cohort.labels if table[n].nunique() > 1]
    for name in [*wanted, "batch"]:
        if name not in table:
            known = ", ".join(cohort.labels) or "none"
            fix = "mend the name under evaluate, or add the column to the samples sheet"
            found = f"no label column {name!r}"
            raise Refusal("evaluate, key 'phenotypes'", found, f"one of {known}", fix)
        rows = np.flatnonzero(table[name].notna() & (table[name].astype(str) != ""))
        labels = table[name].to_numpy()[rows].astype(str)
        subjects = table["subject"].to_numpy()[rows]
        if len(np.unique(labels)) < 2:
            if name == "batch":
                continue
            raise Refusal(
                f"cohort.tsv, column {name!r}",
                f"one class only ({labels[0] if len(labels) else 'no values'})",
                "two classes or more",
                "take it out of `phenotypes` under evaluate",
            )
        task = name if name == "batch" else f"phenotype_{name}"
        if few:
            scores, predicted, classes = _neighbour_scores(features[rows], labels, subjects)
        else:
            scores, predicted, classes = _probe_scores(
                features[rows], labels, subjects, settings["folds"], seed
            )
        truth = (labels[:, None] == classes).astype(float)
        yield task, scores, _long(table["sample"].to_numpy()[rows], classes, truth, predicted)


def _probe_scores(features, labels, subjects, k, seed):
    """Read classes by a logistic probe over folds of subjects."""
    folds = grouped_folds(subjects, min(k, len(np.unique(subjects))), seed, labels)
    probabilities, classes = logistic_probe(
        features, labels, folds, seed, subjects, strengths=STRENGTHS
    )
    predicted = classes[probabilities.argmax(axis=1)]
    n = len(labels)
    return (
        [
            ("auroc", metrics.macro_auroc(labels, probabilities, classes), n),
            ("balanced_accuracy", metrics.balanced_accuracy(labels, predicted), n),
        ],
        probabilities,
        classes,
    )


def _neighbour_scores(features, labels, subjects):
    """Leave one subject out; the nearest other sample in standardised features tells the class."""
    classes = np.unique(labels)
    votes = np.zeros((len(labels), len(classes)))
    for i in range(len(labels)):
        others = np.flatnonzero(subjects != subjects[i])
        spread = features[others].std(0)
        spread = np.where(spread > 0, spread, 1.0)
        distance = (((features[others] - features[i]) / spread) ** 2).sum(axis=1)
        # Ties, as the constant gives them, are shared.
        nearest = labels[others[distance <= distance.min() + 1e-12]]
        votes[i] = [(nearest == c).mean() for c in classes]
    # A shared vote is right by its share, which is what a guess among the tied would give.
    right = float(votes[np.arange(len(labels)), np.searchsorted(classes, labels)].sum())
    low, high = wilson_interval(right, len(labels))
    n = len(labels)
    scores = [("accuracy", right / n, n), ("accuracy_low", low, n), ("accuracy_high", high, n)]
    return scores, votes, classes


def wilson_interval(right: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Give the 95 % interval of a share (Wilson 1927), fit for few items and shares near 0 or 1."""
    share, spread = right / n, z**2 / n
    centre = share + spread / 2
    half = z * np.sqrt(share * (1 - share) / n + spread / (4 * n))
    return float((centre - half) / (1 + spread)), float((centre + half) / (1 + spread))


def _long(samples, targets, truth, predicted):
    """Give one row per sample and target."""
    import pandas as pd

    return pd.DataFrame(
        {
            "sample": np.repeat(samples, len(targets)),
            "target": np.tile(np.asarray(targets, str), len(samples)),
            "truth": np.ravel(truth),
            "predicted": np.ravel(predicted),
        }
    )
