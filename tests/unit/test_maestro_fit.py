"""MAESTRO's fit: teacher, seeds, resume, save and load, refusals."""

import numpy as np
import pytest
import torch

from popflow.inputs.config import preset
from popflow.models.maestro import Maestro
from popflow.models.maestro.fit import marker_statistics
from popflow.models.maestro.task import MaestroTask, pad
from popflow.runtime.refusal import Refusal
from popflow.runtime.training import train


def small(**training):
    settings = preset("maestro")
    settings["network"] |= {"width": 16, "latent": 16, "heads": 2, "inducing": 4}
    settings["views"] |= {
        "student_cells": 64,
        "teacher_cells": 96,
        "outputs": 16,
        "target_cells": 32,
    }
    settings["training"] |= {"steps": 8, "steps_per_epoch": 4, "batch": 3} | training
    return settings


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    found = {}
    for i in range(6):
        sizes = rng.multinomial(150 + 10 * i, rng.dirichlet([2, 2, 2]))
        centres = np.eye(3, 5) * 4
        parts = [rng.normal(c, 1, (n, 5)) for c, n in zip(centres, sizes, strict=True)]
        found[f"S{i}"] = np.concatenate(parts).astype(np.float32)
    return found


def test_same_seed_same_vectors_other_seed_others(samples):
    a, b, c = (Maestro(small(), seed).fit(samples).transform(samples) for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 1e-3


def test_save_and_load(samples, tmp_path):
    model = Maestro(small()).fit(samples)
    model.save(tmp_path)
    loaded = Maestro.load(tmp_path)
    np.testing.assert_array_equal(model.transform(samples), loaded.transform(samples))
    torch.testing.assert_close(model.network.centre.value, loaded.network.centre.value)
    assert float(loaded.network.centre.value.abs().max()) > 0


def test_order_of_cells_and_chunks_do_not_matter(samples):
    model = Maestro(small()).fit(samples)
    z = model.transform(samples)
    turned = {name: cells[::-1].copy() for name, cells in samples.items()}
    np.testing.assert_allclose(model.transform(turned), z, rtol=1e-4, atol=1e-5)
    model.settings["embedding"]["chunk"] = 33
    np.testing.assert_allclose(model.transform(samples), z, rtol=1e-4, atol=1e-5)


def test_teacher_follows_and_gets_no_gradient(samples):
    model = Maestro(small(steps=1))
    model.fit(samples)
    mean, sd = np.zeros(5), np.ones(5)
    network = model._build(mean, sd)
    task = MaestroTask(network, list(samples.values()), [], small(steps=2), 0, list(samples))
    before = [p.clone() for p in network.teacher.parameters()]
    losses = task.losses(task.batch(0), 0)
    losses["loss"].backward()
    assert all(p.grad is None for p in network.teacher.parameters())
    task.optimizer.step()
    decay = task.decay(0)
    task.after_step(0)
    assert decay == pytest.approx(0.99)
    for old, new, student in zip(
        before, network.teacher.parameters(), network.student.parameters(), strict=True
    ):
        torch.testing.assert_close(new, decay * old + (1 - decay) * student.detach())


def test_resumed_equals_straight(samples, tmp_path):
    settings = small()
    straight = Maestro(settings).fit(samples).network.state_dict()

    class Stopped(Exception):
        pass

    model = Maestro(settings)
    network = model._build(*marker_statistics(list(samples.values())))
    task = MaestroTask(network, list(samples.values()), [], settings, 0, list(samples))
    after = task.after_step

    def stop_at_five(step):
        after(step)
        if step == 5:
            raise Stopped

    task.after_step = stop_at_five
    with pytest.raises(Stopped):
        train(task, tmp_path, "cpu", seed=0, checkpoint_seconds=0.0)
    resumed = Maestro(settings).fit(samples, checkpoints=tmp_path).network.state_dict()
    for name, value in straight.items():
        assert torch.equal(value, resumed[name]), name


def test_both_losses_and_both_distances_are_used(samples):
    history = Maestro(small()).fit(samples).history
    assert {"reconstruction", "distillation", "target_entropy", "effective_rank"} <= set(history)
    plain = small()
    plain["loss"]["distillation"] = 0
    assert "distillation" not in Maestro(plain).fit(samples).history
    only = small()
    only["loss"] |= {"reconstruction": 0, "distillation": 1}
    assert "reconstruction" not in Maestro(only).fit(samples).history


def test_schedules(samples):
    task = MaestroTask(
        Maestro(small())._build(np.zeros(5), np.ones(5)),
        list(samples.values()),
        [],
        small(steps=100),
        0,
        list(samples),
    )
    assert task.teacher_temperature(0) == pytest.approx(0.04)
    assert task.teacher_temperature(99) == pytest.approx(0.07)
    assert task.decay(100) == pytest.approx(1.0)
    assert task._rate(0) < task._rate(5) and task._rate(99) < 0.01
    seen = [i for step in range(2) for i in task._chosen(step)]
    assert sorted(seen) == list(range(6))


def test_untrained_has_an_embedding_and_no_history(samples):
    model = Maestro(small(steps=0)).fit(samples)
    assert model.transform(samples).shape == (6, 16)
    assert model.embed(samples).states.shape == (6, 32)
    assert len(model.history) == 0


def test_collapse_stops_the_training(samples):
    task = MaestroTask(
        Maestro(small())._build(np.zeros(5), np.ones(5)),
        list(samples.values()),
        [],
        small(),
        0,
        list(samples),
    )
    good = {"target_entropy": 0.5, "effective_rank": 4.0}
    assert task.stop([good] * 6) is None
    bad = {"target_entropy": 0.99, "effective_rank": 1.3}
    assert task.stop([bad] * 4) is None
    assert task.stop([{"effective_rank": 1.3}] * 6) is None
    assert "collapse" in task.stop([bad] * 6)


def test_a_constant_marker_and_small_samples_are_fine(samples):
    flat = {name: cells.copy() for name, cells in samples.items()}
    for cells in flat.values():
        cells[:, 2] = 1.5
    flat["tiny"] = flat["S0"][:20]
    z = Maestro(small()).fit(flat).transform(flat)
    assert np.isfinite(z).all()


def test_padding_marks_the_end_of_short_samples():
    cells, weight = pad([np.ones((3, 2), np.float32), np.ones((5, 2), np.float32)])
    assert cells.shape == (2, 5, 2)
    assert torch.isinf(weight[0, 3:]).all() and (weight[1] == 0).all()
    assert pad([np.ones((3, 2), np.float32)] * 2)[1] is None


def test_bad_samples_are_refused(samples):
    with pytest.raises(Refusal, match="an array of shape"):
        Maestro(small()).fit(samples | {"odd": np.zeros((50, 4), np.float32)})
    with pytest.raises(Refusal, match="shape \\(10, 0\\)"):
        Maestro(small()).fit({"none": np.zeros((10, 0), np.float32)})
    nan = samples | {"S9": np.full((80, 5), np.nan, np.float32)}
    with pytest.raises(Refusal, match="NaN or infinity") as refusal:
        Maestro(small()).fit(nan, scaling=(np.zeros(5), np.ones(5)))
    assert "S9" in refusal.value.where
    bad = small()
    bad["network"]["width"] = 15
    with pytest.raises(Refusal, match="network.heads"):
        Maestro(bad).fit(samples)
