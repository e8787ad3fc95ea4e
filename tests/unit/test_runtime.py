"""Files, seeds, checkpoints, fingerprints and the training loop."""

import multiprocessing
import os
import signal
import time

import numpy as np
import pandas as pd
import pytest
import torch

from popflow.runtime import training
from popflow.runtime.artefacts import load_model, save_model
from popflow.runtime.checkpoints import Checkpoints
from popflow.runtime.files import atomic, read_tsv, write_h5ad, write_tsv
from popflow.runtime.fingerprints import (
    code_fingerprint,
    inputs_fingerprint,
    settings_fingerprint,
    sources_of,
)
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator, torch_generator


class Regression(training.Task):
    """A small network with dropout, so that the state of the random numbers matters."""

    steps, steps_per_epoch, clip = 20, 6, 1.0

    def __init__(self, fail: int | None = None):
        torch.manual_seed(0)
        self.module = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, self.steps)
        self.fail = fail

    def batch(self, step):
        if step == self.fail:
            raise KeyboardInterrupt
        return torch.randn(16, 4, generator=torch_generator(0, step))

    def losses(self, batch, step):
        return {"loss": (self.module(batch) - batch.sum(1, keepdim=True)).square().mean()}


def weights(task):
    return torch.cat([p.flatten() for p in task.module.state_dict().values()])


def test_atomic_leaves_nothing_when_it_fails(tmp_path):
    with pytest.raises(RuntimeError), atomic(tmp_path / "a" / "table.tsv") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert list((tmp_path / "a").iterdir()) == []


def test_atomic_keeps_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "table.tsv"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic(path) as temporary:
        temporary.write_text("new")
        raise RuntimeError
    assert path.read_text() == "old"


def test_tsv_keeps_the_label_na(tmp_path):
    frame = pd.DataFrame({"label": ["NA", None, "B"], "value": [1.5, np.nan, 3.0]})
    write_tsv(frame, tmp_path / "a.tsv")
    back = read_tsv(tmp_path / "a.tsv")
    assert back["label"].tolist()[0] == "NA" and back["label"].isna().tolist() == [0, 1, 0]
    assert back["value"].isna().tolist() == [False, True, False]


def test_h5ad_columns_are_text(tmp_path):
    import anndata

    obs = pd.DataFrame({"mixed": [1, "1", None], "flag": [True, False, True]}, list("abc"))
    write_h5ad(anndata.AnnData(np.zeros((3, 2), np.float32), obs), tmp_path / "a.h5ad")
    back = anndata.read_h5ad(tmp_path / "a.h5ad")
    assert back.obs["mixed"].astype(str).tolist() == ["1", "1", ""]
    assert back.obs["flag"].astype(str).tolist() == ["True", "False", "True"]


def test_streams_are_independent_of_what_was_drawn():
    a = generator(3, "x", 1).random(5)
    generator(3, "x", 2).random(1000)
    assert np.array_equal(a, generator(3, "x", 1).random(5))
    assert not np.array_equal(a, generator(3, "y", 1).random(5))
    assert not np.array_equal(a, generator(4, "x", 1).random(5))


def test_settings_fingerprint_ignores_order():
    assert settings_fingerprint({"a": 1, "b": [2]}) == settings_fingerprint({"b": [2], "a": 1})
    assert settings_fingerprint({"a": 1}) != settings_fingerprint({"a": 2})


def test_code_fingerprint_follows_imports():
    names = {str(path.name) for path in sources_of("models.urlost")}
    assert {"network.py", "training.py", "refusal.py"} <= names
    assert code_fingerprint("models.urlost") != code_fingerprint("figures.style")
    with pytest.raises(ValueError):
        code_fingerprint("models.nothing")


def test_model_round_trip_and_refusal(tmp_path):
    save_model(tmp_path, {"w": torch.arange(3.0)}, {"names": ["a"]})
    tensors, about = load_model(tmp_path)
    assert torch.equal(tensors["w"], torch.arange(3.0)) and about == {"names": ["a"]}
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(Refusal, match="unreadable model"):
        load_model(tmp_path)
    with pytest.raises(Refusal, match="no file model.safetensors"):
        load_model(tmp_path / "empty")


def test_checkpoint_falls_back_on_the_older_state(tmp_path):
    store = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        store.save(step, {"step": step, "w": torch.ones(2) * step})
    assert len(list(tmp_path.glob("*.ckpt"))) == 2
    newest = max(tmp_path.glob("*.ckpt"))
    newest.write_bytes(newest.read_bytes()[:-10])
    assert store.latest()["step"] == 2


def test_a_second_fit_is_refused_and_a_dead_lock_is_taken(tmp_path):
    store = Checkpoints(tmp_path)
    with store.lock(), pytest.raises(Refusal, match="another process trains here"):
        with Checkpoints(tmp_path).lock():
            pass
    child = multiprocessing.get_context("spawn").Process(target=int)
    child.start()
    child.join()
    import socket

    (tmp_path / "lock").write_text(f"{socket.gethostname()} {child.pid} -\n")
    with store.lock():
        assert (tmp_path / "lock").read_text().split()[1] == str(os.getpid())
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize("fail", [1, 6, 9])
def test_resume_equals_a_straight_run(tmp_path, fail):
    straight, broken, resumed = Regression(), Regression(fail), Regression()
    history = training.train(straight, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        training.train(broken, tmp_path, device="cpu", checkpoint_seconds=0)
    again = training.train(resumed, tmp_path, device="cpu", checkpoint_seconds=0)
    assert torch.equal(weights(straight), weights(resumed))
    pd.testing.assert_frame_equal(
        history.drop(columns="seconds"), again.drop(columns="seconds"), check_exact=True
    )
    assert list(tmp_path.glob("*.ckpt")) == []


def test_termination_saves_and_exits(tmp_path):
    class Told(Regression):
        def after_step(self, step):
            if step == 7:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)

    with pytest.raises(SystemExit) as end:
        training.train(Told(), tmp_path, device="cpu")
    assert end.value.code == 143
    assert Checkpoints(tmp_path).latest()["step"] == 8
    straight, resumed = Regression(), Regression()
    training.train(straight, device="cpu")
    training.train(resumed, tmp_path, device="cpu")
    assert torch.equal(weights(straight), weights(resumed))


def test_a_loss_that_is_not_finite_is_refused():
    class Diverging(Regression):
        def losses(self, batch, step):
            return {"loss": self.module(batch).mean() * (float("nan") if step == 3 else 1.0)}

    with pytest.raises(Refusal, match="training step 3: the loss is nan"):
        training.train(Diverging(), device="cpu")


def test_checkpoints_keep_numpy_scalars_readable(tmp_path):
    store = Checkpoints(tmp_path)
    store.save(1, {"rate": np.float64(0.5), "list": [np.int64(3), (np.bool_(True),)]})
    assert store.latest() == {"rate": 0.5, "list": [3, (True,)]}


def test_checkpoints_of_other_data_are_kept_apart(tmp_path):
    (tmp_path / "a.tsv").write_text("1")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "s.h5ad").write_text("cells")
    paths = [tmp_path / "a.tsv", tmp_path / "folder"]
    first = inputs_fingerprint(paths)
    assert inputs_fingerprint(paths[::-1]) == first
    (tmp_path / "a.tsv").write_text("2")
    second = inputs_fingerprint(paths)
    (tmp_path / "folder" / "t.h5ad").write_text("more")
    assert len({first, second, inputs_fingerprint(paths)}) == 3
