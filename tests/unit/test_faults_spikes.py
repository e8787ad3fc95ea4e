"""Public faults of reading spikes and tracking, and the readers of sorters and labs."""

import re
import shutil
from datetime import UTC, datetime

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io

from popflow.inputs.spikes import read_session
from popflow.inputs.tracking import read_tracking
from popflow.runtime.refusal import Refusal
from tests.contracts.test_readers import mat, neurosuite, phy, spike_table, spikes


def by_unit(shift=0):
    times, units = spikes()
    return {str(unit + shift): times[units == unit] for unit in range(3)}


def same(session, expected, tolerance=1e-12):
    assert set(session.spikes) == set(expected)
    for name, times in expected.items():
        assert session.spikes[name] == pytest.approx(times, abs=tolerance)


def test_spk_07_single_precision_becomes_seconds_in_double(tmp_path):
    times = (10_000 + np.arange(100) * 0.25).astype(np.float32)
    np.savez(tmp_path / "a.npz", spike_times=times, spike_units=np.zeros(100, int))
    read = read_session(tmp_path / "a.npz").spikes["0"]
    assert read.dtype == np.float64 and read[1] == 10000.25


def test_spk_11_phy_samples_are_divided_by_the_rate(tmp_path):
    same(read_session(phy(tmp_path)), by_unit(), 1 / 30_000)


def test_spk_11_samples_without_a_rate_are_refused_until_it_is_told(tmp_path):
    folder = phy(tmp_path)
    (folder / "params.py").unlink()
    with pytest.raises(Refusal, match="'not told'|not told") as refusal:
        read_session(folder)
    assert "rate_hz" in refusal.value.fix
    same(read_session(folder, {"rate_hz": "30000"}), by_unit(), 1 / 30_000)


def test_spk_11_templates_stand_in_for_clusters_and_are_told(tmp_path):
    folder = phy(tmp_path)
    (folder / "spike_clusters.npy").rename(folder / "spike_templates.npy")
    session = read_session(folder)
    assert "spike_templates.npy is used" in session.warnings[0]
    (folder / "spike_templates.npy").unlink()
    with pytest.raises(Refusal, match="no spike_clusters.npy"):
        read_session(folder)


def test_phy_keeps_the_good_clusters(tmp_path):
    folder = phy(tmp_path)
    (folder / "cluster_group.tsv").write_text("cluster_id\tgroup\n0\tgood\n1\tmua\n2\tnoise\n")
    session = read_session(folder)
    assert set(session.spikes) == {"0"} and "2 clusters" in session.warnings[0]


def test_params_are_never_run(tmp_path):
    folder = phy(tmp_path)
    danger = tmp_path / "danger"
    (folder / "params.py").write_text(f"open({str(danger)!r}, 'w')\nsample_rate = 30000\n")
    read_session(folder)
    assert not danger.exists()


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.int64])
def test_spk_12_the_index_of_spike_times_has_any_width(tmp_path, kind):
    from pynwb import NWBHDF5IO, NWBFile

    file = NWBFile("t", "t", datetime(2000, 1, 1, tzinfo=UTC))
    for times in by_unit().values():
        file.add_unit(spike_times=times)
    with NWBHDF5IO(str(tmp_path / "a.nwb"), "w") as io:
        io.write(file)
    with h5py.File(tmp_path / "a.nwb", "a") as file:
        old = file["units/spike_times_index"]
        values, attributes = old[:].astype(kind), dict(old.attrs)
        del file["units/spike_times_index"]
        new = file.create_dataset("units/spike_times_index", data=values)
        new.attrs.update({k: v for k, v in attributes.items() if k != "target"})
        new.attrs["target"] = file["units/spike_times"].ref
    same(read_session(tmp_path / "a.nwb"), by_unit())


def test_neurosuite_leaves_out_clusters_0_and_1(tmp_path):
    folder = neurosuite(tmp_path)
    expected = {f"1-{int(name) + 2}": times for name, times in by_unit().items()}
    same(read_session(folder), expected, 1 / 20_000)
    clusters = np.loadtxt(folder / "a.clu.1", dtype=int)
    clusters[1:][clusters[1:] == 2] = 1
    np.savetxt(folder / "a.clu.1", clusters, fmt="%d")
    session = read_session(folder)
    assert set(session.spikes) == {"1-3", "1-4"} and "clusters 0 and 1" in session.warnings[0]


def test_cellexplorer_and_tables_give_the_same_units(tmp_path):
    same(read_session(mat(tmp_path)), by_unit(1))
    same(read_session(spike_table(tmp_path)), by_unit(), 1e-9)


def test_matclust_cells_are_walked_through(tmp_path):
    struct = {"time": np.array([[0.5], [1.5]]), "meanrate": 1.0}
    inner = np.empty((1, 2), object)
    inner[0, 0], inner[0, 1] = struct, np.empty((0, 0))
    tetrodes = np.empty((1, 2), object)
    tetrodes[0, 0], tetrodes[0, 1] = np.empty((0, 0)), inner
    epoch, day = np.empty((1, 1), object), np.empty((1, 1), object)
    epoch[0, 0], day[0, 0] = tetrodes, epoch
    scipy.io.savemat(tmp_path / "spikes.mat", {"spikes": day})
    assert list(read_session(tmp_path / "spikes.mat").spikes) == ["2-1"]


def test_pynapple_groups(tmp_path):
    times, units = spikes()
    np.savez(tmp_path / "g.npz", t=times, index=units, keys=np.arange(3))
    same(read_session(tmp_path / "g.npz"), by_unit())


def test_samples_in_a_table_need_a_rate(tmp_path):
    times, units = spikes()
    table = pd.DataFrame({"unit": units, "sample": np.round(times * 1000).astype(int)})
    table.to_csv(tmp_path / "s.csv", index=False)
    with pytest.raises(Refusal, match="sampling rate"):
        read_session(tmp_path / "s.csv")
    same(read_session(tmp_path / "s.csv", {"rate_hz": "1000"}), by_unit(), 1e-3)


def deeplabcut(path):
    lines = ["scorer,net,net,net,net,net,net", "bodyparts,ear,ear,ear,tail,tail,tail"]
    lines += ["coords,x,y,likelihood,x,y,likelihood", "0,10,20,0.99,30,40,0.95"]
    lines += ["1,10,20,0.10,30,40,0.95", "2,10,20,0.10,30,40,0.20"]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_deeplabcut_averages_what_is_likely(tmp_path):
    path = deeplabcut(tmp_path / "track.csv")
    with pytest.raises(Refusal, match="frames without times"):
        read_tracking(path, {})
    t, xy, notes = read_tracking(path, {"position_rate_hz": "20"})
    assert t.tolist() == [0, 0.05, 0.1]
    assert xy[:2].tolist() == [[20, 30], [30, 40]] and np.isnan(xy[2]).all()
    assert "1 frames lost" in notes[0]


def test_tracking_and_epochs_beside_the_spikes(tmp_path):
    path = spike_table(tmp_path)
    pd.DataFrame({"t": np.arange(20.0), "x": 1.0, "y": 2.0}).to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "e.tsv").write_text("start\tstop\tlabel\n10\t20\trest\n0\t10\trun\n")
    row = {"path": str(path), "position": "t.csv", "position_unit": "cm", "epochs": "e.tsv"}
    session = read_session(path, row)
    assert session.position.shape == (20, 2) and session.position_unit == "cm"
    assert session.epochs == [(0.0, 10.0, "run"), (10.0, 20.0, "rest")]
    with pytest.raises(Refusal, match="no such file"):
        read_session(path, row | {"position": "absent.csv"})
    with pytest.raises(Refusal, match="'epochs'|start, stop"):
        read_session(path, row | {"epochs": "absent.tsv"})


def test_frames_of_one_time_stamp_are_averaged(tmp_path):
    table = pd.DataFrame({"t": [0.0, 0.1, 0.1, 0.2], "x": [0, 1, 3, 4], "y": [0, 0, 0, 0]})
    table.to_csv(tmp_path / "t.csv", index=False)
    t, xy, notes = read_tracking(tmp_path / "t.csv", {})
    assert t.tolist() == [0.0, 0.1, 0.2] and xy[1].tolist() == [2.0, 0.0] and "1 frames" in notes[0]


def test_whl_marks_lost_frames(tmp_path):
    (tmp_path / "a.whl").write_text("10 20 11 21\n-1 -1 -1 -1\n12 22 13 23\n")
    _, xy, _ = read_tracking(tmp_path / "a.whl", {"position_rate_hz": "39.0625"})
    assert xy[0].tolist() == [10, 20] and np.isnan(xy[1]).all()


def test_recorded_intervals_are_those_of_all_units(tmp_path):
    from pynwb import NWBHDF5IO, NWBFile

    file = NWBFile("t", "t", datetime(2000, 1, 1, tzinfo=UTC))
    for stop, times in zip((10.0, 12.0, 11.0), by_unit().values(), strict=True):
        file.add_unit(spike_times=times, obs_intervals=[[0.0, stop], [20.0, 30.0]])
    with NWBHDF5IO(str(tmp_path / "a.nwb"), "w") as io:
        io.write(file)
    recorded = read_session(tmp_path / "a.nwb").recorded
    assert recorded.tolist() == [[0.0, 10.0], [20.0, 30.0]]


def test_tracks_with_more_cells_than_names_shift_no_column(tmp_path):
    (tmp_path / "t.csv").write_text("t,x,y\n0,1,2,\n1,3,4,\n")
    t, xy, _ = read_tracking(tmp_path / "t.csv", {})
    assert t.tolist() == [0, 1] and xy.tolist() == [[1, 2], [3, 4]]
    (tmp_path / "t.csv").write_text("t,x,y\n0,0,1,5,2,5\n0,5,1,5,2,5\n")
    with pytest.raises(Refusal, match="t.csv"):
        read_tracking(tmp_path / "t.csv", {})


def test_a_spike_table_with_decimal_commas_is_refused(tmp_path):
    (tmp_path / "s.csv").write_text("unit,time\n0,0,1\n0,0,2\n")
    with pytest.raises(Refusal, match="s.csv"):
        read_session(tmp_path / "s.csv")


@pytest.mark.parametrize("told, rate", [("30_000.", 30_000), ("25e3  # Hz", 25_000)])
def test_spk_11_rates_as_python_writes_them(tmp_path, told, rate):
    folder = phy(tmp_path)
    (folder / "params.py").write_text(f"dat_path = 'a'\nsample_rate = {told}\n")
    times, _ = spikes()
    first = min(t[0] for t in read_session(folder).spikes.values())
    assert first == pytest.approx(times.min() * 30_000 / rate, abs=1e-4)
    (folder / "params.py").write_text("sample_rate = 1000*30\n")
    with pytest.raises(Refusal, match=r"1000\*30"):
        read_session(folder)


def test_two_sessions_of_neurosuite_in_a_folder_are_refused(tmp_path):
    folder = neurosuite(tmp_path)
    res = next(folder.glob("*.res.1"))
    shutil.copy(res, folder / f"{res.name}~")
    read_session(folder)
    for kind in ("res", "clu"):
        shutil.copy(res.with_name(res.name.replace("res", kind)), folder / f"other.{kind}.1")
    with pytest.raises(Refusal, match="2 sessions"):
        read_session(folder)


def test_the_rate_of_the_acquisition_system_is_taken(tmp_path):
    folder = neurosuite(tmp_path)
    before = read_session(folder).spikes
    xml = next(folder.glob("*.xml"))
    rate = re.search(r"<samplingRate>([^<]+)<", xml.read_text()).group(1)
    other = "<files><file><samplingRate>1250</samplingRate></file></files>"
    system = f"<acquisitionSystem><samplingRate>{rate}</samplingRate></acquisitionSystem>"
    xml.write_text(f"<parameters>{other}{system}</parameters>")
    for name, times in read_session(folder).spikes.items():
        assert np.array_equal(times, before[name])
    xml.write_text(f"<parameters>{other}<a><samplingRate>{rate}</samplingRate></a></parameters>")
    with pytest.raises(Refusal, match="1250 or"):
        read_session(folder)


def test_epochs_of_matclust_are_joined_cell_by_cell(tmp_path):
    day = np.empty((1, 2), object)
    for epoch in range(2):
        tetrodes = np.empty((1, 2), object)
        for tetrode in range(2):
            cells = np.empty((1, 2), object)
            for cell in range(2):
                times = 100.0 * epoch + np.arange(1, 6) + 0.1 * tetrode + 0.01 * cell
                cells[0, cell] = np.array([[(times[:, None],)]], dtype=[("data", object)])
            tetrodes[0, tetrode] = cells
        day[0, epoch] = tetrodes
    whole = np.empty((1, 1), object)
    whole[0, 0] = day
    scipy.io.savemat(tmp_path / "spikes.mat", {"spikes": whole})
    session = read_session(tmp_path / "spikes.mat")
    assert list(session.spikes) == ["1-1", "1-2", "2-1", "2-2"]
    assert session.spikes["2-1"][[0, 5]].tolist() == [1.1, 101.1]
    assert "2 epochs or days are joined" in session.warnings[0]


def nwb_session(path, ids=(0, 1, 2), series=(), **more):
    from pynwb import NWBHDF5IO, NWBFile
    from pynwb.behavior import Position, SpatialSeries

    file = NWBFile("t", "t", datetime(2000, 1, 1, tzinfo=UTC))
    for number, name in enumerate(ids):
        file.add_unit(spike_times=np.arange(0, 20, 0.5) + number / 10, id=name)
    position = Position()
    for name, unit in series:
        data = np.column_stack([np.arange(200.0), np.ones(200)])
        one = SpatialSeries(
            name=name, data=data, unit=unit, rate=10.0, reference_frame="corner", **more
        )
        position.add_spatial_series(one)
    if series:
        file.create_processing_module("behavior", "b").add(position)
    with NWBHDF5IO(str(path), "w") as io:
        io.write(file)
    return path


def test_repeated_unit_ids_keep_every_unit(tmp_path):
    session = read_session(nwb_session(tmp_path / "a.nwb", (0, 1, 0)))
    assert list(session.spikes) == ["0", "1", "0.2"] and "repeat" in session.warnings[0]


def test_places_go_before_angles_and_their_offset_counts(tmp_path):
    series = [("head_direction", "radians"), ("xy", "cm")]
    path = nwb_session(tmp_path / "a.nwb", series=series, conversion=0.01, offset=5.0)
    session = read_session(path)
    assert session.position_unit == "cm" and session.position[1].tolist() == [5.01, 5.01]
    path = nwb_session(tmp_path / "b.nwb", series=[("left", "cm"), ("right", "cm")])
    with pytest.raises(Refusal, match="2 series of places"):
        read_session(path)
    assert len(read_session(path, {"series": "right"}).position) == 200


@pytest.mark.parametrize("times", [5, 9])
def test_a_track_with_another_number_of_times_is_refused(tmp_path, times):
    np.savez(tmp_path / "p.npz", t=np.arange(times) / 10, position=np.ones((7, 2)))
    with pytest.raises(Refusal, match=f"{times} times"):
        read_tracking(tmp_path / "p.npz", {})


def test_missing_frames_of_deeplabcut_leave_a_gap(tmp_path):
    head = "scorer,D,D,D\nbodyparts,nose,nose,nose\ncoords,x,y,likelihood\n"
    (tmp_path / "d.csv").write_text(head + "".join(f"{i},1,2,1\n" for i in (0, 1, 2, 10)))
    t, _, _ = read_tracking(tmp_path / "d.csv", {"position_rate_hz": "30"})
    assert t == pytest.approx([0, 1 / 30, 2 / 30, 10 / 30])


def test_a_repeated_stamp_keeps_its_good_copy(tmp_path):
    text = "t,x,y\n0,1,1\n0.1,50,50\n0.1,0,0\n0.2,,\n0.2,4,4\n"
    (tmp_path / "t.csv").write_text(text)
    t, xy, _ = read_tracking(tmp_path / "t.csv", {})
    assert xy.tolist() == [[1, 1], [50, 50], [4, 4]]


@pytest.mark.parametrize(
    "rows, message",
    [("0\tn/a\ta\n", "row 2"), ("0,5\t3\ta\n", "row 2"), ("", "without rows")],
)
def test_epoch_tables_are_refused_by_their_row(tmp_path, rows, message):
    np.savez(tmp_path / "a.npz", spike_times=np.arange(9.0), spike_units=np.zeros(9, int))
    (tmp_path / "e.tsv").write_text("start\tstop\tlabel\n" + rows)
    with pytest.raises(Refusal, match=message):
        read_session(tmp_path / "a.npz", {"epochs": "e.tsv"})


def test_clocks_that_share_no_time_are_refused(tmp_path):
    held = {"spike_times": np.arange(0, 20, 0.5), "spike_units": np.zeros(40, int)}
    track = {"position_t": 100 + np.arange(200) / 10, "position": np.ones((200, 2))}
    np.savez(tmp_path / "a.npz", **held, **track)
    with pytest.raises(Refusal, match="clocks that overlap"):
        read_session(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", **held, epoch_start=[0.0], epoch_stop=[100_000.0])
    with pytest.raises(Refusal, match="epochs in seconds"):
        read_session(tmp_path / "b.npz")


def test_time_support_of_pynapple_is_the_recorded_time(tmp_path):
    held = {"t": np.arange(0, 20, 0.5), "index": np.zeros(40, int)}
    np.savez(tmp_path / "a.npz", **held, start=[0.0, 12.0], end=[8.0, 20.0])
    assert read_session(tmp_path / "a.npz").recorded.tolist() == [[0, 8], [12, 20]]
