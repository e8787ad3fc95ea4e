"""Infinite GPFA: moments, divergences, the bound, invariances, and its entry point."""

import itertools

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from popflow.inputs.config import preset
from popflow.models.infinite_gpfa import InfiniteGPFA
from popflow.models.infinite_gpfa.engines import (
    DenseEngine,
    SparseEngine,
    cholesky,
    covariance,
    make_engine,
)
from popflow.models.infinite_gpfa.inference import Ascent
from popflow.models.infinite_gpfa.likelihoods import Gaussian
from popflow.models.infinite_gpfa.masks import MaskPosterior, StickPosterior, expected_active
from popflow.models.infinite_gpfa.moments import (
    gated_variance,
    log_gated_exponential,
    log_rate_moments,
)
from popflow.models.infinite_gpfa.poisson import Poisson
from popflow.models.infinite_gpfa.start import joint_diagonaliser, switching_rotation
from popflow.runtime.checkpoints import Checkpoints
from popflow.runtime.refusal import Refusal

D = 4


def random_posterior(seed=0, bins=1, units=1):
    draw = np.random.default_rng(seed)
    tau, m = draw.uniform(0.1, 0.9, (D, bins)), draw.normal(size=(D, bins))
    v, c = draw.uniform(0.1, 0.8, (D, bins)), draw.normal(size=(units, D)) * 0.6
    return tuple(torch.from_numpy(a) for a in (tau, m, v, c, draw.normal(size=units) * 0.2))


def settings(**changes):
    return preset("infinite_gpfa") | {"n_factors": 3, "inducing": 30, "iterations": 12} | changes


def switching(bins=150, units=12, seed=0, noise=None):
    """Draw counts (or noisy signals) from two smooth factors switched on and off."""
    draw = np.random.default_rng(seed)
    t = np.arange(bins) * 0.1
    k = np.exp(-0.5 * (t[:, None] - t) ** 2) + 1e-6 * np.eye(bins)
    f = np.linalg.cholesky(k) @ draw.normal(size=(bins, 2))
    z = (np.sin(t[:, None] * [0.9, 1.3] + [0, 2]) > 0).astype(float)
    h = (z * f) @ draw.normal(size=(2, units)) + 0.5
    if noise is None:
        return draw.poisson(np.exp(np.minimum(h, 3.0))), z * f
    return h + draw.normal(0, noise, h.shape), z * f


def test_moments_agree_with_monte_carlo():
    tau, m, v, c, b = random_posterior()
    draw = np.random.default_rng(1)
    count = 400_000
    f = m.numpy().ravel() + np.sqrt(v.numpy().ravel()) * draw.normal(size=(count, D))
    z = draw.random((count, D)) < tau.numpy().ravel()
    h = (z * f) @ c.numpy().ravel() + b.item()
    mean, variance = log_rate_moments(c, b, tau, m, v)
    assert abs(h.mean() - mean.item()) < 4 * h.std() / np.sqrt(count)
    error = 4 * np.std((h - h.mean()) ** 2) / np.sqrt(count)
    assert abs(h.var() - variance.item()) < error
    wrong = ((tau**2 * v + tau * (1 - tau) * m**2).T @ (c**2).T).item()
    assert abs(h.var() - wrong) > error


def test_gated_variance_of_a_known_case():
    half, one = torch.tensor(0.5), torch.tensor(1.0)
    # z f with τ = ½, f ~ N(1, 1): E = ½, E[z² f²] = ½ · 2, so the variance is 1 - ¼.
    assert gated_variance(half, one, one) == pytest.approx(0.75)


def test_expected_rate_is_exact_by_enumeration():
    tau, m, v, c, b = random_posterior(3)
    eta = c.ravel() * m.ravel() + 0.5 * c.ravel() ** 2 * v.ravel()
    product = torch.exp(b + log_gated_exponential(tau.ravel(), eta).sum()).item()
    total = 0.0
    for on in itertools.product((0, 1), repeat=D):
        on = np.array(on)
        weight = np.prod(np.where(on, tau.numpy().ravel(), 1 - tau.numpy().ravel()))
        total += weight * np.exp(b.item() + (on * eta.numpy()).sum())
    assert product == pytest.approx(total, rel=1e-12)
    large = log_gated_exponential(torch.tensor(0.3).double(), torch.tensor(800.0).double())
    assert large.item() == pytest.approx(800 + np.log(0.3))


def test_mask_divergences():
    tau = torch.full((2, 5), 0.3, dtype=torch.float64)
    masks = MaskPosterior(torch.tensor([0.5, 0.5]).double(), torch.ones(2).double(), alpha=1.0)
    # q(π) = p(π) = Beta(α/D, 1) has no divergence.
    assert masks.divergences(tau)["kl_pi"] == pytest.approx(0.0, abs=1e-12)
    masks = MaskPosterior(torch.tensor([2.0]).double(), torch.tensor([3.0]).double(), alpha=1.5)
    truth = integrate.quad(
        lambda x: (
            stats.beta.pdf(x, 2, 3) * (stats.beta.logpdf(x, 2, 3) - stats.beta.logpdf(x, 1.5, 1))
        ),
        0,
        1,
    )[0]
    assert masks.divergences(tau[:1])["kl_pi"] == pytest.approx(truth, abs=1e-6)
    e1, e0 = (special.digamma(x) - special.digamma(5) for x in (2, 3))
    entropy = 0.3 * np.log(0.3) + 0.7 * np.log(0.7)
    expected = 5 * (entropy - 0.3 * e1 - 0.7 * e0)
    assert masks.divergences(tau[:1])["kl_z"] == pytest.approx(expected)


def test_alpha_divergence_is_zero_at_the_prior_and_matches_quadrature():
    masks = MaskPosterior(
        torch.ones(1).double(), torch.ones(1).double(), None, 2.0, 3.0, (2.0, 3.0)
    )
    tau = torch.full((1, 2), 0.5, dtype=torch.float64)
    assert masks.divergences(tau)["kl_alpha"] == pytest.approx(0.0, abs=1e-12)
    masks.h1, masks.h2 = 4.0, 1.5
    q, p = stats.gamma(4, scale=1 / 1.5), stats.gamma(2, scale=1 / 3)
    truth = integrate.quad(lambda x: q.pdf(x) * (q.logpdf(x) - p.logpdf(x)), 0, 60)[0]
    assert masks.divergences(tau)["kl_alpha"] == pytest.approx(truth, abs=1e-6)


@pytest.mark.parametrize("alpha, d, expected", [(2, 10, 1.667), (1, 10, 0.909), (2, 50, 1.923)])
def test_prior_number_of_active_factors(alpha, d, expected):
    assert expected_active(alpha, d) == pytest.approx(expected, abs=1e-3)
    draw = np.random.default_rng(0)
    pi = draw.beta(alpha / d, 1, (20_000, d))
    assert pi.sum(1).mean() == pytest.approx(expected, rel=0.05)


def test_sparse_engine_with_all_bins_is_the_exact_posterior():
    t = torch.arange(40, dtype=torch.float64) * 0.1
    draw = torch.Generator().manual_seed(0)
    w, linear = torch.rand(40, generator=draw).double(), torch.randn(40, generator=draw).double()
    q = DenseEngine([t], "rbf").solve(0.3, w, linear)
    k = covariance("rbf", t, t, 0.3) + 1e-6 * torch.eye(40, dtype=torch.float64)
    s = torch.linalg.inv(torch.linalg.inv(k) + torch.diag(w))
    assert torch.allclose(q.m, s @ linear, atol=1e-4)
    assert torch.allclose(q.v, s.diagonal(), atol=1e-4)
    kl = torch.distributions.kl_divergence(
        torch.distributions.MultivariateNormal(s @ linear, (s + s.T) / 2),
        torch.distributions.MultivariateNormal(torch.zeros(40).double(), k),
    )
    assert q.kl == pytest.approx(kl.item(), rel=1e-3)


def test_trials_are_independent():
    t = torch.arange(20, dtype=torch.float64) * 0.1
    w, linear = torch.ones(40, dtype=torch.float64), torch.arange(40, dtype=torch.float64) / 10
    both = SparseEngine([t, t], "matern32", 40).solve(0.5, w, linear)
    first = SparseEngine([t], "matern32", 20).solve(0.5, w[:20], linear[:20])
    assert torch.allclose(both.m[:20], first.m) and torch.allclose(both.v[:20], first.v)


def test_a_covariance_that_cannot_be_factorised_names_the_factor():
    with pytest.raises(Refusal, match="length-scale 2 s: its covariance is not positive definite"):
        cholesky(-torch.eye(3, dtype=torch.float64), "a factor of length-scale 2 s")


def test_poisson_gradients_agree_with_finite_differences():
    tau, m, v, c, b = random_posterior(5, bins=6, units=3)
    y = torch.from_numpy(np.random.default_rng(0).poisson(1.0, (6, 3))).double()
    model = Poisson(y, torch.ones_like(y), torch.full((6,), 0.5).double())
    m, v, c = (x.clone().requires_grad_() for x in (m, v, c))
    mean, _ = log_rate_moments(c, b, tau, m, v)
    eta = torch.einsum("nd,dt->tnd", c, m) + 0.5 * torch.einsum("nd,dt->tnd", c**2, v)
    rate = 0.5 * torch.exp(b + log_gated_exponential(tau.T[:, None, :], eta).sum(2))
    bound = (y * (mean + np.log(0.5)) - rate - torch.lgamma(y + 1)).sum()
    dm, dv, dc = torch.autograd.grad(bound, (m, v, c))
    m, v, c = m.detach(), v.detach(), c.detach()
    assert model.expected(c, b, tau, m, v) == pytest.approx(bound.item(), rel=1e-12)
    model.start(c, b, tau, m, v)
    acts = model.take_out(c[:, 1], tau[1], m[1], v[1])
    assert torch.allclose(acts.w, -2 * dv[1], atol=1e-10)
    assert torch.allclose(acts.linear, dm[1] + acts.w * m[1], atol=1e-10)
    model.put_back(c[:, 1], tau[1], m[1], v[1])
    flat = torch.full((D,), 1e12, dtype=torch.float64)
    gradient, _ = model._newton(c, b, tau, m, v, flat)
    assert torch.allclose(gradient[:, :D], dc, atol=1e-8)


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
def test_the_bound_never_falls(likelihood):
    y, _ = switching(noise=0.5 if likelihood == "gaussian" else None)
    model = InfiniteGPFA(settings=settings(likelihood=likelihood, iterations=25)).fit(y, 0.1)
    elbo = np.array([row["elbo"] for row in model.elbo_trace_])
    assert (np.diff(elbo) >= -1e-8 * np.abs(elbo[:-1])).all()
    parts = model.elbo_trace_[-1]
    kl = sum(value for name, value in parts.items() if name.startswith("kl"))
    assert parts["elbo"] == pytest.approx(
        parts["log_likelihood"] + parts["log_prior_loadings"] - kl
    )


def test_the_bound_is_below_the_evidence():
    """Six bins, one factor: sum over 2⁶ masks of a Gaussian integral, π integrated out."""
    draw = np.random.default_rng(0)
    y = torch.from_numpy(draw.normal(size=(6, 2)))
    t = torch.arange(6, dtype=torch.float64) * 0.1
    options = settings(n_factors=1, likelihood="gaussian", learn_alpha=False, alpha=1.0)
    ascent = Ascent(DenseEngine([t], "rbf"), Gaussian(y, torch.ones_like(y), t), options, 0.1)
    state = ascent.start(0)
    state.lengthscales[:] = 0.3
    c, noise = state.loadings[:, 0].numpy(), ascent.likelihood.noise.numpy()
    for iteration in range(30):
        ascent.likelihood.start(state.loadings, state.offset, state.tau, state.m, state.v)
        ascent._update_factor(state, 0)
        if iteration > 3:
            ascent._update_mask(state, 0)
        state.masks.update(state.tau)
    bound = ascent.bound(state)
    k = covariance("rbf", t, t, 0.3).numpy() + 1e-6 * np.eye(6)
    terms = []
    for on in itertools.product((0.0, 1.0), repeat=6):
        gate = np.diag(on)
        cov = np.kron(gate @ k @ gate, np.outer(c, c)) + np.kron(np.eye(6), np.diag(noise))
        mean = np.tile(state.offset.numpy(), 6)
        likelihood = stats.multivariate_normal(mean, cov).logpdf(y.numpy().ravel())
        count = sum(on)
        terms.append(likelihood + special.betaln(1 + count, 7 - count) - special.betaln(1, 1))
    evidence = special.logsumexp(terms)
    value = bound["elbo"] - bound["log_prior_loadings"]
    assert value <= evidence + 1e-6
    assert value > evidence - 6


def test_without_masks_it_is_gpfa():
    y, _ = switching(bins=40, units=5, noise=0.4)
    options = settings(
        n_factors=1, likelihood="gaussian", masks=False, engine="dense", lengthscale_every=0
    )
    model = InfiniteGPFA(settings=options | {"lengthscale_s": 1.0, "iterations": 8}).fit(y, 0.1)
    noise, c = model.parameters_["noise"], model.loadings_[:, 0]
    assert (model.mask_probability_ == 1).all()
    k = covariance("rbf", *(2 * [torch.arange(40).double() * 0.1]), 1.0).numpy()
    assert np.isfinite(noise).all() and model.factor_variance_.max() <= 1.0 + 1e-6
    precision = np.linalg.inv(k + 1e-6 * np.eye(40)) + np.eye(40) * (c**2 / noise).sum()
    assert model.factor_variance_[:, 0] == pytest.approx(np.diag(np.linalg.inv(precision)), rel=0.1)


def test_entries_that_are_held_out_do_not_matter():
    y, _ = switching()
    held = np.random.default_rng(0).random(y.shape) < 0.2
    other = np.where(held, 77, y)
    a = InfiniteGPFA(settings=settings()).fit(y, 0.1, ~held)
    b = InfiniteGPFA(settings=settings()).fit(other, 0.1, ~held)
    assert a.elbo_trace_ == b.elbo_trace_
    assert np.array_equal(a.gated_mean_, b.gated_mean_)


def test_order_of_units_does_not_matter():
    y, _ = switching()
    order = np.random.default_rng(0).permutation(y.shape[1])
    options = settings(n_factors=2)
    a = InfiniteGPFA(settings=options).fit(y, 0.1)
    b = InfiniteGPFA(settings=options).fit(y[:, order], 0.1)
    assert a.elbo_trace_[-1]["elbo"] == pytest.approx(b.elbo_trace_[-1]["elbo"], rel=1e-9)
    assert a.loadings_[order] == pytest.approx(b.loadings_, abs=1e-6)


def test_chunks_do_not_matter():
    y, _ = switching()
    a = InfiniteGPFA(settings=settings()).fit(y, 0.1)
    b = InfiniteGPFA(settings=settings(chunk=17)).fit(y, 0.1)
    assert a.loadings_ == pytest.approx(b.loadings_, abs=1e-8)


def test_same_seed_same_numbers_and_resume(tmp_path, monkeypatch):
    y, _ = switching()
    options = settings(checkpoint_every=4, iterations=10)
    straight = InfiniteGPFA(settings=options, seed=3).fit(y, 0.1)
    iterate, calls = Ascent.iterate, []

    def interrupted(self, state, iteration):
        calls.append(iteration)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return iterate(self, state, iteration)

    monkeypatch.setattr(Ascent, "iterate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        InfiniteGPFA(settings=options, seed=3).fit(y, 0.1, checkpoints=tmp_path)
    monkeypatch.setattr(Ascent, "iterate", iterate)
    assert len(Checkpoints(tmp_path / "restart-0").latest()["trace"]) == 4
    resumed = InfiniteGPFA(settings=options, seed=3).fit(y, 0.1, checkpoints=tmp_path)
    assert straight.elbo_trace_ == resumed.elbo_trace_
    assert np.array_equal(straight.gated_mean_, resumed.gated_mean_)


def test_save_and_load(tmp_path):
    y, _ = switching()
    model = InfiniteGPFA(settings=settings(), seed=1).fit(y, 0.1)
    model.save(tmp_path)
    back = InfiniteGPFA.load(tmp_path)
    assert np.array_equal(model.gated_mean_, back.gated_mean_)
    entries = np.zeros(y.shape, bool)
    entries[::7, ::3] = True
    assert model.score(y, entries, draws=20) == back.score(y, entries, draws=20)


def test_masks_are_found_where_factors_are_strong():
    y, truth = switching(bins=400, units=30, noise=0.4, seed=2)
    held = np.random.default_rng(1).random(y.shape) < 0.1
    rate = settings(likelihood="gaussian", iterations=40, inducing=80)
    masked = InfiniteGPFA(settings=rate).fit(y, 0.1, ~held)
    plain = InfiniteGPFA(settings=rate, masks=False).fit(y, 0.1, ~held)
    correlation = np.abs(np.corrcoef(masked.gated_mean_.T, truth.T)[:3, 3:]).max(0)
    assert correlation.mean() > 0.9 and correlation.min() > 0.8
    assert masked.elbo_trace_[-1]["elbo"] > plain.elbo_trace_[-1]["elbo"]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda y: y - 1, "negative or fractional"),
        (lambda y: y + 0.5, "negative or fractional"),
        (lambda y: np.where(y > 1, np.nan, y), "NaN or infinite"),
        (lambda y: y[:, :0], "none of them zero"),
        (lambda y: y[:, 0], "an array of shape"),
    ],
)
def test_what_cannot_be_fitted_is_refused(change, message):
    y, _ = switching(bins=30, units=3)
    with pytest.raises(Refusal, match=message):
        InfiniteGPFA(settings=settings()).fit(change(y.astype(float)), 0.1)


def test_low_counts_under_a_gaussian_are_told(caplog):
    y, _ = switching(bins=30, units=3)
    y = np.minimum(y, 1)
    InfiniteGPFA(settings=settings(likelihood="gaussian", iterations=2)).fit(y, 0.1)
    assert "under a Gaussian model: use poisson" in caplog.text


def test_the_start_finds_the_axes_of_switching_sources():
    draw = np.random.default_rng(0)
    on = draw.random((30, 3)).repeat(50, 0) < 0.5
    sources = draw.normal(size=(1500, 3)) * np.where(on, 1.5, 0.1)
    sources /= sources.std(0)
    mixing = np.linalg.qr(draw.normal(size=(3, 3)))[0]
    found = np.abs(mixing @ switching_rotation(sources @ mixing))
    assert np.sort(found.max(0))[0] > 0.995
    assert sorted(found.argmax(0)) == [0, 1, 2]


def test_joint_diagonaliser_of_one_matrix_is_its_eigenvectors():
    draw = np.random.default_rng(0)
    a = draw.normal(size=(5, 5))
    axes = joint_diagonaliser((a + a.T)[None])
    diagonal = axes.T @ (a + a.T) @ axes
    assert axes.T @ axes == pytest.approx(np.eye(5), abs=1e-12)
    assert diagonal == pytest.approx(np.diag(np.diag(diagonal)), abs=1e-8)


@pytest.mark.parametrize("tau", [1e-6, 0.3, 1 - 1e-9, 1.0])
def test_gated_exponential_at_both_ends(tau):
    eta = torch.tensor(
        [-800.0, -38.0, -1.5, -1e-9, 0.0, 1e-9, 2.0, 35.0, 600.0], dtype=torch.float64
    )
    found = log_gated_exponential(torch.tensor(tau, dtype=torch.float64), eta)
    with np.errstate(over="ignore"):
        expected = [
            float(np.logaddexp(np.log1p(-tau) if tau < 1 else -np.inf, np.log(tau) + e))
            for e in eta.tolist()
        ]
    assert torch.isfinite(found).all()
    assert found.numpy() == pytest.approx(np.array(expected), rel=1e-9, abs=1e-12)


def test_stick_bound_is_the_long_form_and_below_the_truth():
    draw = np.random.default_rng(0)
    a, b = draw.uniform(0.5, 4, 4), draw.uniform(0.5, 4, 4)
    sticks = StickPosterior(torch.from_numpy(a), torch.from_numpy(b), 1.0)
    on, off = (x.numpy() for x in sticks.expected_logs())
    v = draw.beta(a, b, (400_000, 4))
    pi = v.cumprod(1)
    assert on == pytest.approx(np.log(pi).mean(0), abs=0.02)
    sampled = np.log1p(-pi)
    error = sampled.std(0) / np.sqrt(len(pi))
    assert (off <= sampled.mean(0) + 4 * error).all() and (off > sampled.mean(0) - 1).all()
    assert off[0] == pytest.approx(special.digamma(b[0]) - special.digamma(a[0] + b[0]))
    both = special.digamma(a + b)
    for d in range(4):
        terms = [
            special.digamma(b[i]) + special.digamma(a[:i]).sum() - both[: i + 1].sum()
            for i in range(d + 1)
        ]
        weights = np.exp(terms - special.logsumexp(terms))
        long = (weights * terms).sum() - (weights * np.log(weights)).sum()
        assert off[d] == pytest.approx(long)


def test_stick_updates_raise_the_bound():
    tau = torch.from_numpy(np.random.default_rng(0).random((5, 60)))
    sticks = StickPosterior(torch.ones(5).double(), torch.ones(5).double(), None)
    values = []
    for _ in range(15):
        sticks.update(tau)
        values.append(-sum(sticks.divergences(tau).values()))
    assert (np.diff(values) >= -1e-9).all() and values[-1] > values[0]


def test_prior_number_of_active_factors_of_broken_sticks():
    assert expected_active(2.0, 10, "stick_breaking") == pytest.approx(1.965, abs=1e-3)


def test_the_bound_never_falls_with_broken_sticks_or_learned_variances():
    y, _ = switching()
    for change in ({"mask_prior": "stick_breaking"}, {"ard": True, "masks": False}):
        model = InfiniteGPFA(settings=settings(**change, iterations=20)).fit(y, 0.1)
        elbo = np.array([row["elbo"] for row in model.elbo_trace_])
        assert (np.diff(elbo) >= -1e-8 * np.abs(elbo[:-1])).all()


def test_learned_variances_switch_surplus_factors_off():
    y, _ = switching(bins=300, units=20, noise=0.4)
    options = settings(likelihood="gaussian", n_factors=6, masks=False, ard=True, iterations=60)
    model = InfiniteGPFA(settings=options).fit(y, 0.1)
    assert np.linalg.norm(model.loadings_, axis=0)[3:].max() < 0.3
    assert model.n_effective_ <= 3


def test_without_masks_and_with_matched_parameters_it_is_gpfa():
    """All factors on, fixed parameters: the exact posterior of linear Gaussian factors."""
    y, _ = switching(bins=30, units=6, noise=0.4)
    options = settings(
        n_factors=1, likelihood="gaussian", masks=False, kernel="matern32", lengthscale_every=0
    )
    t = torch.arange(30, dtype=torch.float64) * 0.1
    seen = torch.ones(30, 6, dtype=torch.float64)
    gaussian = Gaussian(torch.from_numpy(y), seen, torch.ones(30).double())
    ascent = Ascent(make_engine("statespace", [t], "matern32", 0, 1.0), gaussian, options, 0.1)
    state = ascent.start(0)
    state.lengthscales[:] = 0.7
    ascent._update_factor(state, 0)
    c, noise = state.loadings.numpy(), gaussian.noise.numpy()
    k = covariance("matern32", t, t, 0.7).numpy()
    joint = np.kron(k, c @ c.T) + np.kron(np.eye(30), np.diag(noise))
    cross = np.kron(k, c.T)
    gain = np.linalg.solve(joint, cross.T).T
    mean = gain @ (y - state.offset.numpy()).ravel()
    variance = np.diag(k - gain @ cross.T)
    assert state.m[0].numpy() == pytest.approx(mean, abs=1e-6)
    assert state.v[0].numpy() == pytest.approx(variance, abs=1e-6)


def test_trials_and_their_order_and_the_origin_of_time_do_not_matter():
    y, _ = switching()
    options = settings(kernel="matern32", engine="statespace")
    trials = [y[:60], y[60:100], y[100:]]
    a = InfiniteGPFA(settings=options).fit(trials, 0.1)
    times = [np.arange(len(part)) * 0.1 + 500.0 * (n + 1) for n, part in enumerate(trials)]
    b = InfiniteGPFA(settings=options).fit(trials, 0.1, times=times)
    assert a.elbo_trace_[-1]["elbo"] == pytest.approx(b.elbo_trace_[-1]["elbo"], rel=1e-9)


def test_moves_end_above_where_they_started():
    y, _ = switching(bins=200, units=15, noise=0.5, seed=4)
    options = settings(likelihood="gaussian", n_factors=5, iterations=60)
    still = InfiniteGPFA(settings=options | {"moves": False}).fit(y, 0.1)
    moved = InfiniteGPFA(settings=options | {"moves": True}).fit(y, 0.1)
    assert moved.elbo_trace_[-1]["elbo"] >= still.elbo_trace_[-1]["elbo"] - 1e-6
    elbo = np.array([row["elbo"] for row in moved.elbo_trace_])
    assert elbo[-1] == elbo.max()


@pytest.mark.parametrize("kernel", ["matern12", "periodic", "rbf+matern32"])
def test_every_kernel_can_be_fitted(kernel):
    y, _ = switching(bins=80)
    model = InfiniteGPFA(settings=settings(kernel=kernel, iterations=6)).fit(y, 0.1)
    assert np.isfinite(model.gated_mean_).all()


def test_odd_but_possible_counts_give_finite_results():
    y, _ = switching(bins=60, units=4)
    silent = np.column_stack([y, np.zeros(60, int), np.full(60, 3)])
    model = InfiniteGPFA(settings=settings(n_factors=8, iterations=8)).fit(silent, 0.1)
    assert model.excluded_.tolist() == [False] * 4 + [True, True]
    assert (model.loadings_[4:] == 0).all() and np.exp(model.offset_[5]) == pytest.approx(30)
    one = InfiniteGPFA(settings=settings(iterations=6)).fit(y[:, :1], 0.1)
    for fit in (model, one):
        for name in ("loadings_", "offset_", "gated_mean_", "mask_probability_"):
            assert np.isfinite(getattr(fit, name)).all()
    entries = np.ones(silent.shape, bool)
    assert np.isfinite(model.log_predictive(silent, entries, draws=20)).all()


@pytest.mark.parametrize(
    "counts, change, message",
    [
        (np.ones((1, 3), int), {}, "one bin"),
        (np.ones((50, 3), int), {}, "none of 3 units changes"),
        (np.full((50, 3), 2), {"likelihood": "bernoulli"}, "0 or 1 in every bin"),
        (np.eye(50), {"lengthscale_s": 0.01}, "below the bin"),
        ([], {}, "no trial"),
        ([np.ones((5, 2)), np.ones((5, 3))], {}, "equal numbers of units"),
    ],
)
def test_counts_that_cannot_be_fitted_are_refused(counts, change, message):
    with pytest.raises(Refusal, match=message):
        InfiniteGPFA(settings=settings(**change)).fit(counts, 0.1)


def test_coarse_inducing_points_and_used_up_factors_are_told(caplog):
    y, _ = switching(bins=150)
    InfiniteGPFA(settings=settings(inducing=4, engine="sparse", n_factors=2)).fit(y, 0.1)
    assert "do not resolve a length-scale" in caplog.text
    assert "all 2 factors are used" in caplog.text


def test_a_fit_that_is_told_to_end_saves_and_goes_on(tmp_path, monkeypatch):
    import os
    import signal

    y, _ = switching()
    options = settings(checkpoint_every=100, iterations=10)
    straight = InfiniteGPFA(settings=options).fit(y, 0.1)
    iterate, calls = Ascent.iterate, []

    def ended(self, state, iteration):
        calls.append(iteration)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return iterate(self, state, iteration)

    monkeypatch.setattr(Ascent, "iterate", ended)
    with pytest.raises(SystemExit) as end:
        InfiniteGPFA(settings=options).fit(y, 0.1, checkpoints=tmp_path)
    assert end.value.code == 143
    monkeypatch.setattr(Ascent, "iterate", iterate)
    resumed = InfiniteGPFA(settings=options).fit(y, 0.1, checkpoints=tmp_path)
    assert resumed.elbo_trace_ == straight.elbo_trace_
