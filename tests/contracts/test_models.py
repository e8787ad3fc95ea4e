"""One suite that every model's fit must pass: seed, save, load, resume, order of the population."""

import os
import signal
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from popflow.inputs.config import preset
from popflow.models.infinite_gpfa import InfiniteGPFA
from popflow.models.maestro import Maestro
from popflow.models.popt import PopT
from popflow.models.urlost import Urlost, cluster_dimensions
from popflow.runtime.progress import Progress
from popflow.runtime.refusal import Refusal, Refusals
from tests.populations import POPT_SETTINGS, electrode_session


@dataclass
class Case:
    """A small fit of a model.

    Attributes
    ----------
    data : object
        What `fit` takes.
    make : callable
        Of a seed, gives an unfitted model.
    fit : callable
        Of (model, data), and a folder for checkpoints.
    represent : callable
        Of (model, data); gives an array.
    permute : callable
        Of (data, generator): the population in another order.
    """

    data: Any
    make: Any
    fit: Any
    represent: Any
    permute: Any


def maestro():
    draw = np.random.default_rng(0)
    means = draw.normal(size=(10, 1, 4))
    sets = {
        f"s{i}": (mean + draw.normal(size=(60, 4))).astype(np.float32)
        for i, mean in enumerate(means)
    }
    settings = preset("maestro")
    settings["training"] |= {"steps": 4, "steps_per_epoch": 2, "batch": 4}
    return Case(
        sets,
        lambda seed: Maestro(settings=settings, seed=seed),
        lambda model, data, checkpoints=None: model.fit(data, checkpoints=checkpoints),
        lambda model, data: np.asarray(model.transform(data)),
        lambda data, draw: {k: cells[draw.permutation(len(cells))] for k, cells in data.items()},
    )


def urlost():
    draw = np.random.default_rng(0)
    x = (draw.normal(size=(40, 4)).repeat(6, 1) + draw.normal(size=(40, 24))).astype(np.float32)
    settings = preset("urlost")
    settings["clusters"]["number"] = 4
    settings["training"] |= {"epochs": 1, "min_updates": 4, "batch": 16}
    return Case(
        x,
        lambda seed: Urlost(settings=settings, seed=seed),
        lambda model, data, checkpoints=None: model.fit(data, checkpoints=checkpoints),
        lambda model, data: model.transform(data),
        None,
    )


def popt():
    sizes = {"width": 64, "heads": 4, "layers": 1, "feedforward": 128, "dropout": 0.1}

    def fit(model, data, checkpoints=None):
        return model.fit([data], POPT_SETTINGS, checkpoints=checkpoints, device="cpu")

    def permute(data, draw):
        order = draw.permutation(len(data.lip))
        return replace(data, features=data.features[:, order], lip=data.lip[order])

    return Case(
        electrode_session("sub-1", channels=24),
        lambda seed: PopT(12, **sizes, seed=seed),
        fit,
        lambda model, data: model.transform(data.features[:40], data.lip),
        permute,
    )


def infinite_gpfa():
    counts = np.random.default_rng(0).poisson(1.5, (60, 6))
    settings = preset("infinite_gpfa") | {"n_factors": 2, "inducing": 20}
    settings |= {"iterations": 4, "checkpoint_every": 1}
    return Case(
        counts,
        lambda seed: InfiniteGPFA(settings=settings, seed=seed),
        lambda model, data, checkpoints=None: model.fit(data, 0.1, checkpoints=checkpoints),
        lambda model, data: model.gated_mean_,
        None,
    )


CASES = {"maestro": maestro, "urlost": urlost, "popt": popt, "infinite_gpfa": infinite_gpfa}


@pytest.fixture(params=sorted(CASES))
def case(request):
    return CASES[request.param]()


def test_the_same_seed_gives_the_same_numbers(case):
    models = [case.make(3) for _ in range(2)]
    for model in models:
        case.fit(model, case.data)
    first, second = (case.represent(model, case.data) for model in models)
    assert np.isfinite(first).all() and np.array_equal(first, second)


def test_another_seed_gives_other_numbers(case):
    models = [case.make(seed) for seed in (3, 4)]
    for model in models:
        case.fit(model, case.data)
    first, second = (case.represent(model, case.data) for model in models)
    assert not np.array_equal(first, second)


def test_save_and_load_keep_the_representation(case, tmp_path):
    model = case.make(0)
    case.fit(model, case.data)
    model.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"model.safetensors", "model.json"}
    back = type(model).load(tmp_path)
    assert np.allclose(case.represent(model, case.data), case.represent(back, case.data), atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]().permute])
def test_the_order_of_the_population_does_not_matter(name):
    case = CASES[name]()
    model = case.make(0)
    case.fit(model, case.data)
    other = case.permute(case.data, np.random.default_rng(1))
    first, second = case.represent(model, case.data), case.represent(model, other)
    assert np.allclose(first, second, rtol=1e-4, atol=1e-5)


def test_a_fit_that_was_ended_goes_on_to_the_same_numbers(case, tmp_path, monkeypatch):
    straight = case.make(3)
    case.fit(straight, case.data)

    update, calls = Progress.update, []

    def ended(self, *args, **numbers):
        update(self, *args, **numbers)
        calls.append(self.done)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    def end(number, frame):
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, end)
    monkeypatch.setattr(Progress, "update", ended)
    try:
        with pytest.raises(SystemExit):
            case.fit(case.make(3), case.data, tmp_path)
    finally:
        signal.signal(signal.SIGTERM, before)
    monkeypatch.undo()
    assert any(path.is_file() for path in tmp_path.rglob("*"))

    resumed = case.make(3)
    case.fit(resumed, case.data, tmp_path)
    first, second = (case.represent(model, case.data) for model in (straight, resumed))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Maestro({"netwrok": {}}), "unknown key 'netwrok'"),
        (lambda: Urlost(settings={"clusters": {"number": "many"}}), "a value of type"),
        (lambda: InfiniteGPFA(n_factors=0), "at least 1"),
        (lambda: InfiniteGPFA(engine="foo"), "one of auto"),
        (lambda: InfiniteGPFA(n_factors=2.5), "a value of type integer"),
    ],
)
def test_settings_are_checked_where_they_are_given(make, message):
    with pytest.raises(Refusals, match=message):
        make()


@pytest.mark.parametrize("name", ["maestro", "urlost"])
def test_values_that_are_not_finite_are_refused(name):
    case = CASES[name]()
    model = case.make(0)
    case.fit(model, case.data)
    data = case.data
    if isinstance(data, dict):
        data = {key: cells.copy() for key, cells in data.items()}
        next(iter(data.values()))[3, 1] = np.nan
    else:
        data = data.copy()
        data[3, 1] = np.inf
    with pytest.raises(Refusal, match="NaN or infinity"):
        case.represent(model, data)


def test_scores_of_other_bins_are_refused():
    case = CASES["infinite_gpfa"]()
    model = case.make(0)
    case.fit(model, case.data)
    with pytest.raises(Refusal, match="those of the fit"):
        model.score(case.data[:10], np.ones((10, 6), bool))


@pytest.mark.parametrize("x", [np.zeros(5), np.zeros((2, 30)), np.array([["a"] * 30] * 5)])
def test_data_that_cannot_be_clustered_is_refused(x):
    with pytest.raises(Refusal):
        cluster_dimensions(x, 4)
