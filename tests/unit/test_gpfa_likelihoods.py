"""Observation models of infinite GPFA: bounds against enumeration and quadrature, gradients."""

import itertools

import numpy as np
import pytest
import torch
from scipy import special, stats

from popflow.models.infinite_gpfa import InfiniteGPFA
from popflow.models.infinite_gpfa.likelihoods import Bernoulli, Gaussian, NegativeBinomial
from popflow.models.infinite_gpfa.poisson import LognormalPoisson, MomentPoisson, Poisson
from tests.unit.test_infinite_gpfa import random_posterior, settings, switching

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)


def enumerated(tau, m, v, c, b, function):
    """E[function(h)] over masks and factors, exactly: all masks, and a Gaussian per mask."""
    total = 0.0
    for on in itertools.product((0, 1), repeat=len(tau)):
        weight = np.prod([t if z else 1 - t for t, z in zip(tau, on, strict=True)])
        mean = b + sum(z * a * k for z, a, k in zip(on, c, m, strict=True))
        spread = np.sqrt(sum(z * a**2 * k for z, a, k in zip(on, c, v, strict=True)))
        values = function(mean + spread * NODES)
        total += weight * (values * WEIGHTS).sum() / WEIGHTS.sum()
    return total


@pytest.fixture
def one_entry():
    tau, m, v, c, b = random_posterior(3)
    flat = [x.numpy().ravel() for x in (tau, m, v, c)]
    return (c, b, tau, m, v), lambda function: enumerated(*flat, b.item(), function)


@pytest.mark.parametrize("y", [0.0, 1.0, 6.0])
def test_poisson_is_exact(one_entry, y):
    args, expect = one_entry
    model = Poisson(torch.tensor([[y]]).double(), torch.ones(1, 1), torch.tensor([0.5]).double())
    exact = expect(lambda h: stats.poisson.logpmf(y, 0.5 * np.exp(h)))
    assert model.expected(*args) == pytest.approx(exact, abs=1e-7)


def test_the_taylor_expansion_overstates_the_likelihood(one_entry):
    args, expect = one_entry
    held = (torch.tensor([[2.0]]).double(), torch.ones(1, 1), torch.tensor([0.5]).double())
    exact = expect(lambda h: stats.poisson.logpmf(2, 0.5 * np.exp(h)))
    assert MomentPoisson(*held).expected(*args) > exact


@pytest.mark.parametrize("y, size", [(0.0, 2.0), (5.0, 2.0), (3.0, 0.7)])
def test_negative_binomial_bound_lies_just_below(one_entry, y, size):
    args, expect = one_entry
    held = (torch.tensor([[y]]).double(), torch.ones(1, 1), torch.tensor([0.5]).double())
    model = NegativeBinomial(*held)
    model.size = torch.tensor([size]).double()
    exact = expect(lambda h: stats.nbinom.logpmf(y, size, size / (size + 0.5 * np.exp(h))))
    assert exact - 0.1 < model.expected(*args) <= exact + 1e-9


def test_negative_binomial_is_tight_at_small_variance_and_poisson_at_large_size():
    tau, m, v, c, b = random_posterior(3)
    args, held = (c * 0.05, b, tau, m, v * 0.01), torch.tensor([[3.0]]).double()
    model = NegativeBinomial(held, torch.ones(1, 1), torch.tensor([2.0]).double())
    flat = [x.numpy().ravel() for x in (tau, m, v * 0.01, c * 0.05)]
    exact = enumerated(
        *flat, b.item(), lambda h: stats.nbinom.logpmf(3, 5, 5 / (5 + 2 * np.exp(h)))
    )
    assert exact - model.expected(*args) < 0.01
    # At a large size the bound is tight only where h is known, and there it is Poisson's.
    args = (c, b, torch.ones_like(tau), m, torch.zeros_like(v))
    model.size = torch.tensor([1e6]).double()
    poisson = Poisson(held, torch.ones(1, 1), torch.tensor([2.0]).double())
    assert model.expected(*args) == pytest.approx(poisson.expected(*args), abs=1e-3)


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_bernoulli_bound_lies_just_below(one_entry, y):
    args, expect = one_entry
    model = Bernoulli(torch.tensor([[y]]).double(), torch.ones(1, 1), torch.ones(1).double())
    exact = expect(lambda h: y * h - np.log1p(np.exp(h)))
    assert exact - 0.05 < model.expected(*args) <= exact + 1e-9


KINDS = [Gaussian, NegativeBinomial, Bernoulli, Poisson, MomentPoisson, LognormalPoisson]


@pytest.mark.parametrize("kind", KINDS)
def test_influences_are_the_gradients_of_the_bound(kind):
    tau, m, v, c, b = random_posterior(5, bins=6, units=3)
    y = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (6, 3))).double()
    seen = torch.from_numpy(np.random.default_rng(1).random((6, 3)) < 0.8)
    model = kind(y, seen, torch.full((6,), 0.5).double(), chunk=4)
    model.start(c, b, tau, m, v)
    acts = model.take_out(c[:, 1], tau[1], m[1], v[1])
    value, step = model.expected(c, b, tau, m, v), 1e-5

    def slope(which, bin):
        ends = []
        for sign in (1, -1):
            moments = [tau.clone(), m.clone(), v.clone()]
            moments[which][1, bin] += sign * step
            ends.append(model.expected(c, b, *moments))
        return (ends[0] - ends[1]) / (2 * step)

    assert np.isfinite(value)
    for bin in (0, 3, 5):
        assert acts.evidence[bin] == pytest.approx(slope(0, bin), rel=1e-4, abs=1e-6)
        by_mean, by_variance = slope(1, bin), slope(2, bin)
        assert acts.w[bin] == pytest.approx(-2 * by_variance, rel=1e-4, abs=1e-6)
        linear = by_mean + acts.w[bin] * m[1, bin]
        assert acts.linear[bin] == pytest.approx(float(linear), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_taking_out_and_putting_back_changes_nothing(kind):
    tau, m, v, c, b = random_posterior(5, bins=6, units=3)
    y = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (6, 3))).double()
    model = kind(y, torch.ones(6, 3), torch.full((6,), 0.5).double())
    model.start(c, b, tau, m, v)
    first = model.take_out(c[:, 0], tau[0], m[0], v[0])
    model.put_back(c[:, 0], tau[0], m[0], v[0])
    again = model.take_out(c[:, 0], tau[0], m[0], v[0])
    assert torch.allclose(first.w, again.w) and torch.allclose(first.linear, again.linear)
    moved = model.factor_bound(c[:, 0], tau[0], m[0] + 0.1, v[0])[0] - again.bound
    new = m.clone()
    new[0] += 0.1
    whole = model.expected(c, b, tau, new, v) - model.expected(c, b, tau, m, v)
    assert moved == pytest.approx(
        whole, abs=2e-2 if kind in (NegativeBinomial, Bernoulli) else 1e-9
    )


@pytest.mark.parametrize("kind", ["negative_binomial", "bernoulli"])
def test_the_bound_never_falls_with_polya_gamma(kind):
    y, _ = switching()
    y = np.minimum(y, 1) if kind == "bernoulli" else y
    model = InfiniteGPFA(settings=settings(likelihood=kind, iterations=20)).fit(y, 0.1)
    elbo = np.array([row["elbo"] for row in model.elbo_trace_])
    assert (np.diff(elbo) >= -1e-8 * np.abs(elbo[:-1])).all()


def test_overdispersed_counts_are_better_off_with_a_negative_binomial():
    draw = np.random.default_rng(0)
    rate = np.exp(1.5 + np.sin(np.arange(300) / 15)[:, None] * draw.normal(size=20))
    y = draw.poisson(draw.gamma(1.5, rate / 1.5))
    held = draw.random(y.shape) < 0.1
    options = settings(n_factors=2, iterations=25, masks=False)
    scores, fits = {}, {}
    for kind in ("poisson", "negative_binomial"):
        fits[kind] = InfiniteGPFA(settings=options | {"likelihood": kind}).fit(y, 1.0, ~held)
        scores[kind] = fits[kind].score(y, held, draws=100)
    assert scores["negative_binomial"] > scores["poisson"] + 0.05
    assert 0.7 < np.median(fits["negative_binomial"].parameters_["size"]) < 4


@pytest.mark.parametrize("kind", ["taylor2", "lognormal"])
def test_approximate_expectations_can_be_fitted(kind):
    y, _ = switching()
    options = settings(poisson_expectation=kind, iterations=10)
    model = InfiniteGPFA(settings=options).fit(y, 0.1)
    assert np.isfinite(model.gated_mean_).all()
    elbo = [row["elbo"] for row in model.elbo_trace_]
    assert elbo[-1] > elbo[0]


def test_log_densities_are_those_of_scipy():
    h, y = torch.tensor([0.3, -1.2]).double(), torch.tensor([2.0, 0.0]).double()
    size, exposure = torch.tensor([1.5, 4.0]).double(), torch.tensor(0.5).double()
    rate = 0.5 * np.exp(h.numpy())
    p = size.numpy() / (size.numpy() + rate)
    found = NegativeBinomial.log_density(y, h, exposure, size).numpy()
    assert found == pytest.approx(stats.nbinom.logpmf(y.numpy(), size.numpy(), p))
    assert Poisson.log_density(y, h, exposure).numpy() == pytest.approx(
        stats.poisson.logpmf(y.numpy(), rate)
    )
    odds = special.log_expit(-h.numpy())
    assert Bernoulli.log_density(0 * y, h, exposure).numpy() == pytest.approx(odds)
