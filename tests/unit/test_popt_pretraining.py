"""The sampler's statistics, the two objectives, resume, and fine-tuning."""

import numpy as np
import pytest
import torch

from popflow.models.popt import PairSampler, PopT
from popflow.models.popt.finetuning import finetune
from popflow.models.popt.pretraining import (
    Corpus,
    PretrainTask,
    objective_losses,
    pretrain,
    score_objectives,
)
from popflow.models.popt.sampler import gather
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator
from popflow.runtime.training import train
from tests.populations import POPT_SETTINGS as SETTINGS
from tests.populations import electrode_session as session

FINETUNE = {"steps": 40, "batch": 32, "head_rate": 5e-3, "trunk_rate": 1e-3, "dropout": 0.0}
FINETUNE |= {"weight_decay": 0.01}


def network(dim: int = 12, **more) -> PopT:
    sizes = {"width": 64, "heads": 4, "layers": 1, "feedforward": 128, "dropout": 0.0}
    return PopT(dim, **(sizes | more), seed=0)


def test_sampler_has_the_rates_of_the_method():
    blocks = [(0, 0, 300), (1, 50, 200), (1, 260, 330)]
    sizes = list(range(10, 110, 10))
    sampler = PairSampler([130, 64], blocks, sizes, 500, seed=3, size_per="sample")
    draws = [sampler.draw(step) for step in range(44)]
    random = np.concatenate([d.random for d in draws])
    assert len(random) >= 20_000
    assert random.mean() == pytest.approx(0.5, abs=0.012)
    real = np.concatenate([(d.channel >= 0).ravel() for d in draws])
    replaced = np.concatenate([d.replaced.ravel() for d in draws])
    scored = np.concatenate([d.scored.ravel() for d in draws])
    assert replaced[real].mean() == pytest.approx(0.05, abs=0.001)
    assert (scored & ~replaced)[real].mean() == pytest.approx(0.0475, abs=0.001)
    assert not scored[~real].any()
    count = np.concatenate([(d.channel >= 0).sum(1) for d in draws])
    session_of = np.concatenate([d.session for d in draws])
    shares = np.bincount(count[session_of == 0], minlength=101)[10::10] / (session_of == 0).sum()
    np.testing.assert_allclose(shares, 0.1, atol=0.012)
    assert count[session_of == 1].max() == 64
    assert (count[session_of == 1] == 64).mean() == pytest.approx(0.4, abs=0.02)


def test_sampler_stays_in_its_block_and_keeps_ensembles_disjoint():
    blocks = [(0, 0, 100), (1, 50, 120), (1, 200, 260)]
    sampler = PairSampler([30, 25], blocks, [10, 20, 40], 200, seed=0, gap=2)
    for step in range(20):
        draw = sampler.draw(step)
        for row in range(200):
            inside = [
                all(a <= w[row] < b for w in (draw.first, draw.second, draw.donor))
                for s, a, b in blocks
                if s == draw.session[row]
            ]
            assert any(inside)
            chosen = draw.channel[row][draw.channel[row] >= 0]
            assert len(set(chosen)) == len(chosen)
            first = (draw.segment[row] == 0) & (draw.channel[row] >= 0)
            assert first.sum() == len(chosen) // 2
            assert (np.diff(draw.channel[row][first]) > 0).all()
        assert (draw.second - draw.first == 2)[~draw.random].all()


def test_sampler_is_a_pure_function_of_seed_and_step():
    sampler = PairSampler([30], [(0, 0, 100)], [10], 8, seed=5)
    late = sampler.draw(7)
    for step in range(7):
        sampler.draw(step)
    again = PairSampler([30], [(0, 0, 100)], [10], 8, seed=5).draw(7)
    for name in vars(late):
        assert np.array_equal(getattr(late, name), getattr(again, name))
    assert not np.array_equal(
        late.first, PairSampler([30], [(0, 0, 100)], [10], 8, 6).draw(7).first
    )


def test_gather_puts_each_vector_at_its_place():
    features = [np.arange(20 * 6 * 2, dtype=float).reshape(20, 6, 2), np.ones((20, 9, 2))]
    places = [np.arange(18.0).reshape(6, 3), np.zeros((9, 3))]
    scaling = [(np.zeros(f.shape[1:]), np.ones(f.shape[1:])) for f in features]
    sampler = PairSampler([6, 9], [(0, 0, 20)], [4], 16, seed=0, replaced=0.5)
    draw = sampler.draw(0)
    batch = gather(draw, features, places, scaling)
    assert (batch["x"][:, 0] == 1).all()
    for row in range(16):
        for token, channel in enumerate(draw.channel[row]):
            time = draw.second[row] if draw.segment[row, token] else draw.first[row]
            if draw.replaced[row, token]:
                time, channel = draw.donor[row], draw.donor_channel[row, token]
            assert (batch["x"][row, 1 + token] == features[0][time, channel]).all()
            assert (batch["coords"][row, token] == places[0][draw.channel[row, token]]).all()


def test_an_empty_scored_set_gives_no_nan():
    corpus = Corpus([session("a", 24)], "train", SETTINGS)
    arrays = corpus.batch(corpus.sampler(4, 0).draw(0))
    arrays["scored"][:] = False
    batch = {name: torch.from_numpy(value) for name, value in arrays.items()}
    losses = objective_losses(network(), batch, SETTINGS["loss_weights"])
    assert float(losses["channel"]) == 0 and torch.isfinite(losses["loss"])


def test_ragged_batch_equals_single_examples():
    corpus = Corpus(
        [session("a", 24), session("b", 13)], "train", SETTINGS | {"size_per": "sample"}
    )
    arrays = corpus.batch(corpus.sampler(16, 0).draw(0))
    assert arrays["padding"].any()
    net = network().eval()
    tensors = [torch.from_numpy(arrays[k]) for k in ("x", "coords", "segment", "padding")]
    whole = net(*tensors).ensemble_logit
    for row in range(16):
        real = ~arrays["padding"][row]
        one = net(tensors[0][row : row + 1, real], tensors[1][row : row + 1, real[1:]],
                  tensors[2][row : row + 1, real[1:]])  # fmt: skip
        torch.testing.assert_close(one.ensemble_logit[0], whole[row], atol=1e-5, rtol=0)


def test_resume_is_bit_equal(tmp_path):
    sessions = [session("a", 24)]

    class Stop(Exception):
        pass

    class Interrupted(PretrainTask):
        def after_step(self, step):
            if step == 3:
                raise Stop

    straight = network()
    history = pretrain(straight, sessions, SETTINGS, seed=1, device="cpu")
    first = network()
    with pytest.raises(Stop):
        train(Interrupted(first, sessions, SETTINGS, 1), tmp_path, "cpu", seed=1,
              checkpoint_seconds=0.0)  # fmt: skip
    second = network()
    resumed = pretrain(second, sessions, SETTINGS, seed=1, checkpoints=tmp_path, device="cpu")
    for a, b in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert history["loss"].tolist() == resumed["loss"].tolist()


def test_the_objectives_learn_and_need_true_time():
    sessions = [session("a", 24, 900), session("b", 30, 900)]
    settings = SETTINGS | {"steps": 220, "steps_per_epoch": 220, "batch": 48, "rate": 2e-3}
    net = network()
    pretrain(net, sessions, settings, seed=0, device="cpu")
    scores = score_objectives(net, Corpus(sessions, "test", settings), 1024, 0)
    assert scores["ensemble_auc"] > 0.7 and scores["channel_auc"] > 0.65
    shuffled = [session("a", 24, 900), session("b", 30, 900)]
    for one in shuffled:
        for channel in range(one.features.shape[1]):
            order = generator(1, one.name, channel).permutation(900)
            one.features[:, channel] = one.features[order, channel]
    scores = score_objectives(net, Corpus(shuffled, "test", settings), 2048, 0)
    assert scores["ensemble_auc"] == pytest.approx(0.5, abs=0.06)
    assert scores["channel_auc"] == pytest.approx(0.5, abs=0.06)


def test_finetuning_learns_and_leaves_the_network_alone():
    rng = generator(0, "labels")
    x = rng.standard_normal((200, 10, 12)).astype(np.float32)
    y = (x[:, :4, 0].mean(1) > 0).astype(float)
    net, lip = network(), rng.uniform(80, 160, (10, 3))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    decoder = finetune(net, x[:150], lip, y[:150], FINETUNE | {"steps": 150}, seed=0)
    output = decoder.predict(x[150:], lip)
    assert ((output > 0) == (y[150:] == 1)).mean() > 0.7
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_a_frozen_trunk_stays_as_it_is():
    rng = generator(0, "frozen")
    x, y = rng.standard_normal((40, 6, 12)).astype(np.float32), np.tile([0.0, 1.0], 20)
    net, lip = network(), rng.uniform(80, 160, (6, 3))
    decoder = finetune(net, x, lip, y, FINETUNE | {"trunk_rate": 0.0, "steps": 3}, seed=0)
    assert torch.equal(decoder.input_encoding.in_proj.weight, net.input_encoding.in_proj.weight)


def test_one_class_is_refused():
    x = np.zeros((20, 6, 12), dtype=np.float32)
    with pytest.raises(Refusal, match="1 class in the training labels"):
        finetune(network(), x, np.zeros((6, 3)), np.ones(20), FINETUNE)


def test_features_of_another_window_length_are_refused():
    one, other = session("a", 24), session("b", 24)
    other.meta = other.meta | {"window_s": 2.0}
    with pytest.raises(Refusal, match="session b: its features have window_s 2.0"):
        pretrain(network(), [one, other], SETTINGS)
