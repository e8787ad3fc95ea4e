"""Masks, distances, distillation: counts, golden numbers, collapse."""

import math

import numpy as np
import pytest
import torch

from popflow.models.maestro import objective as ob


def normal(*shape, seed=0, **options):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **options)


@pytest.mark.parametrize("kind", ["nrbm", "random", "pc1"])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.5, 0.6, 0.8])
def test_every_row_hides_the_same_exact_count(kind, share):
    cells = normal(5, 103, 7)
    mask = ob.MASKS[kind](cells, share, torch.rand(5, 103))
    assert mask.sum(1).tolist() == [math.floor(share * 103 + 1e-9)] * 5
    assert ob.visible_cells(cells, mask).shape == (5, 103 - int(mask[0].sum()), 7)


@pytest.mark.parametrize(
    ("share", "blocks"),
    [
        (0.2, [(0, 400), (800, 1200), (1600, 2000), (2400, 2800), (3200, 3600)]),
        (0.4, [(0, 2000), (4000, 6000)]),
        (0.5, [(0, 2500), (5000, 7500)]),
        (0.6, [(0, 6000)]),
        (0.8, [(0, 8000)]),
    ],
)
def test_blocks_of_ranks_of_ten_thousand_cells(share, blocks):
    expected = torch.zeros(10000, dtype=torch.bool)
    for start, stop in blocks:
        expected[start:stop] = True
    assert torch.equal(ob.block_ranks(share, 10000), expected)


def test_hidden_block_is_more_alike_than_a_random_set():
    cells, draws = (
        normal(4, 300, 10),
        torch.rand(4, 300, generator=torch.Generator().manual_seed(1)),
    )
    hidden = [
        torch.nn.functional.normalize(cells[i][mask[i]], dim=-1)
        for mask in (ob.block_mask(cells, 0.4, draws), ob.random_mask(cells, 0.4, draws))
        for i in range(4)
    ]
    spread = [float(torch.pdist(x).mean()) for x in hidden]
    assert max(spread[:4]) < min(spread[4:])


def test_the_nearest_cells_of_the_reference_are_hidden():
    cells, draws = normal(1, 50, 4), torch.rand(1, 50)
    mask = ob.block_mask(cells, 0.2, draws)
    unit = torch.nn.functional.normalize(cells[0], dim=-1)
    near = (unit @ unit[draws[0].argmax()]).argsort(descending=True)
    assert mask[0, near[:2]].all()


def even(x):
    return torch.full(x.shape[:2], 1 / x.shape[1], dtype=x.dtype)


def test_sinkhorn_is_zero_on_itself_symmetric_and_positive():
    x, y = normal(2, 40, 3).double(), normal(2, 30, 3, seed=1).double() + 0.5
    same = ob.sinkhorn_divergence(x, x.clone(), even(x), even(x), 0.1)
    there = ob.sinkhorn_divergence(x, y, even(x), even(y), 0.1)
    back = ob.sinkhorn_divergence(y, x, even(y), even(x), 0.1)
    assert abs(float(same)) < 1e-12
    assert float(there) > 0.01
    assert float(there) == pytest.approx(float(back), rel=1e-9)


def test_sinkhorn_of_two_points_is_half_the_squared_distance():
    x, y = torch.zeros(1, 1, 2).double(), torch.tensor([[[3.0, 4.0]]]).double()
    value = ob.sinkhorn_divergence(x, y, even(x), even(y), 0.01, 0.9)
    assert float(value) == pytest.approx(12.5, rel=1e-6)


def test_energy_distance_is_its_formula():
    x, y = normal(1, 20, 3).double(), normal(1, 25, 3, seed=1).double()
    weights = torch.rand(1, 25, generator=torch.Generator().manual_seed(2)).double()
    weights = weights / weights.sum()
    a, b = even(x)[0], weights[0]
    d = [torch.cdist(p[0], q[0]) for p, q in ((x, y), (x, x), (y, y))]
    expected = a @ d[0] @ b - 0.5 * a @ d[1] @ a - 0.5 * b @ d[2] @ b
    value = ob.energy_distance(x, y, even(x), weights)
    assert float(value) == pytest.approx(float(expected), rel=1e-3)


def test_distance_falls_when_it_is_minimised():
    x = normal(1, 60, 2)
    y = torch.nn.Parameter(normal(1, 60, 2, seed=1) + 2)
    optimizer = torch.optim.Adam([y], lr=0.1)
    values = []
    for _ in range(30):
        loss = ob.sinkhorn_divergence(x, y, even(x), even(x), 0.3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(float(loss.detach()))
    assert values[-1] < 0.2 * values[0]


def test_teacher_target_is_sharpened_once():
    # One softmax keeps the target sharp; a second one, as in the first public code, makes it
    # uniform: 6.9312 of ln 1024 = 6.9315 nats.
    logits = torch.relu(normal(1, 1024))
    target = ob.teacher_target(logits, torch.zeros(1024), 0.07)
    assert float(target.sum()) == pytest.approx(1.0, abs=1e-5)
    assert float(ob.entropy(target)) < 0.4 * math.log(1024)
    assert float(ob.entropy(target.softmax(-1))) == pytest.approx(6.931, abs=1e-3)


def test_distillation_is_the_divergence_from_the_student():
    target, logits = normal(4, 8).softmax(-1), normal(4, 8, seed=1)
    student = (logits / 0.1).softmax(-1)
    expected = (target * (target / student).log()).sum(1).mean()
    assert float(ob.distillation(target, logits, 0.1)) == pytest.approx(float(expected), rel=1e-5)
    assert float(ob.distillation(student, logits, 0.1)) == pytest.approx(0, abs=1e-6)


def test_effective_rank_counts_directions():
    line = normal(50, 1) * torch.ones(1, 10)
    plane = torch.linalg.qr(normal(60, 60))[0][:, :7]
    plane = plane - plane.mean(0)
    assert ob.effective_rank(line) == pytest.approx(1.0, abs=1e-4)
    assert ob.effective_rank(plane) == pytest.approx(7.0, abs=0.2)
    assert ob.effective_rank(torch.ones(10, 3)) == 1.0


def test_centre_and_following_are_running_means():
    centre = ob.Centre(3, 0.9)
    batch = normal(5, 3)
    torch.testing.assert_close(centre.update(batch), 0.1 * batch.mean(0))
    assert "value" in centre.state_dict()
    torch.manual_seed(0)
    teacher, student = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    expected = [
        0.75 * t + 0.25 * s for t, s in zip(teacher.parameters(), student.parameters(), strict=True)
    ]
    expected = [value.detach().clone() for value in expected]
    ob.follow(teacher, student, 0.75)
    for value, wanted in zip(teacher.parameters(), expected, strict=True):
        torch.testing.assert_close(value.detach(), wanted)
    assert np.isfinite(float(ob.entropy(torch.tensor([[1.0, 0.0]]))))
