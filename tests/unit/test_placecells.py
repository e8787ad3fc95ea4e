"""Place cells: reading, binning, tracking, simulation and evaluation."""

import numpy as np
import pytest

from popflow.evaluate.association import associate, dwell_times, targets
from popflow.evaluate.placecells import evaluate_placecells, mean_rates, rate_maps
from popflow.inputs.settings import resolve
from popflow.inputs.spikes import Session, check_source, describe, read_session
from popflow.models.infinite_gpfa.session import fit_session
from popflow.prepare.placecells import (
    bin_count,
    bin_spikes,
    clean_position,
    exposure_of,
    find_jumps,
    hold_outs,
    prepare_placecells,
    read_prepared,
    tick,
    write_session,
)
from popflow.runtime.refusal import Refusal
from popflow.simulate.placecells import simulate_placecells
from tests.unit.test_infinite_gpfa import settings as model_settings

SETTINGS = resolve("prepare-placecells", {}, "test")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("placecells")
    t = np.arange(0, 120, 0.1)
    xy = 0.5 + 0.4 * np.column_stack([np.sin(t / 5), np.cos(t / 7)])
    np.savez(folder / "path.npz", t=t, pos=xy)
    options = resolve("simulate-placecells", {"units": 12, "phase_s": 15}, "test")
    truth = simulate_placecells(options, folder / "path.npz", folder / "session.nwb")
    return folder / "session.nwb", truth


def test_spk_01_multiples_of_a_sample_fall_into_their_own_bin():
    ticks = np.arange(0, 300_000, 7)
    assert np.array_equal(tick(ticks / 30_000, 0.0, 0.001), ticks // 30)


@pytest.mark.parametrize("start", [0.0, 12.3456, 4397.0])
def test_spk_02_spikes_are_conserved(start):
    draw = np.random.default_rng(0)
    spikes = {"a": np.sort(start + np.round(draw.random(5000) * 100, 6)), "b": np.empty(0)}
    counts, starts, _, dropped = bin_spikes(spikes, [(start, start + 90.01, "x")], 0.02)
    assert counts.sum(0).tolist() == [5000 - dropped[0], 0] and len(counts) == 4500
    edges = start + np.arange(4501) * 0.02
    inside = spikes["a"][(spikes["a"] >= edges[0]) & (spikes["a"] < edges[-1])]
    assert counts[:, 0].sum() == len(inside)


def test_spk_03_edges_are_multiples_from_the_start():
    assert bin_count(0.0, 1.0, 0.3) == 3 and bin_count(0.1, 0.4, 0.1) == 3
    _, starts, _, _ = bin_spikes({"a": np.array([0.5])}, [(0.1, 10.1, "x")], 0.1)
    assert np.array_equal(starts, 0.1 + np.arange(100) * 0.1)


def test_spk_04_a_spike_at_the_end_belongs_to_no_bin():
    counts, _, _, dropped = bin_spikes({"a": np.array([0.0, 1.0])}, [(0.0, 1.0, "x")], 0.5)
    assert counts[:, 0].tolist() == [1, 0] and dropped.tolist() == [1]


def test_spk_05_epochs_shorter_than_a_bin_give_none():
    epochs = [(0.0, 0.05, "short"), (1.0, 1.25, "long")]
    counts, starts, epoch, dropped = bin_spikes({"a": np.array([0.01, 1.05])}, epochs, 0.1)
    assert starts.tolist() == [1.0, 1.1] and epoch.tolist() == [1, 1] and dropped.tolist() == [1]


@pytest.mark.parametrize(
    "epochs, message",
    [
        ([(0.0, 2.0, "a"), (1.0, 3.0, "b")], "'a' and 'b' overlap by 1 s"),
        ([(2.0, 1.0, "a")], "stops at 1 s, before it starts"),
        ([(0.0, 0.05, "a")], "the longest epoch lasts 0.05 s, a bin 0.1 s"),
    ],
)
def test_epochs_that_cannot_be_binned_are_refused(epochs, message):
    with pytest.raises(Refusal, match=message):
        bin_spikes({"a": np.array([0.5])}, epochs, 0.1)


def test_spk_06_exposure_is_the_recorded_share():
    share = exposure_of(np.array([0.0, 1.0, 2.0]), 1.0, np.array([[0.25, 1.5], [1.75, 2.0]]))
    assert share.tolist() == [0.75, 0.75, 0.0]
    assert exposure_of(np.array([0.0]), 1.0, np.empty((0, 2))).tolist() == [0.0]


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_spk_08_no_units_is_told(tmp_path):
    with pytest.raises(Refusal, match="no array spike_times, spike_units"):
        read_session(save(tmp_path / "a.npz", other=np.zeros(2)))
    empty = save(tmp_path / "b.npz", spike_times=np.empty(0), spike_units=np.empty(0, int))
    with pytest.raises(Refusal, match="no units"):
        read_session(empty)


def test_spk_09_a_restarted_clock_is_refused_and_small_steps_are_sorted(tmp_path):
    times = np.array([1.0, 2.0, 60.0, 0.5, 1.5])
    path = save(tmp_path / "a.npz", spike_times=times, spike_units=np.full(5, 7))
    with pytest.raises(Refusal, match="unit 7, spike 3: the clock steps back by 59.500 s"):
        read_session(path)
    times = np.array([1.0, 2.0, 1.9, 3.0])
    session = read_session(
        save(tmp_path / "b.npz", spike_times=times, spike_units=np.zeros(4, int))
    )
    assert session.spikes["0"].tolist() == [1.0, 1.9, 2.0, 3.0]
    assert "sorted" in session.warnings[0]


@pytest.mark.parametrize("factor, guess", [(1000, "milliseconds"), (30_000, "samples")])
def test_spk_10_times_that_are_not_seconds_are_refused(tmp_path, factor, guess):
    times = np.sort(np.random.default_rng(0).random(200)) * 100 * factor
    path = save(
        tmp_path / "a.npz",
        spike_times=times,
        spike_units=np.zeros(200, int),
        position_t=np.arange(0, 100, 0.1),
        position=np.ones((1000, 2)),
    )
    with pytest.raises(Refusal, match=f"spike times look like {guess}"):
        read_session(path)


def test_broken_and_unknown_files_are_refused(tmp_path):
    (tmp_path / "a.nwb").write_bytes(b"no hdf5")
    (tmp_path / "a.xyz").write_text("")
    with pytest.raises(Refusal, match="cannot be read"):
        read_session(tmp_path / "a.nwb")
    with pytest.raises(Refusal, match="unknown kind of file"):
        read_session(tmp_path / "a.xyz")
    with pytest.raises(Refusal, match="no such file"):
        read_session(tmp_path / "b.nwb")


def test_tracking_is_cleaned_and_gaps_stay_open():
    t = np.arange(0, 10, 0.1)
    xy = np.column_stack([1 + 0.1 * t, np.ones_like(t)])
    xy[20:40], xy[50] = np.nan, (9.0, 9.0)
    at = np.array([1.05, 3.0, 5.0, 9.0, 20.0])
    place, speed, lost = clean_position(t, xy, at, 0.5, 1.5)
    assert lost == {"lost": 20, "jump": 1, "repeated": 0}
    assert place[0] == pytest.approx([1.105, 1.0]) and place[2] == pytest.approx([1.5, 1.0])
    assert np.isnan(place[[1, 4]]).all() and speed[3] == pytest.approx(0.1, rel=0.05)


def test_the_simulated_file_is_read_back(simulated):
    path, truth = simulated
    session, told = read_session(path), describe(path).keys()
    assert len(session.spikes) == 12 and session.position.shape == (1200, 2)
    assert {label for _, _, label in session.epochs} == {"foraging", "memory"}
    assert told["shape"] == [sum(len(s) for s in session.spikes.values()), 12]
    assert told["units"]["position"] == "meters" and told["rate_hz"] == pytest.approx(10)
    expected = np.exp(truth.log_rate).sum() * 0.02
    assert told["shape"][0] == pytest.approx(expected, rel=0.05)


def test_the_prepared_session_accounts_for_every_spike(simulated, tmp_path):
    session = read_session(simulated[0])
    arrays, report = prepare_placecells(session, SETTINGS)
    for item in ("spikes", "units"):
        count = report[report["item"] == item].groupby("kind")["count"].sum()
        assert count["read"] == count["kept"] + count["dropped"]
    write_session(arrays, tmp_path / "session.h5")
    back = read_prepared(tmp_path / "session.h5")
    assert np.array_equal(back["counts"], arrays["counts"])
    assert set(back["label"]) == {"foraging", "memory"} and back["bin_s"] == 0.2
    share = back["held_out"].mean((1, 2))
    assert share == pytest.approx(0.1, abs=0.02) and len(share) == 3


def test_quiet_and_loud_units_are_dropped_with_a_reason():
    spikes = {
        "quiet": np.arange(5.0),
        "good": np.arange(0, 90, 0.5),
        "loud": np.arange(0, 90, 0.01),
    }
    session = Session(spikes, np.empty(0), np.empty((0, 2)))
    arrays, report = prepare_placecells(session, SETTINGS)
    assert arrays["unit"].astype(str).tolist() == ["good"]
    reasons = report[report["kind"] == "dropped"].set_index("reason")["count"]
    assert reasons["fewer than 20 spikes"] == 1 and reasons["above 50 Hz"] == 1
    with pytest.raises(Refusal, match="none of 1 units is kept"):
        prepare_placecells(Session({"a": np.arange(5.0)}, np.empty(0), np.empty((0, 2))), SETTINGS)


def test_trials_of_nwb_number_the_bins(tmp_path):
    from datetime import UTC, datetime

    from pynwb import NWBHDF5IO, NWBFile

    file = NWBFile("t", "t", datetime(2000, 1, 1, tzinfo=UTC))
    file.add_unit(spike_times=np.arange(0, 20, 0.25), id=1)
    file.add_trial_column("side", "of the reward")
    for start, side in ((2.0, "left"), (10.0, "right")):
        file.add_trial(start_time=start, stop_time=start + 4.0, side=side)
    with NWBHDF5IO(str(tmp_path / "t.nwb"), "w") as io:
        io.write(file)
    session = read_session(tmp_path / "t.nwb")
    assert session.trials == [(2.0, 6.0, "left"), (10.0, 14.0, "right")]
    arrays, _ = prepare_placecells(session, SETTINGS | {"bin_s": 1.0})
    assert arrays["trial"].tolist()[:16] == [-1] * 2 + [0] * 4 + [-1] * 4 + [1] * 4 + [-1] * 2
    assert arrays["trial_label"].astype(str)[3] == "left" and arrays["trial_label"][0] == b""


def test_rate_maps_divide_by_occupancy():
    draw = np.random.default_rng(0)
    xy = draw.random((20_000, 2)) ** [2, 1]
    session = {"position": xy, "bin_s": 0.1}
    maps, occupancy = rate_maps(session, np.full((20_000, 1), 3.0), bins=10)
    assert maps[0] == pytest.approx(np.full((10, 10), 3.0)) and occupancy.sum() == pytest.approx(
        2000
    )


def test_evaluation_puts_peers_on_the_same_entries(simulated):
    arrays, _ = prepare_placecells(read_session(simulated[0]), SETTINGS)
    session = arrays | {
        "label": arrays["label"].astype(str),
        "unit": arrays["unit"].astype(str),
        "bin_s": 0.2,
        "kind": "spikes",
    }
    model = fit_session(session, model_settings(iterations=8), seed=0)
    options = resolve("evaluate-placecells", {"draws": 20, "peer_iterations": 5, "shifts": 30}, "t")
    table, association = evaluate_placecells("mine", session, [("default", 0, model)], options)
    columns = ["dataset", "method", "variant", "seed", "fold", "task", "metric", "value", "n"]
    assert list(table.columns) == columns
    bits = table[table["metric"] == "bits per spike"].set_index("method")
    assert bits["value"]["mean rate"] == 0 and bits["n"].nunique() == 1
    assert bits["value"]["infinite_gpfa"] > 0
    assert association["fdr"].between(0, 1).all() and set(association["factor"]) == {1, 2, 3}
    assert {"moving", "direction", "place"} <= set(association["target"])
    held = session["held_out"][0]
    changed = session | {"counts": np.where(held, 99, session["counts"])}
    assert mean_rates(changed, held) == pytest.approx(mean_rates(session, held))


def test_masks_that_follow_the_phase_are_found_and_others_are_not():
    class Fitted:
        energy_share_ = np.array([0.6, 0.4])

    draw = np.random.default_rng(0)
    length = draw.integers(60, 140, 40)
    labels = np.repeat(np.where(np.arange(40) % 2, "b", "a"), length)
    own = (labels == "b") * 0.6 + 0.4 * draw.random(len(labels))
    Fitted.mask_probability_ = np.column_stack([own, draw.random(len(labels))])
    options = resolve("evaluate-placecells", {"shifts": 200}, "test")
    Fitted.gated_mean_ = Fitted.mask_probability_
    held = {"label": labels, "bin_s": 0.2, "epoch": np.zeros(len(labels), int)}
    table = associate(held, Fitted, options, 0)
    assert table["value"][0] == 1.0 and table["p_best"][0] < 0.01 and table["fdr"][0] < 0.05
    assert table["value"][1] < 0.6 and table["p"][1] > 0.05
    assert table["dwell_s"][0] == pytest.approx(20, rel=0.4)


def test_factors_that_follow_direction_and_place_are_found():
    class Fitted:
        energy_share_ = np.array([0.5, 0.3, 0.2])

    t, draw = np.arange(3000) * 0.1, np.random.default_rng(0)
    pace = np.repeat(draw.uniform(0.2, 0.6, 60), 50)
    x = 50 + 50 * np.sin(np.cumsum(pace) * 0.1)
    rightward = np.gradient(x) > 0
    masks = np.column_stack([rightward, draw.random(3000), draw.random(3000)])
    Fitted.mask_probability_ = masks * 0.8 + 0.1
    noise = draw.normal(size=3000)
    Fitted.gated_mean_ = np.column_stack([noise, np.exp(-((x - 20) ** 2) / 200), noise])
    held = {
        "label": np.array(["run"] * 3000),
        "epoch": np.zeros(3000, int),
        "bin_s": 0.1,
        "position": np.column_stack([x, np.full(3000, 3.0)]),
        "speed": np.abs(np.gradient(x, t)),
    }
    options = resolve("evaluate-placecells", {"shifts": 100}, "test")
    table = associate(held, Fitted, options, 0).set_index(["target", "factor"])
    assert table["value"]["direction", 1] > 0.95 and table["p"]["direction", 1] < 0.05
    assert table["value"]["place", 2] > 0.8 and table["value"]["place", 3] < 0.1
    assert list(targets(held)) == ["moving", "direction", "place"]
    dwell, switches = dwell_times(masks[:, :1], held["epoch"], 0.1)
    turns = np.abs(np.diff(rightward.astype(int))).sum()
    assert switches[0] == pytest.approx(turns / 5) and 5 < dwell[0] < 12


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"position_t": np.arange(10.0)}, "position of shape \\(100, 2\\) at 10 times"),
        ({"position": np.ones((100, 5))}, "position of shape"),
        ({"position_t": np.full(100, np.nan)}, "NaN or infinite"),
        ({"position_t": np.arange(100.0) * 1000}, "the track ends at 99000"),
        ({"epoch_start": [0.0], "epoch_stop": [np.nan]}, "lasts from 0 to nan"),
        ({"epoch_start": [0.0, 5.0], "epoch_stop": [4.0]}, "2 epoch_start, 1 epoch_stop"),
        ({"spike_units": np.zeros(7, int)}, "spike_units of \\(7,\\)"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(tmp_path, changes, message):
    held = {
        "spike_times": np.linspace(0, 99, 200),
        "spike_units": np.zeros(200, int),
        "position_t": np.arange(100.0),
        "position": np.random.default_rng(0).random((100, 2)),
    }
    with pytest.raises(Refusal, match=message):
        read_session(save(tmp_path / "a.npz", **(held | changes)))


def test_columns_of_spikes_and_rows_of_positions_are_turned(tmp_path):
    path = save(
        tmp_path / "a.npz",
        spike_times=np.linspace(0, 99, 200)[:, None],
        spike_units=np.array(["CA1-é"] * 200),
        position_t=np.arange(100.0),
        position=np.random.default_rng(0).random((2, 100)),
    )
    session = read_session(path)
    assert session.position.shape == (100, 2) and list(session.spikes) == ["CA1-é"]
    options = resolve("prepare-placecells", {"max_speed": 5.0}, "test")
    write_session(prepare_placecells(session, options)[0], tmp_path / "s.h5")
    assert read_prepared(tmp_path / "s.h5")["unit"].tolist() == ["CA1-é"]


def test_a_track_in_another_unit_is_refused_not_lost():
    t = np.arange(0, 60, 0.02)
    path = np.column_stack([50 + 40 * np.sin(t), 50 + 40 * np.cos(t)])
    with pytest.raises(Refusal, match="max_speed"):
        clean_position(t, path, t[:100], 0.5, 1.5)
    place, _, lost = clean_position(t, path, t[:100], 0.5, 150.0)
    assert lost["jump"] == 0 and np.isfinite(place).all()


@pytest.mark.parametrize(
    "changes, message",
    [({"epochs": ["rest"]}, "none is called rest"), ({"bin_s": 500.0}, "a bin 500 s")],
)
def test_check_looks_at_the_epochs(simulated, changes, message):
    path = simulated[0] if isinstance(simulated, tuple) else simulated
    options = resolve("prepare-placecells", changes, "test")
    with pytest.raises(Refusal, match=message):
        check_source({"dataset": "d", "source": path}, [], options)


def test_an_arena_around_zero_keeps_its_negative_places():
    t = np.arange(0, 60, 0.02)
    path = 0.4 * np.column_stack([np.sin(t), np.cos(t)])
    path[10:20] = -1
    place, _, lost = clean_position(t, path, t[:500], 0.5, 5.0)
    assert lost["lost"] == 10 and np.isfinite(place).all() and place.min() < -0.3


def test_zero_is_a_place_on_a_line():
    t = np.arange(200) / 10
    xy = np.where(t < 10, 0.0, 3.0)[:, None]
    place, _, lost = clean_position(t, xy, t, 0.5, np.inf)
    assert lost["lost"] == 0 and np.isfinite(place).all()


@pytest.mark.parametrize("frames", [slice(50, 51), slice(50, 53), slice(0, 1)])
def test_excursions_of_several_frames_are_jumps(frames):
    t = np.arange(200) / 50
    xy = np.column_stack([5 + np.sin(t), 5 + np.cos(t)])
    wrong = xy.copy()
    wrong[frames] += 200
    jump = find_jumps(t, wrong, 150.0, 0.5)
    assert np.flatnonzero(jump).tolist() == list(range(200))[frames]
    assert not find_jumps(t, xy, 150.0, 0.5).any()


def test_speed_does_not_cross_a_gap():
    t = np.concatenate([np.arange(0, 5, 0.02), np.arange(25, 30, 0.02)])
    xy = np.where(t < 10, 10.0, 90.0)[:, None] * np.ones(2)
    _, speed, _ = clean_position(t, xy, t, 0.5, np.inf)
    assert np.nanmax(speed) < 1e-9


def test_the_fastest_speed_follows_the_unit_or_must_be_told():
    t = np.arange(0, 60, 0.02)
    xy = np.column_stack([50 + 40 * np.sin(t), 50 + 40 * np.cos(t)])
    spikes = {"a": np.arange(0, 60, 0.1)}
    arrays, report = prepare_placecells(Session(spikes, t, xy, "cm"), SETTINGS)
    assert np.isfinite(arrays["position"]).all()
    with pytest.raises(Refusal, match="pixels") as refusal:
        prepare_placecells(Session(spikes, t, xy, "pixels"), SETTINGS)
    assert "max_speed" in refusal.value.fix
    prepare_placecells(Session(spikes, t, xy, "pixels"), SETTINGS | {"max_speed": 200})


def test_overlapping_intervals_are_counted_once():
    recorded = np.array([[0.0, 0.5], [0.2, 0.4], [0.3, 0.6]])
    assert exposure_of(np.array([0.0]), 1.0, recorded) == pytest.approx([0.6])


def test_spikes_of_unrecorded_bins_are_dropped_in_the_report():
    spikes = {"a": np.arange(0, 100, 0.1)}
    session = Session(spikes, np.empty(0), np.empty((0, 2)), recorded=np.array([[0.0, 40.0]]))
    _, report = prepare_placecells(session, SETTINGS)
    dropped = report[(report["kind"] == "dropped") & report["reason"].str.contains("half")]
    assert dropped.set_index("item")["count"]["spikes"] == pytest.approx(600, abs=3)


@pytest.mark.parametrize("scheme", ["speckled", "blocks", "co_smoothing"])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.5])
def test_hold_outs_leave_every_unit_some_entries(scheme, share):
    changes = {"scheme": scheme, "held_out": share, "block_s": 5, "gap_s": 1, "bin_s": 0.2}
    options = resolve("prepare-placecells", changes, "test")
    trial = np.repeat(np.arange(20), 50)
    used = np.ones(1000, bool)
    used[:10] = False
    held, scored = hold_outs(used, 8, np.zeros(1000, int), trial, options)
    assert held.shape == (3, 1000, 8) and (scored <= held).all() and scored.any((1, 2)).all()
    assert not held[:, :10].any() and (held.mean(1) < 0.97).all()
    if scheme == "speckled":
        assert held.mean() == pytest.approx(share, rel=0.1)
    else:
        # Within a second of the ends of a stretch nothing is scored.
        edge = held[0] & ~scored[0]
        assert edge.sum() > 0
        if scheme == "co_smoothing":
            assert (held[0].any(0).sum()) == 2


def test_a_single_stretch_cannot_be_held_out():
    options = resolve("prepare-placecells", {"scheme": "blocks", "block_s": 500}, "test")
    with pytest.raises(Refusal, match="a single trial or stretch"):
        hold_outs(np.ones(100, bool), 4, np.zeros(100, int), np.full(100, -1), options)


@pytest.mark.parametrize("frames", [slice(0, 2), slice(0, 4), slice(196, 200)])
def test_excursions_at_both_ends_are_jumps(frames):
    t = np.arange(200) / 50
    xy = np.column_stack([5 + np.sin(t), 5 + np.cos(t)])
    xy[frames] += 200
    assert np.flatnonzero(find_jumps(t, xy, 150.0, 0.5)).tolist() == list(range(200))[frames]
