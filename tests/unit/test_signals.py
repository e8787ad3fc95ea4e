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


def test_events_of_a_cropped_fif_count_from_its_first_sample(tmp_path):
    import mne

    info = mne.create_info(["A1", "A2"], 100.0, "seeg")
    raw = mne.io.RawArray(VOLTS[:, :2].T.repeat(8, 1), info, verbose="ERROR")
    raw.set_annotations(mne.Annotations([15.0], [0.5], ["go"]))
    raw.crop(tmin=10).save(tmp_path / "a_raw.fif", verbose="ERROR")
    recording = read_recording({"path": str(tmp_path / "a_raw.fif")})
    assert recording.events["onset"].tolist() == [5.0]


def test_repeated_labels_of_nwb_do_not_repeat_the_first_channel(tmp_path):
    path = nwb(tmp_path / "a.nwb")
    with h5py.File(path, "a") as file:
        labels = file["general/extracellular_ephys/electrodes/label"]
        labels[:] = ["A", "A", "A"]
    signals = open_signals(path, {})
    assert signals.names == ["channel0", "channel1", "channel2"]
    assert signals.read(signals.names, 0, 400) == pytest.approx(VOLTS.T)


def edf_with(path, units=("uV", "uV"), samples=(100, 100), plus="", onsets=(0, 1, 2)):
    """Write an EDF file of one-second records, with annotations when `plus` is given."""
    labels, each = ["A1", "A2"], list(samples)
    if plus:
        labels, each, units = [*labels, "EDF Annotations"], [*each, 16], (*units, "")
    n = len(labels)
    columns = [(labels, 16), ([""] * n, 80), (units, 8), ([-100] * n, 8), ([100] * n, 8)]
    columns += [([-32768] * n, 8), ([32767] * n, 8), ([""] * n, 80), (each, 8), ([""] * n, 32)]
    fixed = [("0", 8), ("x", 80), ("x", 80), ("01.01.00", 8), ("00.00.00", 8)]
    fixed += [(256 * (n + 1), 8), (plus, 44), (len(onsets), 8), (1, 8), (n, 4)]
    head = b"".join(str(v).encode().ljust(w) for v, w in fixed)
    head += b"".join(str(v).encode().ljust(w) for values, w in columns for v in values)
    body, draw = b"", np.random.default_rng(0)
    for onset in onsets:
        for count in samples:
            body += draw.integers(-9000, 9000, count).astype("<i2").tobytes()
        if plus:
            body += f"+{onset}\x14\x14\x00".encode().ljust(32, b"\0")
    path.write_bytes(head + body)
    return path


def test_gaps_of_a_discontinuous_edf_are_refused(tmp_path):
    whole = edf_with(tmp_path / "a.edf", plus="EDF+D")
    assert open_signals(whole, {}).samples == 300
    with pytest.raises(Refusal, match="1 gaps, the first one after 2 s"):
        open_signals(edf_with(tmp_path / "b.edf", plus="EDF+D", onsets=(0, 1, 10)), {})


def test_channels_of_several_rates_do_not_depend_on_the_chunk(tmp_path):
    signals = open_signals(edf_with(tmp_path / "a.edf", samples=(100, 25)), {})
    whole = signals.read(["A1", "A2"], 0, 300)
    pieces = [signals.read(["A1", "A2"], s, min(s + 37, 300)) for s in range(0, 300, 37)]
    assert np.array_equal(np.concatenate(pieces, 1), whole)


def test_units_of_an_edf_are_read_in_any_case_and_others_are_no_voltages(tmp_path):
    plain = open_signals(edf_with(tmp_path / "a.edf"), {}).read(["A1", "A2"], 0, 300)
    for units, factor in ((("uv", "uV"), 1.0), (("mV", "uV"), 1e3), (("nV", "uV"), 1e-3)):
        read = open_signals(edf_with(tmp_path / "b.edf", units), {}).read(["A1", "A2"], 0, 300)
        assert read[0] == pytest.approx(factor * plain[0]) and np.array_equal(read[1], plain[1])
    assert open_signals(edf_with(tmp_path / "c.edf", ("degC", "uV")), {}).kinds[0] == "MISC"


def test_sidecars_of_another_recording_are_not_taken(tmp_path):
    path = edf_with(tmp_path / "patientA.edf")
    (tmp_path / "patientB_events.tsv").write_text("onset\tduration\n1\t0\n")
    (tmp_path / "events.tsv").write_text("onset\tduration\n1\t0\n")
    assert not len(read_recording({"path": str(path)}).events)
    (tmp_path / "patientA_events.tsv").write_text("onset\tduration\n2\t0\n")
    assert read_recording({"path": str(path)}).events["onset"].tolist() == [2.0]


@pytest.mark.parametrize("told, line", [("50 Hz", 50.0), (60, 60.0), ("n/a", None), (True, None)])
def test_line_frequencies_as_sidecars_tell_them(tmp_path, told, line):
    path = edf_with(tmp_path / "sub-1_task-a_ieeg.edf")
    (tmp_path / "sub-1_task-a_ieeg.json").write_text(json.dumps({"PowerLineFrequency": told}))
    if told is True:
        with pytest.raises(Refusal, match="line frequency of True"):
            read_recording({"path": str(path)})
    else:
        assert read_recording({"path": str(path)}).line_frequency == line


def test_plain_archives_tell_rate_names_and_places(tmp_path):
    held = {"Y": VOLTS * 1e6, "fs": 512.0, "coords": np.arange(9.0).reshape(3, 3) + 10}
    np.savez(tmp_path / "a.npz", **held, names=["A1", "A2", "A3"])
    row = {"path": str(tmp_path / "a.npz"), "units": "uV", "frame": "MNI", "coordinate_units": "mm"}
    recording = read_recording(row)
    assert recording.rate == 512 and recording.samples == 400
    assert recording.electrodes["name"].tolist() == ["A1", "A2", "A3"]
    assert recording.read(["A2"], 5, 9)[0] == pytest.approx(VOLTS[5:9, 1] * 1e6)
