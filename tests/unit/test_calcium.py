"""Calcium traces: readers, times of frames, bins, and what is fitted and scored."""

import json

import numpy as np
import pandas as pd
import pytest

from popflow.evaluate.placecells import evaluate_placecells
from popflow.figures import placecells as figures
from popflow.inputs.calcium import is_trace_table, read_traces, rising
from popflow.inputs.settings import resolve
from popflow.inputs.spikes import read_session
from popflow.models.infinite_gpfa.session import activity_of, fit_session
from popflow.prepare.placecells import bin_traces, prepare_placecells, read_prepared, write_session
from popflow.runtime.refusal import Refusal

SETTINGS = resolve("prepare-placecells", {"bin_s": 0.2}, "test")


def table(folder, **columns):
    path = folder / "traces.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def test_the_fewest_frames_out_of_order_are_dropped():
    t = np.arange(10.0)
    t[4], t[7] = 300.0, -5.0
    assert np.flatnonzero(~rising(t)).tolist() == [4, 7]
    assert rising(np.array([0.0, 1.0, 1.0, 2.0])).sum() == 3
    assert not rising(np.array([np.nan, np.nan])).any()


def test_frames_out_of_order_are_counted_and_too_many_are_refused(tmp_path):
    t = np.arange(400) / 20
    t[100] = 0.0
    session = read_session(table(tmp_path, t=t, a=np.sin(t), b=np.cos(t)))
    assert session.traces.values.shape == (399, 2) and session.traces.out_of_order == 1
    assert "1 frames with a time stamp out of order" in session.warnings[0]
    t[200:230] = 0.0
    with pytest.raises(Refusal, match="31 of 400 frames have times that do not rise"):
        read_session(table(tmp_path, t=t, a=np.sin(t), b=np.cos(t)))


def test_rejected_cells_of_inscopix_are_left_out(tmp_path):
    path = tmp_path / "traces.csv"
    lines = [" ,C00,C01,C02", "Time(s)/Cell Status,accepted,rejected,accepted"]
    lines += [f"{i / 10:.1f},{i},{2 * i},{3 * i}" for i in range(20)]
    path.write_text("\n".join(lines))
    traces = read_traces(path, {})
    assert traces.names == ["C00", "C02"] and "1 cells" in traces.notes[0]
    assert np.array_equal(traces.values[:, 1], 3.0 * np.arange(20))
    assert not is_trace_table(["t", "x", "y"]) and not is_trace_table(["unit", "time"])


def test_text_among_traces_is_refused_with_its_place(tmp_path):
    path = tmp_path / "traces.csv"
    path.write_text("time,a,b\n0,1,2\n0.1,oops,3\n0.2,,4\n")
    with pytest.raises(Refusal, match=r"column a, row 3.*\n?.*'oops'|'oops'"):
        read_traces(path, {})


def test_means_of_frames_equal_those_of_a_loop():
    draw = np.random.default_rng(0)
    t = np.sort(draw.random(300) * 20)
    values = draw.normal(size=(300, 3))
    values[draw.random(values.shape) < 0.2] = np.nan
    epochs = [(1.0, 9.05, "a"), (10.0, 18.0, "b")]
    means, starts, epoch, frames = bin_traces(t, values, epochs, 0.5)
    for row, start in enumerate(starts):
        inside = values[(t >= start) & (t < start + 0.5)]
        assert frames[row] == len(inside)
        for cell in range(3):
            known = inside[:, cell][np.isfinite(inside[:, cell])]
            if len(known):
                assert means[row, cell] == pytest.approx(known.mean())
            else:
                assert np.isnan(means[row, cell])
    assert np.bincount(epoch).tolist() == [16, 16]


def test_a_bin_shorter_than_a_frame_is_refused(tmp_path):
    t = np.arange(100) / 2.0
    session = read_session(table(tmp_path, t=t, a=np.sin(t), b=np.cos(t)))
    with pytest.raises(Refusal, match="set bin_s to 0.5"):
        prepare_placecells(session, SETTINGS)


def test_a_trace_that_never_changes_is_dropped_and_counted(tmp_path):
    t = np.arange(400) / 20
    session = read_session(table(tmp_path, t=t, a=np.sin(t), still=np.ones(400)))
    arrays, report = prepare_placecells(session, SETTINGS)
    assert arrays["unit"].tolist() == [b"a"]
    dropped = report[(report["item"] == "units") & (report["kind"] == "dropped")]
    assert dropped.set_index("reason")["count"]["a trace that does not change"] == 1


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    draw, t = np.random.default_rng(0), np.arange(1200) / 20
    latent = np.sin(t)[:, None] * draw.normal(size=(1, 5)) * 40 + 100
    values = latent + draw.normal(size=(1200, 5))
    names = [f"C{i:02d}" for i in range(5)]
    frame = pd.DataFrame(values, columns=names)
    frame.insert(0, "time", t)
    frame.to_csv(folder / "traces.csv", index=False)
    (folder / "track.csv").write_text(
        "t,x,y\n" + "\n".join(f"{a},{50 + 40 * np.sin(a)},{20}" for a in t)
    )
    session = read_session(folder / "traces.csv", {"position": "track.csv"})
    arrays, _ = prepare_placecells(session, SETTINGS | {"max_speed": 500})
    write_session(arrays, folder / "session.h5")
    return read_prepared(folder / "session.h5")


def test_traces_are_fitted_and_scored_under_a_gaussian(prepared, tmp_path):
    settings = resolve("preset-infinite_gpfa", {"n_factors": 2, "iterations": 8}, "test")
    model = fit_session(prepared, settings, seed=0)
    assert model.settings["likelihood"] == "gaussian"
    options = resolve("evaluate-placecells", {"draws": 20, "peer_iterations": 5, "shifts": 30}, "t")
    table, _ = evaluate_placecells("mine", prepared, [("default", 0, model)], options)
    assert set(table["metric"]) >= {"log-likelihood per entry"}
    assert "bits per spike" not in set(table["metric"])
    value = table[table["metric"] == "log-likelihood per entry"].set_index("method")["value"]
    assert value["infinite_gpfa"] > value["mean rate"] + 0.5
    figures.draw_raster(prepared, tmp_path / "raster.png")
    figures.draw_maps(prepared, model, tmp_path / "maps.png")
    assert (tmp_path / "maps.pdf").stat().st_size > 5000
    with pytest.raises(Refusal, match="calcium traces under the likelihood poisson"):
        fit_session(prepared, settings | {"likelihood": "poisson"}, seed=0)


def test_standardising_does_not_see_held_out_entries(prepared):
    held = prepared["held_out"][0]
    changed = prepared | {"counts": np.where(held, 1e6, prepared["counts"])}
    seen = ~held
    assert np.array_equal(activity_of(changed, 0)[seen], activity_of(prepared, 0)[seen])


def minian_with(folder, frames):
    from tests.contracts.test_readers import minian

    path = minian(folder)
    (path / "frame").mkdir()
    kind = {"zarr_format": 2, "shape": [40], "chunks": [40], "dtype": "<i8", "order": "C"}
    kind |= {"fill_value": None, "filters": None, "compressor": None}
    (path / "frame/.zarray").write_text(json.dumps(kind))
    (path / "frame/.zattrs").write_text('{"_ARRAY_DIMENSIONS": ["frame"]}')
    (path / "frame/0").write_bytes(np.asarray(frames, "<i8").tobytes())
    return path


def test_frames_of_a_trimmed_video_keep_their_numbers(tmp_path):
    path = minian_with(tmp_path, np.arange(100, 140))
    frame = pd.DataFrame({"frame": np.arange(200), "t": np.arange(200) / 30})
    frame.to_csv(tmp_path / "times.csv", index=False)
    traces = read_session(path, {"times": "times.csv"}).traces
    assert traces.t[[0, -1]] == pytest.approx([100 / 30, 139 / 30])
    assert read_session(path, {"rate_hz": "30"}).traces.t[0] == pytest.approx(100 / 30)


def test_times_of_another_camera_or_unit_are_refused(tmp_path):
    from tests.contracts.test_readers import minian

    path = minian(tmp_path)
    frame = pd.DataFrame({"timestamp": np.arange(50) / 30})
    frame.to_csv(tmp_path / "times.csv", index=False)
    with pytest.raises(Refusal, match="50 times for 40 frames"):
        read_session(path, {"times": "times.csv"})
    pd.DataFrame({"timestamp": np.arange(40) * 33}).to_csv(tmp_path / "times.csv", index=False)
    with pytest.raises(Refusal, match="milliseconds"):
        read_session(path, {"times": "times.csv"})


@pytest.mark.parametrize(
    "header, traces",
    [
        (["", "C00", "C01"], True),
        (["", "cell1", "cell2"], False),
        (["", "Control1", "CTRL3"], False),
        (["time", "head_x", "head_y"], False),
        (["t", "a", "b"], True),
    ],
)
def test_headers_tell_traces_from_matrices_and_tracks(header, traces):
    assert is_trace_table(header) is traces


def test_a_trailing_separator_makes_no_cell(tmp_path):
    (tmp_path / "t.csv").write_text("time,C0,C1,\n0,1,2,\n0.1,2,3,\n")
    assert read_traces(tmp_path / "t.csv", {}).names == ["C0", "C1"]


def test_traces_that_are_still_up_to_rounding_are_dropped(tmp_path):
    t = np.arange(6000) / 30
    held = {"t": t, "a": np.sin(t), "b": np.full(6000, 0.1), "c": np.full(6000, 1234.567)}
    arrays, _ = prepare_placecells(read_session(table(tmp_path, **held)), SETTINGS)
    assert arrays["unit"].tolist() == [b"a"]
