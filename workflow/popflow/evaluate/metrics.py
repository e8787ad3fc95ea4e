"""Scores, each a plain function of truth and prediction."""

import numpy as np
from scipy.stats import rankdata


def auroc(truth: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve: chance that a positive scores above a negative, ties half.

    Parameters
    ----------
    truth : (n,) bool array
    score : (n,) float array

    Returns
    -------
    float
        NaN when one class is absent.
    """
    truth = np.asarray(truth, bool)
    positives, negatives = int(truth.sum()), int((~truth).sum())
    if not positives or not negatives:
        return float("nan")
    ranks = rankdata(score)
    return float((ranks[truth].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def macro_auroc(truth: np.ndarray, probabilities: np.ndarray, classes: np.ndarray) -> float:
    """Mean over classes of the one-against-rest AUROC."""
    truth = np.asarray(truth).astype(str)
    return float(
        np.nanmean([auroc(truth == c, p) for c, p in zip(classes, probabilities.T, strict=True)])
    )


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Share of rows that are right."""
    return float(np.mean(np.asarray(truth).astype(str) == np.asarray(predicted).astype(str)))


def balanced_accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Mean over the classes of `truth` of the share that is right."""
    truth, predicted = np.asarray(truth).astype(str), np.asarray(predicted).astype(str)
    return float(np.mean([np.mean(predicted[truth == c] == c) for c in np.unique(truth)]))


def macro_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Mean over the classes of `truth` of the F1 score."""
    truth, predicted = np.asarray(truth).astype(str), np.asarray(predicted).astype(str)
    scores = []
    for c in np.unique(truth):
        hit = np.sum((truth == c) & (predicted == c))
        scores.append(2 * hit / max(np.sum(truth == c) + np.sum(predicted == c), 1))
    return float(np.mean(scores))


def mean_absolute_error(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Mean of absolute differences over all entries."""
    return float(np.mean(np.abs(np.asarray(truth) - np.asarray(predicted))))


def r_squared(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Mean over columns of 1 - residual sum of squares / total sum of squares.

    Columns of constant truth are left out.
    """
    truth, predicted = (
        np.atleast_2d(np.asarray(truth).T).T,
        np.atleast_2d(np.asarray(predicted).T).T,
    )
    total = np.sum((truth - truth.mean(0)) ** 2, axis=0)
    left = np.sum((truth - predicted) ** 2, axis=0)
    varied = total > 0
    return float(np.mean(1 - left[varied] / total[varied])) if varied.any() else float("nan")


def correlation(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Pearson correlation; NaN when one side is constant."""
    truth, predicted = np.asarray(truth, float), np.asarray(predicted, float)
    if truth.std() == 0 or predicted.std() == 0:
        return float("nan")
    return float(np.corrcoef(truth, predicted)[0, 1])
