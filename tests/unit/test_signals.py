"""Voltages of NWB, arrays and the Brain Treebank: rate, unit and names are never guessed."""

import json
from datetime import UTC, datetime

import h5py
import numpy as np
import pytest
import scipy.io

from popflow.inputs.recordings import check_recording, read_recording
from popflow.inputs.registry import describe
from popflow.inputs.settings import resolve
from popflow.inputs.signals import open_signals
from popflow.runtime.refusal import Refusal
from tests.contracts.test_readers import brainvision, edf

VOLTS = np.random.default_rng(0).normal(0, 3e-5, (400, 3))


def nwb(path, data=VOLTS, timestamps=None, names=("ElectricalSeries",), **more):
    from pynwb import NWBHDF5IO, NWBFile
    from pynwb.ecephys import ElectricalSeries

    file = NWBFile("t", "t", datetime(2000, 1, 1, tzinfo=UTC))
    device = file.create_device("d")
    group = file.create_electrode_group("shaft", "d", "brain", device)
    file.add_electrode_column("label", "name of the contact")
    for n in range(3):
        file.add_electrode(
            x=10.0 * n, y=5.0, z=-3.0, location="hippocampus", group=group, label=f"LA{n + 1}"
        )
    clock = {"timestamps": timestamps} if timestamps is not None else {"rate": 200.0}
    for name in names:
        region = file.create_electrode_table_region([0, 1, 2], "all")
        series = ElectricalSeries(name, data, region, **clock, **more)
        file.add_acquisition(series)
    with NWBHDF5IO(str(path), "w") as io:
        io.write(file)
    return path


def test_nwb_gives_voltages_names_and_places(tmp_path):
    path = nwb(tmp_path / "a.nwb")
    row = {"path": str(path), "frame": "MNI", "coordinate_units": "mm"}
    recording = read_recording(row)
    assert recording.channels["name"].tolist() == ["LA1", "LA2", "LA3"]
    assert recording.electrodes[["x", "y", "z"]].to_numpy()[2].tolist() == [20, 5, -3]
    assert recording.rate == 200 and recording.samples == 400
    read = recording.read(["LA3", "LA1"], 10, 20)
    assert read == pytest.approx(VOLTS[10:20, [2, 0]].T * 1e6)


def test_conversion_offset_and_channels_of_nwb(tmp_path):
    counts = np.round(VOLTS * 1e7).astype(np.int16)
    path = nwb(
        tmp_path / "a.nwb", counts, conversion=1e-7, offset=1e-6, channel_conversion=[1.0, 2.0, 1.0]
    )
    signals = open_signals(path, {})
    read = signals.read(["LA2"], 0, 400)[0]
    assert read == pytest.approx(counts[:, 1] * 2e-7 + 1e-6)


def test_gaps_between_time_stamps_are_refused(tmp_path):
    stamps = np.arange(400) / 200
    assert open_signals(nwb(tmp_path / "a.nwb", timestamps=stamps), {}).rate == pytest.approx(200)
    stamps[200:] += 5
    with pytest.raises(Refusal, match="1 steps of its time stamps"):
        open_signals(nwb(tmp_path / "b.nwb", timestamps=stamps), {})


def test_of_several_series_one_must_be_named(tmp_path):
    path = nwb(tmp_path / "a.nwb", names=("raw", "clean"))
    with pytest.raises(Refusal, match="2 ElectricalSeries\n  accepted: one of clean, raw"):
        open_signals(path, {})
    assert open_signals(path, {"series": "clean"}).samples == 400
    with pytest.raises(Refusal, match="no ElectricalSeries 'x'"):
        open_signals(path, {"series": "x"})


def arrays(folder, kind):
    path = folder / f"a.{kind}"
    held = {"ecog": VOLTS * 1e6, "other": np.zeros((5, 5)), "t": np.arange(400.0)}
    if kind == "npz":
        np.savez(path, **held)
    elif kind == "mat":
        scipy.io.savemat(path, held)
    else:
        path = folder / "b.mat"
        with h5py.File(path, "w") as file:
            for name, values in held.items():
                file[name] = values.T
    return path


@pytest.mark.parametrize("kind", ["npz", "mat", "v7.3"])
def test_arrays_need_field_rate_and_unit(tmp_path, kind):
    path = arrays(tmp_path, kind)
    with pytest.raises(Refusal, match="no single array"):
        read_recording({"path": str(path)})
    with pytest.raises(Refusal, match="sampling rate is 'not told'"):
        read_recording({"path": str(path), "field": "ecog"})
    row = {"path": str(path), "field": "ecog", "rate": "200"}
    with pytest.raises(Refusal, match="unit of its values is 'not told'"):
        read_recording(row)
    recording = read_recording(row | {"units": "uV"})
    assert recording.rate == 200 and recording.samples == 400
    assert recording.read(["channel1"], 0, 5)[0] == pytest.approx(VOLTS[:5, 1] * 1e6)
    (tmp_path / "names.json").write_text(json.dumps(["A", "B", "C"]))
    named = read_recording(row | {"units": "uV", "names": "names.json"})
    assert named.channels["name"].tolist() == ["A", "B", "C"]
    (tmp_path / "two.txt").write_text("A\nB\n")
    with pytest.raises(Refusal, match="2 names .* for 3 channels"):
        read_recording(row | {"units": "uV", "names": "two.txt"})


def test_brain_treebank(tmp_path):
    with h5py.File(tmp_path / "sub_1_trial000.h5", "w") as file:
        for n in range(12):
            file[f"data/electrode_{n}"] = np.full(300, float(n))
    row = {"path": str(tmp_path / "sub_1_trial000.h5"), "rate": "2048", "units": "uV"}
    recording = read_recording(row)
    assert recording.channels["name"].tolist()[10] == "electrode_10"
    assert recording.read(["electrode_10", "electrode_2"], 5, 7).tolist() == [[10, 10], [2, 2]]


def test_a_recording_shorter_than_its_sidecar_says_is_refused(tmp_path):
    path = brainvision(tmp_path)
    side = tmp_path / "rec_ieeg.vhdr"
    side.write_text(path.read_text())
    (tmp_path / "rec_ieeg.json").write_text(json.dumps({"RecordingDuration": 60.0}))
    recording = read_recording({"path": str(side)})
    with pytest.raises(Refusal, match="3 s of signal\n  accepted: the 60 s"):
        check_recording(recording, resolve("prepare-intracranial", {}, "test"))
    assert "the 60 s that its sidecar" in " ".join(describe(side).warnings)


def test_edf_values_are_scaled_to_microvolts(tmp_path):
    path = edf(tmp_path)
    told = describe(path)
    samples = np.frombuffer(path.read_bytes()[256 * 4 :], "<i2").reshape(2, 3, 200)
    expected = samples.transpose(1, 0, 2).reshape(3, -1) * (200 / 65535) + 100 / 65535
    assert told.raw_mean == pytest.approx(expected.mean(1), abs=0.02)
    assert told.names == ["EEG A0", "EEG A1", "EEG A2"]
