"""The simulator, decoding sets, evaluation and figures, from simulated files to pictures."""

import json

import numpy as np
import pandas as pd
import pytest

from popflow.evaluate.decoding import channel_scores, decoding_sets, split_table
from popflow.evaluate.intracranial import evaluate_baselines, evaluate_fit, kernel_scores
from popflow.evaluate.metrics import auroc
from popflow.evaluate.probes import logistic_probe
from popflow.evaluate.splits import blocked_folds
from popflow.figures import intracranial
from popflow.inputs.config import preset
from popflow.inputs.recordings import read_recording
from popflow.inputs.settings import resolve
from popflow.models.popt.pretraining import new_network, pretrain, pretraining_sessions
from popflow.models.popt.representation import embed_windows
from popflow.prepare.intracranial import load_session, prepare_session
from popflow.runtime.files import read_tsv
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator
from popflow.simulate.intracranial import simulate_intracranial, unit_ids

SIMULATION = {"subjects": 3, "minutes": 3.0, "shafts": 3, "contacts": 7}
EVALUATION = {"objective_examples": 128, "shifts": 4, "channels": 6, "min_events": 20}
TINY = {"width": 32, "layers": 1, "feedforward": 64, "steps": 4, "steps_per_epoch": 2}
TINY |= {"sizes": [6], "batch": 16}
TINY_FINETUNE = {"steps": 3, "batch": 8}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    settings = resolve("simulate-intracranial", SIMULATION, "test")
    simulate_intracranial(folder, settings)
    assert unit_ids(settings) == ["sub-01", "sub-02", "sub-03"]
    return folder


@pytest.fixture(scope="module")
def sessions(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    settings = resolve("prepare-intracranial", {}, "test")
    for row in read_tsv(source / "sessions.tsv").to_dict("records"):
        recording = read_recording(row | {"path": str(source / row["path"])})
        prepare_session(recording, row, settings, folder / row["session"])
    return [load_session(folder / name) for name in ("sub-01", "sub-02", "sub-03")]


@pytest.fixture(scope="module")
def settings():
    return resolve("evaluate-intracranial", EVALUATION, "test")


@pytest.fixture(scope="module")
def small():
    chosen = preset("popt") | TINY
    return chosen | {"finetune": chosen["finetune"] | TINY_FINETUNE}


@pytest.fixture(scope="module")
def tables(sessions, settings, small):
    net = new_network(8, small, 0)
    history = pretrain(net, pretraining_sessions(sessions), small, 0, device="cpu")
    fit = evaluate_fit("toy", net, sessions, settings, small, "default", 0)
    baselines = evaluate_baselines("toy", sessions, settings, small)
    return net, history, pd.concat([fit, baselines], ignore_index=True)


def test_simulation_is_a_bids_folder_and_repeats(source, tmp_path):
    assert json.loads((source / "dataset_description.json").read_text())["BIDSVersion"]
    folder = source / "sub-01" / "ieeg"
    channels = read_tsv(folder / "sub-01_task-events_channels.tsv")
    assert channels["status"].tolist().count("bad") == 1
    simulate_intracranial(tmp_path, resolve("simulate-intracranial", SIMULATION, "test"))
    name = "sub-01/ieeg/sub-01_task-events_ieeg.eeg"
    assert (tmp_path / name).read_bytes() == (source / name).read_bytes()


def test_power_is_shared_by_neighbours_and_not_by_far_contacts(sessions):
    names = sessions[0].electrodes
    z = np.asarray(sessions[0].features)[::4]
    z = (z - z.mean(0)) / z.std(0)
    likeness = np.einsum("tcd,ted->ce", z, z) / (z.shape[0] * z.shape[2])
    shafts = names["shaft"].to_numpy()
    neighbours = (shafts[:, None] == shafts) & (
        np.abs(names["contact"].to_numpy()[:, None] - names["contact"].to_numpy()) == 1
    )
    apart = shafts[:, None] != shafts
    assert likeness[neighbours].mean() > likeness[apart].mean() + 0.15


def test_folds_do_not_overlap_and_the_proof_is_kept(sessions, settings):
    sets = decoding_sets(sessions, settings)
    table = split_table(sets)
    assert (table["smallest_gap_s"] >= settings["purge_s"]).all()
    assert set(table["session"]) == {"sub-01", "sub-03"}
    seen = next(s for s in sets if s.session == "sub-01")
    assert len(seen.y) == sessions[0].events["part"].isin(["validation", "test"]).sum()


def test_ieeg_12_all_methods_decode_from_the_same_channels(sessions, settings):
    """models must not be compared on different electrodes."""
    sets = decoding_sets(sessions, settings)
    by_session = {s.session: s.names for s in sets}
    assert all(s.names == by_session[s.session] and len(s.names) == 6 for s in sets)
    assert len(channel_scores(sets)) == 6 * len(sets)


def test_standardisation_uses_training_rows_only(sessions, settings):
    each = decoding_sets(sessions, settings)[0]
    train, test = each.folds[0]
    before = each.standardised(train)
    each.x[test] += 1e3
    np.testing.assert_array_equal(before[train], each.standardised(train)[train])


def test_tasks_that_cannot_be_decoded_are_refused(sessions, settings):
    def with_task(**task):
        return settings | {
            "tasks": [{"column": "gain", "positive": "high", "negative": "low"} | task]
        }

    with pytest.raises(Refusal, match="one class only among"):
        decoding_sets(sessions, with_task(negative="none"))
    with pytest.raises(Refusal, match="column 'word': no such column"):
        decoding_sets(sessions, with_task(column="word"))
    with pytest.raises(Refusal, match="at least 5000"):
        decoding_sets(sessions, settings | {"min_events": 5000})
    with pytest.raises(Refusal, match="no behavioural channel 'FORCE'"):
        decoding_sets(sessions, settings | {"targets": ["FORCE"]})


@pytest.mark.slow
def test_evaluation_holds_models_baselines_and_null(tables):
    _, history, table = tables
    assert {"loss", "ensemble", "channel", "validation_channel_auc"} <= set(history)
    columns = ["dataset", "method", "variant", "seed", "fold", "task", "metric", "value", "n"]
    assert list(table) == columns
    methods = {"popt", "popt_frozen", "popt_shuffled_positions", "linear_concatenated"}
    methods |= {"linear_squared", "linear_mean", "linear_spectrogram", "kernel_score"}
    assert methods | {"circular_shift_null"} == set(table["method"])
    assert table["value"].between(0, 1).all()
    assert {"ensemble_objective", "channel_objective_unseen_subject", "gain", "shift"} <= set(
        table["task"]
    )


@pytest.mark.slow
def test_the_embedding_names_its_windows(tables, sessions):
    adata = embed_windows(tables[0], sessions)
    assert adata.shape == (sum(-(-len(s.windows) // 4) for s in sessions), 32)
    assert np.isfinite(adata.X).all() and adata.obs_names.is_unique


def test_kernel_score_prefers_close_and_alike():
    x = np.ones((1, 5, 3), dtype=np.float32)
    x[0, 4] = -1.0
    coords = np.zeros((1, 4, 3))
    arrays = {"x": x, "coords": coords, "segment": np.array([[0, 0, 1, 1]])}
    arrays["padding"] = np.zeros((1, 5), dtype=bool)
    across, within = kernel_scores(arrays)
    assert across[0] == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(within[0], [1, 1, -1, -1], atol=1e-6)


def test_a_slow_drift_does_not_leak_through_blocked_folds():
    """Label and features both follow time: random folds read the clock, blocked folds cannot."""
    rng = generator(0, "drift")
    t = np.arange(600) * 1.0
    label = (np.sin(2 * np.pi * t / 37.0) > 0).astype(int)
    code = np.stack([np.exp(-((t - c) ** 2) / 60) for c in np.arange(0, 600, 6)], axis=1)
    x = code + 0.05 * rng.standard_normal(code.shape)
    scores = {}
    blocked = blocked_folds(t, t + 1.0, 5, 5.0)
    order = rng.permutation(600)
    random = [(np.setdiff1d(order, part), part) for part in np.array_split(order, 5)]
    for name, folds in (("blocked", blocked), ("random", random)):
        probabilities, _ = logistic_probe(x, label, folds)
        scores[name] = np.mean(
            [auroc(label[test] == 1, probabilities[test, 1]) for _, test in folds]
        )
    assert scores["random"] > 0.95
    assert scores["blocked"] == pytest.approx(0.5, abs=0.15)


@pytest.mark.slow
def test_figures_are_drawn(tables, sessions, settings, tmp_path):
    _, history, table = tables
    sets = decoding_sets(sessions, settings)
    intracranial.draw_electrodes(sessions, channel_scores(sets), tmp_path / "electrodes.png")
    histories = {("default", 0): history, ("not_pretrained", 0): history.iloc[:0]}
    intracranial.draw_pretraining(histories, tmp_path / "pretraining.png")
    intracranial.draw_objectives(table, tmp_path / "objectives.png")
    roles = {session.name: session.role for session in sessions}
    intracranial.draw_decoding(table, roles, tmp_path / "decoding.png")
    intracranial.draw_comparison(table, tmp_path / "comparison.png")
    for name in ("electrodes", "pretraining", "objectives", "decoding", "comparison"):
        for suffix in ("png", "pdf", "tsv"):
            assert (tmp_path / f"{name}.{suffix}").stat().st_size > 100
