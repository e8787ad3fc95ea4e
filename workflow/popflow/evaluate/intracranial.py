"""PopT beside plain baselines: its two objectives on held-out time, and decoding."""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from popflow.evaluate.decoding import DecodingSet, decoding_sets
from popflow.evaluate.metrics import auroc, correlation
from popflow.evaluate.probes import logistic_probe, ridge_probe
from popflow.evaluate.statistics import circular_shift_null
from popflow.prepare.intracranial import Session
from popflow.runtime.seeds import generator

if TYPE_CHECKING:
    import pandas as pd

    from popflow.models.popt import PopT
    from popflow.models.popt.pretraining import Corpus

log = logging.getLogger(__name__)

KERNEL_MM = 12.0
NULL_STRENGTH = 0.01


class Table:
    """Rows of evaluation.tsv.

    Parameters
    ----------
    dataset : str
    """

    def __init__(self, dataset: str):
        self.dataset, self.rows = dataset, []

    def add(self, method: str, variant: str, seed: Any, fold: str, score: tuple, n: int) -> None:
        """Add a row; `score` is (task, metric, value)."""
        task, metric, value = score
        row = {"dataset": self.dataset, "method": method, "variant": variant, "seed": seed}
        row |= {"fold": fold, "task": task, "metric": metric, "value": float(value), "n": n}
        self.rows.append(row)

    def frame(self) -> "pd.DataFrame":
        """Give the table."""
        import pandas as pd

        columns = ["dataset", "method", "variant", "seed", "fold", "task", "metric", "value", "n"]
        return pd.DataFrame(self.rows, columns=columns)


def evaluate_fit(
    dataset: str,
    net: "PopT",
    sessions: list[Session],
    settings: dict[str, Any],
    preset: dict[str, Any],
    variant: str,
    seed: int,
    device: str = "cpu",
) -> "pd.DataFrame":
    """Score one fit of PopT.

    Parameters
    ----------
    dataset : str
    net : PopT
        Pretrained (or not, in the variant that is the control).
    sessions : list of Session
    settings : dict
        As ``evaluate-intracranial.schema.yaml`` describes.
    preset : dict
        The resolved preset of the fit.
    variant : str
    seed : int
    device : str
        Where fine-tuning runs.

    Returns
    -------
    DataFrame
        Rows of evaluation.tsv. Methods: ``popt`` (fine-tuned, and the objectives),
        ``popt_frozen`` (linear probe on CLS), ``popt_shuffled_positions`` (objectives, control).
    """
    table = Table(dataset)
    for where, corpus in _corpora(sessions, preset).items():
        _score_objectives(table, net, corpus, where, settings, variant, seed)
    for each in decoding_sets(sessions, settings):
        for fold, pair in enumerate(each.folds):
            name, x = f"{each.session}-{fold}", each.standardised(pair[0])
            cls = net.transform(x, each.lip)
            _score(table, "popt_frozen", variant, seed, name, each, pair, _probe(cls, each, pair))
            if preset["finetune"]["steps"]:
                output = _finetuned(net, x, each, pair, preset["finetune"], seed, device)
                _score(table, "popt", variant, seed, name, each, pair, output)
        log.info("decoded %s in %s", each.task, each.session)
    return table.frame()


def evaluate_baselines(
    dataset: str, sessions: list[Session], settings: dict[str, Any], preset: dict[str, Any]
) -> "pd.DataFrame":
    """Score what needs no PopT, on the same pairs, windows, channels and folds.

    Returns
    -------
    DataFrame
        Methods: ``linear_concatenated``, ``linear_squared`` (squares of the standardised
        features: amplitude), ``linear_mean`` (mean over channels), ``linear_spectrogram``,
        ``circular_shift_null`` (of linear_concatenated; `seed` is the shift), ``kernel_score``.
    """
    table = Table(dataset)
    for where, corpus in _corpora(sessions, preset).items():
        _kernel_scores(table, corpus, where, settings)
    for each in decoding_sets(sessions, settings):
        for fold, pair in enumerate(each.folds):
            name, x = f"{each.session}-{fold}", each.standardised(pair[0])
            inputs = {
                "linear_concatenated": x.reshape(len(x), -1),
                "linear_squared": (x**2).reshape(len(x), -1),
                "linear_mean": x.mean(axis=1),
            }
            if each.spectrogram is not None:
                inputs["linear_spectrogram"] = each.spectrogram.reshape(len(x), -1)
            for method, values in inputs.items():
                _score(table, method, "", "", name, each, pair, _probe(values, each, pair))
        _null(table, each, settings)
        log.info("baselines of %s in %s", each.task, each.session)
    return table.frame()


def _corpora(sessions: list[Session], preset: dict[str, Any]) -> "dict[str, Corpus]":
    """Give the pairs of the held-out time of the pretraining sessions, and of unseen subjects."""
    from popflow.models.popt.pretraining import Corpus, pretraining_sessions

    corpora = {"": Corpus(pretraining_sessions(sessions), "test", preset)}
    unseen = [session for session in sessions if session.role == "held_out"]
    if unseen:
        corpora["_unseen_subject"] = Corpus(unseen, "test", preset)
    return {
        where: corpus
        for where, corpus in corpora.items()
        if any(stop - start > corpus.gap for _, start, stop in corpus.blocks)
    }


def _score_objectives(table, net, corpus, where, settings, variant, seed) -> None:
    """Score both objectives, as they are and with the coordinates shuffled over channels."""
    from popflow.models.popt.pretraining import score_objectives

    examples, pairs = settings["objective_examples"], settings["seed"]
    rng = generator(pairs, "shuffled coordinates")

    def shuffled(coords: np.ndarray) -> np.ndarray:
        order = np.argsort(rng.random(coords.shape[:2]), axis=1)
        return np.take_along_axis(coords, order[..., None], axis=1)

    for method, change in (("popt", {}), ("popt_shuffled_positions", {"coords": shuffled})):
        scores = score_objectives(net, corpus, examples, pairs, **change)
        for objective, count in (("ensemble", "examples"), ("channel", "channels")):
            score = (f"{objective}_objective{where}", "auc", scores[f"{objective}_auc"])
            table.add(method, variant, seed, "", score, int(scores[count]))


def _kernel_scores(
    table: Table, corpus: "Corpus", where: str, settings: dict[str, Any], batch: int = 64
) -> None:
    """Score both objectives by closeness times likeness, with nothing trained."""
    sampler = corpus.sampler(batch, settings["seed"] + 10**6)
    random, ensemble, replaced, channel = [], [], [], []
    for step in range(max(1, settings["objective_examples"] // batch)):
        arrays = corpus.batch(sampler.draw(step))
        across, within = kernel_scores(arrays)
        random.append(arrays["random"])
        ensemble.append(across)
        replaced.append(arrays["replaced"][arrays["scored"]])
        channel.append(within[arrays["scored"]])
    pairs = {"ensemble": (random, ensemble), "channel": (replaced, channel)}
    for objective, (truth, score) in pairs.items():
        truth, score = np.concatenate(truth), np.concatenate(score)
        # Alike and close means consecutive, or not replaced: the negative class.
        value = auroc(truth, -score)
        task = f"{objective}_objective{where}"
        table.add("kernel_score", "", "", "", (task, "auc", value), len(truth))


def kernel_scores(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sum exp(-distance² / 2 (12 mm)²) × cosine over pairs of channels.

    Parameters
    ----------
    arrays : dict
        A batch as `popflow.models.popt.sampler.gather` gives it.

    Returns
    -------
    across : (b,) ndarray
        Over pairs of one channel of A and one of B.
    within : (b, n) ndarray
        Of each channel with the others of its ensemble.
    """
    x, places = arrays["x"][:, 1:], arrays["coords"]
    unit = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)
    square = ((places[:, :, None] - places[:, None]) ** 2).sum(-1)
    weight = np.exp(-square / (2 * KERNEL_MM**2)) * np.einsum("bid,bjd->bij", unit, unit)
    real = ~arrays["padding"][:, 1:]
    weight *= real[:, :, None] & real[:, None]
    same = arrays["segment"][:, :, None] == arrays["segment"][:, None]
    within = (weight * same).sum(2) - np.einsum("bii->bi", weight)
    return (weight * ~same).sum((1, 2)) / 2, within


def _probe(values: np.ndarray, each: DecodingSet, pair: tuple) -> np.ndarray:
    """Give the output of a linear probe on the test rows of a fold."""
    if each.kind == "regress":
        return ridge_probe(values, each.y, [pair])[pair[1]]
    probabilities, _ = logistic_probe(values, each.y, [pair])
    return probabilities[pair[1], 1]


def _finetuned(net, x, each, pair, settings, seed, device) -> np.ndarray:
    """Fine-tune on the training rows and give the output on the test rows."""
    from popflow.models.popt.finetuning import finetune

    train, test = pair
    y = each.y.astype(np.float32)
    if each.kind == "regress":
        y = (y - y[train].mean()) / y[train].std()
    decoder = finetune(net, x[train], each.lip, y[train], settings, each.kind, seed, device=device)
    return decoder.predict(x[test], each.lip)


def _score(table, method, variant, seed, fold, each: DecodingSet, pair, output) -> None:
    """Add the score of one fold."""
    truth = each.y[pair[1]]
    if each.kind == "regress":
        score = (each.task, "r", correlation(truth, output))
    else:
        score = (each.task, "auc", auroc(truth == 1, output))
    table.add(method, variant, seed, fold, score, len(truth))


def _null(table: Table, each: DecodingSet, settings: dict[str, Any]) -> None:
    """Rotate the labels in time against the windows and decode again."""
    from sklearn.linear_model import LogisticRegression, Ridge

    def score(x: np.ndarray, y: np.ndarray) -> float:
        values = []
        for train, test in each.folds:
            if each.kind == "regress":
                model = Ridge(alpha=1 / NULL_STRENGTH).fit(x[train], y[train])
                values.append(correlation(y[test], model.predict(x[test])))
            else:
                model = LogisticRegression(C=NULL_STRENGTH, max_iter=300).fit(x[train], y[train])
                values.append(auroc(y[test] == 1, model.decision_function(x[test])))
        return float(np.mean(values))

    # The rotation mixes training and test labels, so that scaling over all rows tells nothing.
    x = each.standardised(np.arange(len(each.y))).reshape(len(each.y), -1)
    least = max(1, len(each.y) // 20)
    values = circular_shift_null(score, x, each.y, settings["shifts"], least, settings["seed"])
    metric = "r" if each.kind == "regress" else "auc"
    for shift, value in enumerate(values):
        scored = (each.task, metric, value)
        count = max(len(test) for _, test in each.folds)
        table.add("circular_shift_null", "", shift, each.session, scored, count)
