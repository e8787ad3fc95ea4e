"""Engines of Gaussian processes: dense, sparse and state-space agree where they must."""

import numpy as np
import pytest
import torch

from popflow.models.infinite_gpfa.engines import (
    DenseEngine,
    SparseEngine,
    choose_engine,
    covariance,
    make_engine,
)
from popflow.models.infinite_gpfa.statespace import StateSpaceEngine
from popflow.runtime.refusal import Refusal

MATERN = ["matern12", "matern32", "matern52"]


def sites(bins, seed=0):
    draw = np.random.default_rng(seed)
    w, linear = draw.random(bins) * 5, draw.normal(size=bins) * 3
    w[3:7], linear[3:7] = 0.0, 0.0
    return torch.from_numpy(w), torch.from_numpy(linear)


def exact(times, kernel, lengthscale, w, linear):
    """Posterior and divergence by plain algebra, a trial at a time."""
    means, variances, kl, start = [], [], 0.0, 0
    for t in times:
        part = slice(start, start + len(t))
        k = covariance(kernel, t, t, lengthscale)
        root = w[part].sqrt()
        b = torch.eye(len(t)).double() + root[:, None] * k * root
        s = k - (k * root) @ torch.linalg.solve(b, root[:, None] * k)
        m = s @ linear[part]
        # The trace and the quadratic of the divergence by the sites, without inverting K.
        alpha = linear[part] - w[part] * m
        trace = -(w[part] * s.diagonal()).sum()
        kl += 0.5 * float(torch.logdet(b) + trace + m @ alpha)
        means.append(m)
        variances.append(s.diagonal())
        start += len(t)
    return torch.cat(means), torch.cat(variances), kl


@pytest.mark.parametrize("kernel", MATERN)
@pytest.mark.parametrize("lengthscale", [0.05, 0.4, 30.0])
def test_the_state_space_is_the_dense_posterior(kernel, lengthscale):
    times = [torch.sort(torch.rand(40).double() * 6).values, 3 + torch.arange(25).double() * 0.02]
    torch.manual_seed(0)
    w, linear = sites(65)
    found = StateSpaceEngine(times, kernel).solve(lengthscale, w, linear)
    mean, variance, kl = exact(times, kernel, lengthscale, w, linear)
    assert torch.allclose(found.m, mean, atol=1e-8)
    assert torch.allclose(found.v, variance, atol=1e-8)
    assert found.kl == pytest.approx(kl, abs=1e-7)


@pytest.mark.parametrize("kernel", ["rbf", *MATERN])
def test_dense_engine_is_plain_algebra(kernel):
    times = [torch.arange(30).double() * 0.1, torch.arange(12).double() * 0.1]
    w, linear = sites(42)
    found = DenseEngine(times, kernel).solve(0.5, w, linear)
    mean, variance, kl = exact(times, kernel, 0.5, w, linear)
    assert torch.allclose(found.m, mean, atol=1e-4) and torch.allclose(found.v, variance, atol=1e-4)
    assert found.kl == pytest.approx(kl, abs=1e-3)


def test_a_gap_makes_no_bins_and_a_long_one_forgets():
    near = torch.arange(20).double() * 0.1
    w, linear = sites(40)
    gap = torch.cat([near, near + 1000.0])
    joined = StateSpaceEngine([gap], "matern32").solve(0.5, w, linear)
    apart = StateSpaceEngine([near, near], "matern32").solve(0.5, w, linear)
    assert torch.allclose(joined.m, apart.m, atol=1e-10) and joined.kl == pytest.approx(apart.kl)
    assert len(joined.m) == 40


def test_the_origin_of_time_does_not_matter():
    t = torch.arange(30).double() * 0.02
    w, linear = sites(30)
    for engine in (SparseEngine, None):
        posts = []
        for origin in (0.0, 4096.0):
            made = engine([t + origin], "matern32", 10) if engine else None
            made = made or StateSpaceEngine([t + origin], "matern32")
            posts.append(made.solve(0.1, w, linear))
        assert torch.allclose(posts[0].m, posts[1].m, atol=1e-8)


def test_kernels_and_their_sums():
    t = torch.arange(50).double() * 0.1
    periodic = covariance("periodic", t, t, 1.0, period=1.0)
    assert torch.allclose(periodic[0, 10], torch.ones(()).double()) and periodic[0, 5] < 0.9
    both = covariance("rbf+matern32", t, t, 0.7)
    parts = [covariance(name, t, t, 0.7) for name in ("rbf", "matern32")]
    assert torch.allclose(both, sum(parts) / 2)
    for name in ("rbf", *MATERN, "periodic+rbf"):
        assert torch.allclose(covariance(name, t, t, 0.7).diagonal(), torch.ones(50).double())


def test_the_engine_follows_kernel_and_duration():
    assert choose_engine("auto", "matern32", 100) == "statespace"
    assert choose_engine("auto", "rbf", 100) == "dense"
    assert choose_engine("auto", "rbf", 10_000) == "sparse"
    assert choose_engine("sparse", "matern32", 10_000) == "sparse"
    with pytest.raises(Refusal, match="the kernel rbf"):
        make_engine("statespace", [torch.arange(5).double()], "rbf", 5, 1.0)
