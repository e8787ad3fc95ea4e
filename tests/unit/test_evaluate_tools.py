"""Splits, probes, metrics and statistics against values known otherwise."""

import numpy as np
import pytest
from sklearn import metrics as reference

from popflow.evaluate import metrics, probes, splits, statistics
from popflow.runtime.refusal import Refusal


def test_groups_never_stand_in_two_folds():
    draw = np.random.default_rng(0)
    groups, labels = draw.integers(30, size=200), draw.integers(3, size=200)
    folds = splits.grouped_folds(groups, 5, seed=1, labels=labels)
    assert all(len(np.unique(folds[groups == g])) == 1 for g in np.unique(groups))
    assert set(folds) == set(range(5)) and np.bincount(folds).min() >= 25
    assert np.array_equal(folds, splits.grouped_folds(groups, 5, seed=1, labels=labels))


def test_single_rows_keep_class_shares():
    labels = np.repeat(["a", "b"], [80, 20])
    folds = splits.grouped_folds(np.arange(100), 5, seed=0, labels=labels)
    assert [np.sum(labels[folds == f] == "b") for f in range(5)] == [4] * 5


def test_more_folds_than_groups_is_refused():
    with pytest.raises(Refusal, match="5 folds for 3 groups"):
        splits.grouped_folds(np.array([0, 0, 1, 2]), 5, seed=0)


def test_blocks_are_contiguous_and_purged():
    start = np.arange(0, 100, 0.5)
    stop = start + 2.0
    pairs = splits.blocked_folds(start, stop, 4, purge=1.0)
    assert np.array_equal(np.sort(np.concatenate([t for _, t in pairs])), np.arange(200))
    for train, test in pairs:
        assert np.array_equal(test, np.arange(test[0], test[-1] + 1))
        assert splits.assert_disjoint(start, stop, train, test) >= 1.0
    with pytest.raises(AssertionError, match="overlap"):
        splits.assert_disjoint(start, stop, np.array([0]), np.array([1]))


def test_metrics_agree_with_scikit_learn():
    draw = np.random.default_rng(0)
    truth, score = draw.random(200) < 0.3, np.round(draw.random(200), 1)
    assert metrics.auroc(truth, score) == pytest.approx(reference.roc_auc_score(truth, score))
    a, b = draw.integers(4, size=200), draw.integers(4, size=200)
    assert metrics.balanced_accuracy(a, b) == pytest.approx(reference.balanced_accuracy_score(a, b))
    assert metrics.macro_f1(a, b) == pytest.approx(reference.f1_score(a, b, average="macro"))
    x, y = draw.normal(size=(50, 3)), draw.normal(size=(50, 3))
    assert metrics.r_squared(x, y) == pytest.approx(reference.r2_score(x, y))


def test_one_class_gives_no_auroc():
    assert np.isnan(metrics.auroc(np.ones(5, bool), np.arange(5)))


def test_probe_finds_what_is_there_and_nothing_in_noise():
    draw = np.random.default_rng(0)
    y = np.repeat(["a", "b"], 60)
    x = draw.normal(size=(120, 10))
    folds = splits.grouped_folds(np.arange(120), 4, 0, y)
    noise, classes = probes.logistic_probe(x, y, folds)
    assert 0.3 < metrics.auroc(y == "b", noise[:, 1]) < 0.7
    x[:, 0] += 3 * (y == "b")
    found, classes = probes.logistic_probe(x, y, folds)
    assert metrics.auroc(y == "b", found[:, 1]) > 0.95 and list(classes) == ["a", "b"]


def test_ridge_probe_predicts_only_what_folds_test():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(80, 5))
    y = x @ draw.normal(size=(5, 2))
    predicted = probes.ridge_probe(x, y, [(np.arange(40), np.arange(40, 60))])
    assert np.isnan(predicted[60:]).all() and metrics.r_squared(y[40:60], predicted[40:60]) > 0.99


def test_intervals_and_adjustments():
    mean, low, high = statistics.mean_interval([1.0, 2.0, 3.0])
    assert mean == 2.0 and high - mean == pytest.approx(4.302653 / np.sqrt(3), rel=1e-5)
    assert np.isnan(statistics.mean_interval([1.0])[1])
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    low, high = statistics.bootstrap_interval(np.mean, np.arange(100.0), seed=0)
    assert low < 49.5 < high and high - low == pytest.approx(4 * 2.9, rel=0.2)


def test_rotation_null_keeps_autocorrelation():
    phase = np.repeat([0, 1] * 6, 100)
    shift = np.roll(phase, 3) + 0.1 * np.random.default_rng(0).normal(size=1200)
    score = lambda s, labels: metrics.auroc(labels == 1, s)  # noqa: E731
    null = statistics.circular_shift_null(score, shift, phase, 200, 20, seed=0)
    # Two periodic series coincide again after a period: the rotation null tells so.
    assert null.max() > 0.9
    assert statistics.p_value(1.0, np.zeros(99)) == 0.01
    with pytest.raises(ValueError):
        statistics.circular_shift_null(score, shift[:30], phase[:30], 10, 20, seed=0)
