"""URLOST: clusters of dimensions, the masked autoencoder, and its entry point."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.cluster import SpectralClustering
from sklearn.metrics import adjusted_rand_score

from popflow.inputs.config import preset
from popflow.models.urlost import Urlost, cluster_dimensions
from popflow.models.urlost.affinity import Affinity, connect, neighbour_graph
from popflow.models.urlost.clusters import _smallest, spectral_clusters
from popflow.models.urlost.network import (
    Gather,
    MaskedAutoencoder,
    hidden_dimensions,
    reconstruction_loss,
    visible_clusters,
)
from popflow.runtime.refusal import Refusal


def planted(sizes, rows=500, correlation=0.5, seed=0):
    """Draw blocks of dimensions that share a factor, in random order, with their truth."""
    draw = np.random.default_rng(seed)
    truth = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
    factors = draw.normal(size=(rows, len(sizes)))[:, truth]
    noise = draw.normal(size=(rows, len(truth)))
    return np.sqrt(correlation) * factors + np.sqrt(1 - correlation) * noise, truth


def tiny(**training):
    settings = preset("urlost")
    settings["clusters"]["number"] = 6
    settings["network"] |= {"width": 16, "encoder_depth": 1, "head_width": 8}
    settings["objective"]["loss"] = "mse"
    settings["training"] |= {"epochs": 1, "min_updates": 12, "batch": 16} | training
    return settings


def autoencoder(labels, seed=0):
    torch.manual_seed(seed)
    settings = preset("urlost")["network"]
    return MaskedAutoencoder(torch.as_tensor(labels), settings, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("estimator", ["mi_gauss", "abs_corr"])
@pytest.mark.parametrize("sizes", [[32] * 8, [8, 16, 24, 32, 40, 48, 56, 64]])
def test_planted_blocks_are_found(sizes, estimator):
    x, truth = planted(sizes)
    found = cluster_dimensions(x, 8, {"estimator": estimator})
    assert adjusted_rand_score(truth, found.labels) >= 0.95
    assert sorted(found.diagnostics["sizes"]) == sorted(np.bincount(found.labels))


def test_clusters_do_not_depend_on_the_order_of_dimensions():
    x, truth = planted([12] * 6, rows=300)
    order = np.random.default_rng(1).permutation(x.shape[1])
    a, b = cluster_dimensions(x, 6).labels, cluster_dimensions(x[:, order], 6).labels
    assert adjusted_rand_score(a[order], b) == 1.0


def test_beta_one_is_the_normalised_cut():
    x, _ = planted([20, 30, 40, 50], correlation=0.3)
    options = preset("urlost")["clusters"]
    graph = cluster_dimensions(x, 4).graph
    ours = spectral_clusters(graph, 4, options).labels
    theirs = SpectralClustering(
        4, affinity="precomputed", assign_labels="discretize", random_state=0
    ).fit_predict(graph.toarray())
    assert adjusted_rand_score(ours, theirs) >= 0.95


def test_without_density_adjustment_sizes_are_less_even():
    x, _ = planted([10, 15, 20, 60], correlation=0.2, rows=200)
    even = cluster_dimensions(x, 8).diagnostics["sizes"]
    uneven = cluster_dimensions(x, 8, options={"beta": 0.0}).diagnostics["sizes"]
    assert np.var(uneven) > np.var(even)


def test_random_clusters_keep_the_sizes():
    x, _ = planted([8, 12, 20, 24])
    ours = cluster_dimensions(x, 4).labels
    drawn = cluster_dimensions(x, 4, options={"assignment": "random"}).labels
    assert sorted(np.bincount(ours)) == sorted(np.bincount(drawn))
    assert adjusted_rand_score(ours, drawn) < 0.2


@pytest.mark.parametrize("bins, expected", [(8, 0.128), (16, 0.140)])
def test_histogram_information_of_a_bivariate_normal(bins, expected):
    draw = np.random.default_rng(0)
    a = draw.normal(size=50_000)
    x = np.column_stack([a, 0.5 * a + np.sqrt(0.75) * draw.normal(size=50_000)])
    value = Affinity(x, "mi_hist", "pearson", bins).block(np.array([0]), np.array([1]))[0, 0]
    assert value == pytest.approx(expected, abs=0.02)
    gauss = Affinity(x, "mi_gauss", "pearson", 8).block(np.array([0]), np.array([1]))[0, 0]
    assert gauss == pytest.approx(0.1438, abs=0.01)


def test_biased_histograms_are_told(caplog):
    Affinity(np.random.default_rng(0).normal(size=(500, 3)), "mi_hist", "pearson", 16)
    assert "16 bins on 500 samples bias the mutual information by 0.23 nats" in caplog.text


def test_detection_information_of_copies_is_their_entropy():
    x = (np.random.default_rng(0).random((4000, 1)) < 0.3).astype(float).repeat(2, axis=1)
    value = Affinity(x, "mi_zero", "pearson", 8).block(np.array([0]), np.array([1]))[0, 0]
    p = x.mean()
    assert value == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p), abs=1e-3)


@pytest.mark.parametrize("estimator", ["mi_gauss", "mi_hist", "mi_zero", "abs_corr"])
def test_blocks_do_not_change_the_graph(estimator):
    x, _ = planted([7, 9, 13], rows=80)
    affinity = Affinity(x, estimator, "spearman", 4)
    whole, parts = neighbour_graph(affinity, 5, 1000), neighbour_graph(affinity, 5, 4)
    assert abs(whole - parts).max() < 1e-5
    dense = affinity.block(np.arange(29), np.arange(29))
    np.fill_diagonal(dense, -1)
    assert whole.toarray().max(1) == pytest.approx(np.maximum(dense.max(1), 0), abs=1e-5)


def test_components_are_joined_by_their_strongest_edge():
    x, truth = planted([10, 10, 10], correlation=0.9)
    affinity = Affinity(x, "mi_gauss", "pearson", 8)
    graph = neighbour_graph(affinity, 4, 1000)
    joined, before = connect(graph, affinity, 1000)
    assert before == 3 and sp.csgraph.connected_components(joined, directed=False)[0] == 1
    assert adjusted_rand_score(truth, cluster_dimensions(x, 3, {"neighbours": 4}).labels) == 1.0


def test_sparse_eigenvectors_equal_dense_ones(monkeypatch):
    x, _ = planted([30, 40, 50], correlation=0.3)
    graph = cluster_dimensions(x, 3).graph
    degree = np.asarray(graph.sum(1)).ravel()
    scale = sp.diags(degree**-0.5)
    laplacian = (scale @ (sp.diags(degree) - graph) @ scale).tocsr()
    dense = _smallest(laplacian, 4)[0]
    monkeypatch.setattr("popflow.models.urlost.clusters.DENSE_LIMIT", 10)
    values, _, residual = _smallest(laplacian, 4)
    assert values == pytest.approx(dense, abs=1e-5) and residual < 1e-3


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x: x[:, :3], "4 clusters asked for"),
        (lambda x: np.column_stack([x, np.ones(len(x))]), "1 constant dimensions"),
        (lambda x: np.where(np.arange(x.shape[1]) == 2, np.nan, x), "hold NaN"),
    ],
)
def test_what_cannot_be_clustered_is_refused(change, message):
    x, _ = planted([5, 5, 5, 5], rows=50)
    with pytest.raises(Refusal, match=message):
        cluster_dimensions(change(x), 4)


def test_duplicated_dimensions_share_a_cluster():
    x, _ = planted([10, 10, 10, 10])
    labels = cluster_dimensions(np.column_stack([x, x[:, :5]]), 4).labels
    assert np.array_equal(labels[:5], labels[-5:])


@pytest.mark.parametrize("sizes", [[1], [1, 1, 1], [5, 1, 3], [2, 7]])
def test_gather_and_scatter_are_inverse(sizes):
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    gather, x = Gather(labels), torch.randn(4, len(labels))
    assert torch.equal(gather.scatter(gather(x)), x)


def test_hidden_clusters_never_reach_the_encoder():
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3])
    model, x = autoencoder(labels), torch.randn(2, 8, requires_grad=True)
    keep = torch.tensor([[1, 3], [0, 2]])
    model.encode(x, keep).square().sum().backward()
    hidden = hidden_dimensions(keep, labels, 4)
    assert (x.grad[hidden] == 0).all() and (x.grad[~hidden] != 0).all()


def test_padding_changes_nothing():
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    model, x = autoencoder(labels), torch.randn(3, 6)
    before = model.decode(model.encode(x))
    loss = reconstruction_loss(before, x, torch.ones(3, 6, dtype=torch.bool), "mse")
    loss.backward()
    padded = ~model.gather.valid
    assert (model.inward.weight.grad[padded] == 0).all()
    with torch.no_grad():
        model.inward.weight[padded] = 1e6
        assert torch.equal(model.decode(model.encode(x)), before)


def test_loss_counts_hidden_dimensions_truly():
    x, predicted = torch.zeros(1, 4), torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    hidden = torch.tensor([[False, True, True, False]])
    assert reconstruction_loss(predicted, x, hidden, "mse") == pytest.approx(6.5)
    assert reconstruction_loss(predicted, x, hidden, "huber") == pytest.approx(2.0)
    x[0, 1] = float("nan")
    assert reconstruction_loss(predicted, x, hidden, "mse") == pytest.approx(9.0)


def test_masks_keep_the_right_number_of_clusters():
    keep = visible_clusters(500, 64, 0.75, torch.Generator().manual_seed(0))
    assert keep.shape == (500, 16)
    assert (keep.sort(1).values.diff(dim=1) > 0).all()
    assert torch.bincount(keep.flatten(), minlength=64).float().std() < 20


def test_weights_start_from_the_true_size_of_a_cluster():
    labels = torch.repeat_interleave(torch.arange(2), torch.tensor([100, 4]))
    weight = autoencoder(labels).inward.weight.detach()
    assert weight[0].abs().max() <= 0.1 < 0.4 < weight[1, :4].abs().max() <= 0.5


def test_training_predicts_hidden_clusters_from_visible_ones():
    x, _ = planted([8] * 6, rows=192, correlation=0.6)
    x = x + 1.5 * np.random.default_rng(1).normal(size=(192, 1))
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    model = Urlost(settings=tiny(min_updates=200, learning_rate=3e-3), seed=0).fit(x[32:], x[:32])
    # The shared part of the variance is 2.25 of 3.25; predicting the mean would give 1.
    assert 0.25 < model.history_["held_out_loss"].iloc[-1] < 0.7
    assert model.transform(x).shape == (192, 96)
    assert model.transform(x, features="class").shape == (192, 16)


def test_columns_are_aligned_by_name_or_refused():
    x, _ = planted([6] * 6, rows=48)
    names = [f"g{i}" for i in range(36)]
    model = Urlost(settings=tiny(epochs=0), seed=0).fit(x, names=names)
    order = np.random.default_rng(0).permutation(36)
    shuffled = model.transform(x[:, order], [names[i] for i in order])
    assert np.array_equal(shuffled, model.transform(x, names))
    with pytest.raises(Refusal, match="1 dimensions of the fit are absent, e.g. g3"):
        model.transform(np.delete(x, 3, 1), names[:3] + names[4:])
    with pytest.raises(Refusal, match=r"an array of \(48, 35\)"):
        model.transform(x[:, 1:])
