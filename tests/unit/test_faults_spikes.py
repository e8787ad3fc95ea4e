"""Public faults of reading spikes and tracking, and the readers of sorters and labs."""

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
