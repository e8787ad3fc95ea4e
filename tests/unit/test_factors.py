"""Simulated factors, and fits held against them."""

import numpy as np
import pytest

from popflow.evaluate.factors import match_factors, run_scenario, subspace_angle
from popflow.evaluate.scaling import population, slope
from popflow.figures.factors import draw_scaling, draw_scenarios, with_gains
from popflow.inputs.config import read_experiments
from popflow.inputs.settings import resolve
from popflow.runtime.refusal import Refusal, Refusals
from popflow.simulate.factors import simulate_factors


def scenario(**changes):
    return resolve("experiments-infinite_gpfa", changes, "test")


@pytest.mark.parametrize("active", ["switching", "all", "nested", "duplicate", "rare"])
def test_masks_of_every_kind(active):
    drawn = simulate_factors(scenario(active=active, bins=1500), 0)
    share = drawn.masks.mean(0)
    assert drawn.y.shape == (1500, 30) and drawn.factors.shape == (1500, 3)
    assert 0.5 < drawn.factors.std() < 1.5
    if active == "all":
        assert (share == 1).all()
    if active == "rare":
        assert 0.01 < share[0] < 0.03
    if active == "duplicate":
        assert np.array_equal(drawn.loadings[:, 0], drawn.loadings[:, 1])
        assert (drawn.masks[:, 0] + drawn.masks[:, 1] == 1).all()


def test_smooth_factors_have_their_lengthscale():
    drawn = simulate_factors(scenario(bins=20_000, lengthscales_s=[0.1, 0.4], units=2), 0)
    for lag in (5, 20):
        for d, scale in enumerate((0.1, 0.4)):
            f = drawn.factors[:, d]
            expected = np.exp(-0.5 * (lag * 0.02 / scale) ** 2)
            assert np.corrcoef(f[lag:], f[:-lag])[0, 1] == pytest.approx(expected, abs=0.12)


@pytest.mark.parametrize("kind, ratio", [("poisson", 1.0), ("negative_binomial", 6.0)])
def test_counts_have_their_dispersion(kind, ratio):
    held = scenario(likelihood=kind, bins=4000, units=40, rate_hz=500, size=2, active="rare")
    drawn = simulate_factors(held | {"lengthscales_s": [0.1]}, 0)
    quiet = drawn.y[drawn.masks[:, 0] == 0]
    assert np.median(quiet.var(0) / quiet.mean(0)) == pytest.approx(ratio, rel=0.25)


def test_matching_finds_permutation_and_sign_and_the_rest_scores_zero():
    draw = np.random.default_rng(0)
    truth = draw.normal(size=(300, 3))
    partner, correlation = match_factors(-truth[:, [2, 0]], truth)
    assert partner.tolist() == [1, -1, 0] and correlation == pytest.approx([1, 0, 1])
    c = draw.normal(size=(20, 3))
    assert subspace_angle(c @ draw.normal(size=(3, 3)), c) < 1e-3


@pytest.mark.slow
def test_a_scenario_is_scored_and_drawn(tmp_path):
    held = scenario(bins=300, units=15, n_factors=[3], fits=["default", "no_mask"])
    common = {"inducing": 40, "iterations": 40}
    table = run_scenario("switching", held, simulate_factors(held, 0), common, 0.1, 0)
    value = table.set_index(["variant", "metric"])["value"]
    assert value["default", "correlation"] > 0.7 and value["default", "mask AUC, strong"] > 0.6
    assert ("no_mask", "mask AUC") not in value.index
    gains = with_gains(table)
    expected = value["default", "log-likelihood"] - value["no_mask", "log-likelihood"]
    assert gains[gains["metric"] == "gain"]["value"].tolist() == [pytest.approx(expected)]
    draw_scenarios(table, tmp_path / "s.png")
    assert (tmp_path / "s.pdf").stat().st_size > 5000


def test_scaling_is_drawn_with_its_slope(tmp_path):
    import pandas as pd

    rows = [("bins", b, 100, "infinite GPFA", b * 1e-5) for b in (5000, 10_000, 20_000)]
    rows += [("units", 5000, n, "infinite GPFA", n**1.1 * 1e-3) for n in (20, 50)]
    rows += [("bins", 5000, 100, "GPFA (Elephant)", 0.3)]
    table = pd.DataFrame(rows, columns=["against", "bins", "units", "method", "seconds"])
    assert slope(table, "bins") == pytest.approx(1.0)
    assert slope(table, "units") == pytest.approx(1.1)
    draw_scaling(table, tmp_path / "a.png")
    assert population(300, 7).shape == (300, 7)


def test_experiments_are_checked(tmp_path):
    file = tmp_path / "experiments.yaml"
    file.write_text("scenarios:\n  one: {actvie: all}\n")
    with pytest.raises((Refusal, Refusals), match="actvie"):
        read_experiments(file)
    file.write_text("scenarios:\n  one: {active: all}\n")
    assert read_experiments(file)["scenarios"]["one"]["units"] == 30
