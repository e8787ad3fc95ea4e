"""Expression: what a linear probe reads from URLOST, from raw values and from a PCA."""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from popflow.evaluate.metrics import accuracy, balanced_accuracy, macro_f1
from popflow.evaluate.probes import logistic_probe
from popflow.prepare.expression import model_input
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator

if TYPE_CHECKING:
    import anndata
    import pandas as pd

log = logging.getLogger(__name__)

METRICS = {
    "accuracy": accuracy,
    "balanced accuracy": balanced_accuracy,
    "macro F1": macro_f1,
}


def evaluate_expression(
    dataset: str,
    prepared: "anndata.AnnData",
    embeddings: "list[anndata.AnnData]",
    settings: dict[str, Any],
    min_class: int,
) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """Probe every representation for the label, on the split that each seed was fitted on.

    Parameters
    ----------
    dataset : str
    prepared : AnnData
        Of `prepare.expression.prepare_expression`.
    embeddings : list of AnnData
        Of `models.urlost.embedding.fit_split`; `uns["urlost"]` names variant, seed and split.
    settings : dict
        Of ``workflow/schemas/evaluate-expression.schema.yaml``.
    min_class : int
        Classes with fewer samples are left out.

    Returns
    -------
    evaluation : DataFrame
        The rows of evaluation.tsv.
    predictions : DataFrame
        method, variant, seed, sample, truth, predicted: of the linear probe on test rows.
    """
    import pandas as pd

    probe = _Probe(dataset, prepared, min_class)
    seeds = {}
    for embedding in embeddings:
        about = embedding.uns["urlost"]
        seed, split, variant = int(about["seed"]), int(about["split"]), str(about["variant"])
        seeds[seed] = split
        probe.run("urlost", variant, seed, split, embedding.X)
        if variant == "default":
            for features in ("mean", "class"):
                x = embedding.obsm[f"X_urlost_{features}"]
                probe.run("urlost", f"{features}_token", seed, split, x)
            probe.neighbours("urlost", variant, seed, split, embedding.X, settings["neighbours"])
    for seed, split in sorted(seeds.items()):
        raw = model_input(prepared, split)
        probe.run("raw", "", seed, split, raw)
        probe.neighbours("raw", "", seed, split, raw, settings["neighbours"])
        train = prepared.obs[f"split_{split}"].to_numpy().astype(str) == "train"
        probe.run("pca", "", seed, split, _components(raw, train, settings["components"]))
        probe.majority(seed, split)
        for shuffle in range(settings["shuffles"]):
            probe.shuffled(seed, split, raw, shuffle)
    return pd.DataFrame(probe.rows), pd.concat(probe.predictions, ignore_index=True)


class _Probe:
    """Collect the rows of evaluation.tsv."""

    def __init__(self, dataset: str, prepared: "anndata.AnnData", min_class: int):
        self.dataset, self.obs = dataset, prepared.obs
        self.labels = prepared.obs["label"].to_numpy().astype(str)
        names, counts = np.unique(self.labels[self.labels != ""], return_counts=True)
        classes = names[counts >= min_class]
        if len(classes) < 2:
            found = f"{len(classes)} classes with {min_class} samples or more"
            fix = "lower prepare.<dataset>.min_class or name another label"
            raise Refusal(f"labels of {dataset}", found, "two such classes", fix)
        self.used = np.isin(self.labels, classes)
        self.rows: list[dict[str, Any]] = []
        self.predictions: list[Any] = []

    def _split(self, split: int) -> tuple[np.ndarray, np.ndarray]:
        train = self.obs[f"split_{split}"].to_numpy().astype(str) == "train"
        return np.flatnonzero(train & self.used), np.flatnonzero(~train & self.used)

    def run(self, method: str, variant: str, seed: int, split: int, x: np.ndarray) -> None:
        """Fit the linear probe on training rows and score the test rows."""
        train, test = self._split(split)
        groups = self.obs["group"].to_numpy().astype(str)
        grouped = groups if len(np.unique(groups)) < len(groups) else None
        chances, classes = logistic_probe(
            x, self.labels, [(train, test)], seed, grouped, strengths=(1e-3, 1e-2, 1e-1, 1.0)
        )
        self._score(method, variant, seed, split, test, classes[chances[test].argmax(1)])

    def neighbours(self, method, variant, seed, split, x, k) -> None:
        """Vote among the nearest training rows by cosine similarity."""
        train, test = self._split(split)
        unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        near = np.argsort(-(unit[test] @ unit[train].T), axis=1, kind="stable")[:, :k]
        votes = self.labels[train][near]
        classes = np.unique(self.labels[train])
        counts = (votes[:, :, None] == classes).sum(1)
        predicted = classes[counts.argmax(1)]
        self._score(method, variant, seed, split, test, predicted, task="label, nearest neighbours")

    def majority(self, seed: int, split: int) -> None:
        """Predict the most frequent training class."""
        train, test = self._split(split)
        names, counts = np.unique(self.labels[train], return_counts=True)
        predicted = np.full(len(test), names[counts.argmax()])
        self._score("majority class", "", seed, split, test, predicted)

    def shuffled(self, seed: int, split: int, x: np.ndarray, shuffle: int) -> None:
        """Train the probe on shuffled labels: the null."""
        train, test = self._split(split)
        labels = self.labels.copy()
        labels[train] = generator(seed, "shuffle", shuffle).permutation(labels[train])
        chances, classes = logistic_probe(x, labels, [(train, test)], seed, strengths=(1e-2,))
        predicted = classes[chances[test].argmax(1)]
        self._score("shuffled labels", "", seed, split, test, predicted)

    def _score(self, method, variant, seed, split, test, predicted, task="label") -> None:
        import pandas as pd

        truth = self.labels[test]
        for metric, score in METRICS.items():
            self.rows.append(
                {
                    "dataset": self.dataset,
                    "method": method,
                    "variant": variant,
                    "seed": seed,
                    "fold": split,
                    "task": task,
                    "metric": metric,
                    "value": score(truth, predicted),
                    "n": len(test),
                }
            )
        if task == "label":
            frame = pd.DataFrame(
                {"sample": self.obs.index[test], "truth": truth, "predicted": predicted}
            )
            self.predictions.append(frame.assign(method=method, variant=variant, seed=seed))


def _components(x: np.ndarray, train: np.ndarray, count: int) -> np.ndarray:
    """Project on the principal components of training rows."""
    from sklearn.decomposition import PCA

    count = min(count, int(train.sum()) - 1, x.shape[1])
    return PCA(count, random_state=0).fit(x[train]).transform(x)
