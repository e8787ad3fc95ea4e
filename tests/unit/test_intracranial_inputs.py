"""Reading recordings: units, sidecars, electrodes, and what is refused."""

import json

import numpy as np
import pandas as pd
import pytest
from pybv import write_brainvision

from popflow.inputs.recordings import (
    check_recording,
    check_source,
    check_voltages,
    describe,
    read_recording,
)
from popflow.inputs.settings import resolve
from popflow.inputs.sheets import read_units
from popflow.prepare.intracranial import load_session, prepare_session
from popflow.runtime.refusal import Refusal, Refusals

RATE = 256.0
NAMES = [f"{shaft}{number}" for shaft in "AB" for number in range(1, 6)]


def write_bids(folder, x=None, names=NAMES, events=True, system=None, kinds=None, unit="mm"):
    """Write a small BIDS-iEEG recording of 20 s; x is in µV."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 30, (len(names), int(20 * RATE))) if x is None else x
    base = "sub-01_task-rest"
    write_brainvision(data=x * 1e-6, sfreq=RATE, ch_names=names, fname_base=f"{base}_ieeg",
                      folder_out=str(folder), unit="µV", fmt="binary_float32",
                      overwrite=True)  # fmt: skip
    scale = {"mm": 1.0, "m": 1e-3}[unit]
    places = pd.DataFrame({"name": names})
    places["x"] = [-40.0 * scale + i * scale for i in range(len(names))]
    places["y"], places["z"], places["size"] = 10.0 * scale, 20.0 * scale, "n/a"
    places.to_csv(folder / "sub-01_electrodes.tsv", sep="\t", index=False)
    system = system or {"iEEGCoordinateSystem": "MNI305", "iEEGCoordinateUnits": unit}
    (folder / "sub-01_coordsystem.json").write_text(json.dumps(system))
    channels = pd.DataFrame({"name": names, "type": kinds or "SEEG", "status": "good"})
    channels["status_description"] = "n/a"
    channels.to_csv(folder / f"{base}_channels.tsv", sep="\t", index=False)
    (folder / f"{base}_ieeg.json").write_text(json.dumps({"PowerLineFrequency": 50}))
    if events:
        table = pd.DataFrame({"onset": [0.5, 3.0, 6.0, 19.5, 30.0], "duration": 1.0})
        table["trial_type"] = ["go", "stop", "go", "stop", "go"]
        table.to_csv(folder / f"{base}_events.tsv", sep="\t", index=False)
    return {"session": "one", "path": str(folder / f"{base}_ieeg.vhdr")}


def settings(**more):
    return resolve("prepare-intracranial", more, "test")


def prepare(folder, row, **more):
    prepare_session(read_recording(row), row, settings(**more), folder / "out")
    return load_session(folder / "out")


def edit(folder, name, change):
    path = next(folder.glob(f"*{name}.tsv"))
    table = pd.read_csv(path, sep="\t", keep_default_na=False)
    change(table).to_csv(path, sep="\t", index=False)


def test_voltages_leave_in_microvolts_and_match_by_name(tmp_path):
    x = np.random.default_rng(1).normal(0, 40, (10, int(20 * RATE)))
    row = write_bids(tmp_path, x)
    recording = read_recording(row)
    np.testing.assert_allclose(recording.read(["A2"], 10, 20)[0], x[1, 10:20], rtol=1e-5)
    assert (recording.rate, recording.line_frequency, recording.frame) == (RATE, 50.0, "MNI305")
    edit(tmp_path, "electrodes", lambda table: table.iloc[::-1])
    session = prepare(tmp_path, row, reference="none")
    assert session.electrodes["x"].tolist() == [-40.0 + i for i in range(10)]


def test_metres_and_millimetres_agree(tmp_path):
    (tmp_path / "mm").mkdir()
    (tmp_path / "m").mkdir()
    one = read_recording(write_bids(tmp_path / "mm"))
    other = read_recording(write_bids(tmp_path / "m", unit="m"))
    np.testing.assert_allclose(one.electrodes["x"], other.electrodes["x"])


def test_the_grip_force_header_is_found_out(tmp_path):
    """Values stored in microvolts under a header that makes mne return them as volts."""
    x = np.random.default_rng(1).normal(0, 30, (10, int(20 * RATE))) * 1e6
    row = write_bids(tmp_path, x)
    recording = read_recording(row)
    with pytest.raises(Refusal, match="1e6 too large") as refusal:
        check_voltages(recording, NAMES)
    assert "write uV under 'units'" in str(refusal.value)
    right = check_voltages(read_recording(row | {"units": "uV"}), NAMES)
    assert right["spread"].median() == pytest.approx(30, rel=0.05)


def test_ieeg_01_a_frame_that_is_not_told_is_refused_and_can_be_written(tmp_path):
    """nobody can tell the frame of the coordinates."""
    system = {"iEEGCoordinateSystem": "Other", "iEEGCoordinateUnits": "mm"}
    row = write_bids(tmp_path, system=system)
    with pytest.raises(Refusal, match="frame of its coordinates is 'Other'"):
        read_recording(row)
    assert read_recording(row | {"frame": "Talairach"}).frame == "Talairach"
    with pytest.raises(Refusal, match="the coordinate frame 'voxels'"):
        prepare(tmp_path, row | {"frame": "voxels"})


def test_metres_passed_as_millimetres_are_refused(tmp_path):
    row = write_bids(tmp_path, unit="m")
    with pytest.raises(Refusal, match="largest coordinate is 0.04 mm when read in mm"):
        read_recording(row | {"coordinate_units": "mm"})


def test_ieeg_13_several_spaces_must_be_chosen_from(tmp_path):
    """one of several space- files must not be taken silently."""
    row = write_bids(tmp_path)
    for kind, suffix in (("electrodes", "tsv"), ("coordsystem", "json")):
        old = tmp_path / f"sub-01_{kind}.{suffix}"
        for space in ("MNI305", "ACPC"):
            (tmp_path / f"sub-01_space-{space}_{kind}.{suffix}").write_bytes(old.read_bytes())
        old.unlink()
    with pytest.raises(Refusal, match="spaces ACPC, MNI305"):
        read_recording(row)
    assert len(read_recording(row | {"space": "ACPC"}).electrodes) == 10


def test_nan_channels_are_refused_or_dropped(tmp_path):
    x = np.random.default_rng(1).normal(0, 30, (10, int(20 * RATE)))
    x[3, 100:110] = np.nan
    row = write_bids(tmp_path, x)
    with pytest.raises(Refusal, match="channel A4: 10 samples are NaN"):
        prepare(tmp_path, row)
    assert not (tmp_path / "out" / "meta.json").exists()
    assert "A4" not in prepare(tmp_path, row, nan_channels="drop").electrodes["name"].tolist()
    table = pd.read_csv(tmp_path / "out" / "electrodes.tsv", sep="\t").set_index("name")
    assert table.loc["A4", "reason"] == "NaN samples"


def test_bad_flat_and_foreign_channels_are_dropped_with_their_reason(tmp_path):
    x = np.random.default_rng(1).normal(0, 30, (12, int(20 * RATE)))
    x[0] = 5.0
    row = write_bids(tmp_path, x, [*NAMES, "ECG", "B6"], kinds=["SEEG"] * 10 + ["ECG", "SEEG"])

    def mark(table):
        table.loc[table["name"] == "B1", ["status", "status_description"]] = ["bad", "spikes"]
        return table

    edit(tmp_path, "channels", mark)
    edit(tmp_path, "electrodes", lambda t: t.assign(x=["n/a" if n == "B6" else v
                                                       for n, v in zip(t["name"], t["x"],
                                                                       strict=True)]))  # fmt: skip
    prepare(tmp_path, row, reference="none")
    reasons = pd.read_csv(tmp_path / "out" / "electrodes.tsv", sep="\t").set_index("name")["reason"]
    assert reasons["A1"] == "flat"
    assert reasons["B1"] == "channels.tsv: spikes"
    assert reasons["ECG"] == "not an intracranial channel (ECG)"
    assert reasons["B6"] == "no position"


def test_recordings_without_positions_are_refused(tmp_path):
    row = write_bids(tmp_path)
    (tmp_path / "sub-01_electrodes.tsv").unlink()
    with pytest.raises(Refusal, match="no table of electrode positions"):
        prepare(tmp_path, row)


def test_electrodes_of_other_names_or_twice_are_refused(tmp_path):
    row = write_bids(tmp_path)
    edit(tmp_path, "electrodes", lambda table: pd.concat([table, table.iloc[:1]]))
    with pytest.raises(Refusal, match="A1 twice"):
        prepare(tmp_path, row)
    edit(tmp_path, "electrodes", lambda table: table.assign(name=[f"X{i}" for i in range(11)]))
    with pytest.raises(Refusal, match="no name of its channels"):
        prepare(tmp_path, row)


def test_a_window_longer_than_the_recording_is_refused(tmp_path):
    with pytest.raises(Refusal, match="lasts 20.00 s, a window 30 s"):
        prepare(tmp_path, write_bids(tmp_path), window_s=30)


def test_ieeg_11_events_outside_the_recording_are_dropped_and_told(tmp_path):
    """events past the end must not be moved onto the last window."""
    session = prepare(tmp_path, write_bids(tmp_path))
    assert session.events["event"].tolist() == [0, 1, 2]
    assert len(session.event_features) == 3
    table = pd.read_csv(tmp_path / "out" / "events.tsv", sep="\t")
    assert (table["reason_dropped"] == "outside the recording").sum() == 2


def test_a_plain_file_outside_bids_is_enough(tmp_path):
    """WF-04: a path and two tables, no BIDS names."""
    row = write_bids(tmp_path)
    plain = tmp_path / "plain"
    plain.mkdir()
    for kind in ("electrodes", "events"):
        next(tmp_path.glob(f"*{kind}.tsv")).rename(plain / f"my_{kind}.tsv")
    for file in tmp_path.glob("*channels.tsv"):
        file.unlink()
    row |= {"electrodes": str(plain / "my_electrodes.tsv"), "coordinate_units": "mm"}
    row |= {"events": str(plain / "my_events.tsv"), "frame": "MNI"}
    assert prepare(tmp_path, row).features.shape[1] == 6


def test_an_unreadable_file_is_refused(tmp_path):
    (tmp_path / "broken.edf").write_bytes(b"0" * 100)
    with pytest.raises(Refusal, match="cannot be read"):
        read_recording({"session": "one", "path": str(tmp_path / "broken.edf")})


def test_a_folder_with_several_recordings_is_refused(tmp_path):
    write_bids(tmp_path)
    (tmp_path / "sub-01_task-other_ieeg.vhdr").write_text("")
    with pytest.raises(Refusal, match="2 recordings"):
        read_recording({"session": "one", "path": str(tmp_path)})


def test_the_real_recordings_are_read(shared_data):
    folder = shared_data / "ieeg" / "bids_gripforce"
    file = next(folder.rglob("*_ieeg.vhdr"))
    recording = read_recording({"session": "a", "path": str(file), "units": "uV", "frame": "MNI"})
    assert (recording.rate, recording.samples, len(recording.channels)) == (1000.0, 19001, 10)
    spread = check_voltages(recording, recording.channels["name"].tolist()[:9])["spread"]
    assert spread.between(18, 49).all()


def test_describe_tells_what_is_there_and_what_is_doubtful(tmp_path):
    x = np.random.default_rng(1).normal(0, 30, (10, int(20 * RATE))) * 1e6
    system = {"iEEGCoordinateSystem": "Other", "iEEGCoordinateUnits": "mm"}
    row = write_bids(tmp_path, x, system=system)
    told = describe(row["path"]).keys()
    assert (told["shape"], told["rate_hz"], told["names"]) == ([5120, 10], RATE, NAMES)
    assert told["labels"]["trial_type"] == {"go": 3, "stop": 2}
    assert any("1e6 too large" in text for text in told["warnings"])
    assert any("'Other'" in text for text in told["warnings"])
    assert told["sheet_row"]["units"] == "uV"


def test_check_finds_the_mistakes_of_all_sessions(tmp_path):
    row = write_bids(tmp_path)
    (tmp_path / "broken.edf").write_bytes(b"0" * 100)
    sheet = pd.DataFrame({"session": ["one", "two"], "path": [row["path"], "broken.edf"]})
    sheet.to_csv(tmp_path / "sessions.tsv", sep="\t", index=False)
    dataset = {"dataset": "x", "modality": "intracranial", "source": tmp_path}
    dataset["sheet"] = tmp_path / "sessions.tsv"
    with pytest.raises(Refusals) as refusals:
        check_source(dataset, read_units(dataset), settings(window_s=30))
    assert "a window 30 s" in str(refusals.value) and "cannot be read" in str(refusals.value)


def test_label_columns_keep_their_values_beside_ours(tmp_path):
    row = write_bids(tmp_path)
    edit(tmp_path, "events", lambda table: table.assign(event=list("abcde"), part="first"))
    events = prepare(tmp_path, row).events
    assert events["event_in_file"].tolist() == ["a", "b", "c"]
    assert set(events["part_in_file"]) == {"first"} and events["event"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "cannot be read"),
        ("name\ttype\tstatus\n".encode("utf-16"), "cannot be read"),
        (b"name\ttype\tstatus\nA1\tSEEG\tgoood\n", "found goood"),
    ],
)
def test_sidecars_that_are_no_tables_are_refused(tmp_path, content, message):
    from tests.contracts.test_readers import brainvision

    path = brainvision(tmp_path)
    lines = content
    if b"goood" in content:
        lines += b"A2\tSEEG\tgood\nA3\tSEEG\tn/a\n"
    (tmp_path / "channels.tsv").write_bytes(lines)
    with pytest.raises(Refusal, match=message):
        read_recording({"path": str(path), "channels": str(tmp_path / "channels.tsv")})


def test_a_coordinate_system_that_is_a_list_is_refused(tmp_path):
    from popflow.inputs.sidecars import read_sidecar_json

    (tmp_path / "coordsystem.json").write_text("[1, 2]")
    with pytest.raises(Refusal, match="it holds list, not keys"):
        read_sidecar_json(tmp_path / "coordsystem.json")


def test_parts_that_leave_no_test_are_refused(tmp_path):
    from tests.contracts.test_readers import brainvision

    recording = read_recording({"path": str(brainvision(tmp_path))})
    with pytest.raises(Refusal, match="together 1.2"):
        check_recording(recording, settings(train_fraction=0.9, validation_fraction=0.3))
