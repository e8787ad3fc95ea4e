"""One suite that every reader must pass: paths, broken files, fuzzed bytes."""

import gzip
import json
import os
import pickle
import shutil
import tracemalloc
import uuid
from contextlib import suppress
from unittest import mock

import anndata
import flowio
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from popflow.inputs.registry import describe
from popflow.runtime.refusal import Refusal


def fcs(folder):
    draw = np.random.default_rng(0)
    path = folder / "sample.fcs"
    with open(path, "wb") as handle:
        flowio.create_fcs(handle, draw.normal(100, 10, 150).tolist(), ["A", "B", "Time"])
    return path


def matrix():
    x = np.random.default_rng(0).poisson(3.0, (12, 5)).astype(np.float32)
    obs = pd.DataFrame({"label": ["a", "b"] * 6}, index=[f"GSM{i}" for i in range(12)])
    var = pd.DataFrame(index=[f"ENSG{i:011d}" for i in range(5)])
    return anndata.AnnData(x, obs=obs, var=var)


def h5ad(folder):
    matrix().write_h5ad(folder / "m.h5ad")
    return folder / "m.h5ad"


def loom(folder):
    data = matrix()
    with h5py.File(folder / "m.loom", "w") as file:
        file["matrix"] = data.X.T
        file["row_attrs/Gene"] = np.array(data.var_names.tolist(), dtype="S")
        file["col_attrs/CellID"] = np.array(data.obs_names.tolist(), dtype="S")
    return folder / "m.loom"


def cellranger(folder):
    data = matrix()
    csc = scipy.sparse.csc_matrix(data.X.T)
    with h5py.File(folder / "m.h5", "w") as file:
        group = file.create_group("matrix")
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(csc, name)
        group["shape"] = np.array(csc.shape)
        group["barcodes"] = np.array(data.obs_names.tolist(), dtype="S")
        names = np.array(data.var_names.tolist(), dtype="S")
        group["features/id"], group["features/name"] = names, names
        group["features/feature_type"] = np.array([b"Gene Expression"] * 5)
        group["features/genome"] = np.array([b"g"] * 5)
    return folder / "m.h5"


def table(folder):
    data = matrix()
    pd.DataFrame(data.X, data.obs_names, data.var_names).to_csv(folder / "m.csv")
    return folder / "m.csv"


def mtx(folder):
    data, place = matrix(), folder / "tenx"
    place.mkdir()
    scipy.io.mmwrite(str(place / "matrix.mtx"), scipy.sparse.coo_matrix(data.X.T))
    (place / "features.tsv").write_text("\n".join(f"{g}\t{g}" for g in data.var_names) + "\n")
    (place / "barcodes.tsv").write_text("\n".join(data.obs_names) + "\n")
    return place


def raw():
    import mne

    info = mne.create_info(["A1", "A2", "A3"], 200.0, "seeg", verbose="ERROR")
    volts = np.random.default_rng(0).normal(0, 3e-5, (3, 600))
    return mne.io.RawArray(volts, info, verbose="ERROR")


def fif(folder):
    raw().save(folder / "rec_raw.fif", verbose="ERROR")
    return folder / "rec_raw.fif"


def edf(folder):
    """Write EDF by its rules: text header, then 16-bit samples."""
    rate, count = 200, 3
    fields = [
        ("0", 8), ("p", 80), ("r", 80), ("01.01.00", 8), ("00.00.00", 8),
        (str(256 * (count + 1)), 8), ("", 44), ("2", 8), ("1", 8), (str(count), 4),
    ]  # fmt: skip
    signal = [("EEG A", 16), ("", 80), ("uV", 8), ("-100", 8), ("100", 8), ("-32768", 8)]
    signal += [("32767", 8), ("", 80), (str(rate), 8), ("", 32)]
    text = "".join(value.ljust(size) for value, size in fields)
    for number, (value, size) in enumerate(signal):
        for channel in range(count):
            text += (f"EEG A{channel}" if number == 0 else value).ljust(size)
    samples = np.random.default_rng(0).normal(0, 3000, (2, count, rate)).astype("<i2")
    (folder / "rec.edf").write_bytes(text.encode() + samples.tobytes())
    return folder / "rec.edf"


def brainvision(folder):
    """Write .vhdr, .eeg; the header names its data file."""
    x = np.random.default_rng(0).normal(0, 30, (600, 3)).astype("<f4")
    (folder / "rec.eeg").write_bytes(x.tobytes())
    lines = ["Brain Vision Data Exchange Header File Version 1.0", "[Common Infos]"]
    lines += ["DataFile=rec.eeg", "DataFormat=BINARY", "DataOrientation=MULTIPLEXED"]
    lines += ["NumberOfChannels=3", "SamplingInterval=5000", "[Binary Infos]"]
    lines += ["BinaryFormat=IEEE_FLOAT_32", "[Channel Infos]"]
    lines += [f"Ch{i}=A{i},,1,µV" for i in (1, 2, 3)]
    (folder / "rec.vhdr").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "rec.vhdr"


def nwb_file():
    from datetime import UTC, datetime

    from pynwb import NWBFile

    return NWBFile("test", "test", datetime(2000, 1, 1, tzinfo=UTC))


def nwb_units(folder):
    from pynwb import NWBHDF5IO

    draw = np.random.default_rng(0)
    # The same bytes every time, so that changed ones mean the same.
    with mock.patch("uuid.uuid4", lambda: uuid.UUID(bytes=draw.bytes(16))):
        file = nwb_file()
        for seed in range(3):
            file.add_unit(spike_times=np.sort(np.random.default_rng(seed).random(40) * 20))
        with NWBHDF5IO(str(folder / "units.nwb"), "w") as io:
            io.write(file)
    return folder / "units.nwb"


def spikes():
    draw = np.random.default_rng(0)
    return np.sort(draw.random(90) * 20), draw.integers(0, 3, 90)


def npz(folder):
    times, units = spikes()
    np.savez(folder / "s.npz", spike_times=times, spike_units=units)
    return folder / "s.npz"


def mat(folder):
    times, units = spikes()
    cells = np.empty((1, 3), object)
    for unit in range(3):
        cells[0, unit] = times[units == unit][:, None]
    scipy.io.savemat(folder / "a.spikes.cellinfo.mat", {"spikes": {"times": cells}})
    return folder / "a.spikes.cellinfo.mat"


def spike_table(folder):
    times, units = spikes()
    pd.DataFrame({"unit": units, "time": times}).to_csv(folder / "s.csv", index=False)
    return folder / "s.csv"


def phy(folder):
    times, units = spikes()
    place = folder / "phy"
    place.mkdir()
    np.save(place / "spike_times.npy", (times * 30_000).astype(np.uint64))
    np.save(place / "spike_clusters.npy", units)
    (place / "params.py").write_text("dat_path = 'x'\nsample_rate = 30000.\n")
    return place


def neurosuite(folder):
    times, units = spikes()
    place = folder / "suite"
    place.mkdir()
    np.savetxt(place / "a.res.1", np.round(times * 20_000), fmt="%d")
    np.savetxt(place / "a.clu.1", np.concatenate([[3], units + 2]), fmt="%d")
    (place / "a.xml").write_text("<p><samplingRate>20000</samplingRate></p>")
    return place


def traces(folder):
    path = folder / "traces.csv"
    frame = pd.DataFrame({"time": np.arange(40) / 20.0})
    for cell in ("C00", "C01", "C02"):
        frame[cell] = np.random.default_rng(len(cell)).random(40)
    frame.to_csv(path, index=False)
    return path


def minian(folder):
    path = folder / "C.zarr"
    (path / "C").mkdir(parents=True)
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    (path / "C/.zattrs").write_text('{"_ARRAY_DIMENSIONS": ["unit_id", "frame"]}')
    kind = {"zarr_format": 2, "shape": [3, 40], "chunks": [3, 40], "dtype": "<f4", "order": "C"}
    kind |= {"fill_value": None, "filters": None, "compressor": None}
    (path / "C/.zarray").write_text(json.dumps(kind))
    values = np.random.default_rng(0).random((3, 40)).astype("<f4")
    (path / "C/0.0").write_bytes(values.tobytes())
    return path


def dacq(path, header, body, end=b"\r\ndata_end\r\n"):
    """Write a file of Axona's DACQ: header, data_start, records, data_end."""
    lines = {"trial_date": "Tuesday, 14 Dec 2010", "trial_time": "10:44:07"} | header
    text = "".join(f"{key} {value}\r\n" for key, value in lines.items())
    path.write_bytes(text.encode("latin-1") + b"data_start" + body + end)


def tetrode(path, seconds, **header):
    """Write the spikes of a tetrode: for each of four channels a time stamp and 50 samples."""
    records = np.zeros((len(seconds), 4), [("time", ">u4"), ("samples", "i1", (50,))])
    records["time"] = np.round(np.asarray(seconds) * 96_000)[:, None]
    records["samples"] = np.random.default_rng(0).integers(-128, 128, records["samples"].shape)
    told = {"duration": "20", "num_chans": "4", "timebase": "96000 hz", "bytes_per_timestamp": "4"}
    told |= {"samples_per_spike": "50", "sample_rate": "48000 hz", "bytes_per_sample": "1"}
    told |= {"spike_format": "t,ch1,t,ch2,t,ch3,t,ch4", "num_spikes": len(seconds)}
    dacq(path, told | header, records.tobytes())


def cut(path, labels):
    """Write the clusters of a tetrode as Tint does, 25 to a line."""
    lines = ["n_clusters: 4", "n_channels: 4", "n_params: 2", "times_used_in_Vt:    0    0    0"]
    lines += [" cluster: 0 center:   0   0   0   0", "", f"Exact_cut_for: x spikes: {len(labels)}"]
    rows = [labels[start : start + 25] for start in range(0, len(labels), 25)]
    lines += ["".join(f"{label:3d}" for label in row) for row in rows]
    path.write_text("\r\n".join(lines) + "\r\n")


def pos(path, words, **header):
    """Write a track: a frame counter and eight words per frame."""
    records = np.zeros(len(words), [("frame", ">u4"), ("words", ">i2", (8,))])
    records["frame"], records["words"] = np.arange(len(words)), words
    told = {"num_colours": "4", "timebase": "50 hz", "bytes_per_timestamp": "4"}
    told |= {"sample_rate": "50.0 hz", "pos_format": "t,x1,y1,x2,y2,numpix1,numpix2"}
    told |= {"bytes_per_coord": "2", "pixels_per_metre": "400", "num_pos_samples": len(words)}
    dacq(path, told | header, records.tobytes())


def axona(folder):
    """Write a session of two tetrodes, one of them cut; its name has a dot."""
    times, units = spikes()
    path = folder / "r1.d2.set"
    lines = ["trial_date Tuesday, 14 Dec 2010", "trial_time 10:44:07", "sw_version 1.2.2.14"]
    path.write_text("\r\n".join([*lines, "rawRate 48000", "pretrigSamps 10", "end 0"]) + "\r\n")
    tetrode(folder / "r1.d2.1", times)
    cut(folder / "r1.d2_1.cut", units)
    tetrode(folder / "r1.d2.3", times[:20])
    words = np.random.default_rng(0).integers(0, 600, (1000, 8))
    pos(folder / "r1.d2.pos", words)
    return path


COLUMNS = [("net", part, kind) for part in ("ear", "tail") for kind in ("x", "y", "likelihood")]


def pandas_table(path, values, names=COLUMNS, **attributes):
    """Write what pandas writes for format="table", attributes pickled by PyTables."""
    fields = [("index", "<i8"), ("values_block_0", "<f8", (values.shape[1],))]
    records = np.zeros(len(values), fields)
    records["index"], records["values_block_0"] = np.arange(len(values)), values
    told = {"values_block_0_kind": np.bytes_(pickle.dumps(list(names), 0))} | attributes
    with h5py.File(path, "w") as file:
        file.create_group("df_with_missing").attrs["pandas_type"] = np.bytes_("frame_table")
        data = file.create_dataset("df_with_missing/table", data=records, chunks=(len(values),))
        data.attrs.update(told)


def deeplabcut_h5(folder):
    values = np.random.default_rng(0).random((40, 6)) * 0.05 + 0.94
    pandas_table(folder / "track.h5", values)
    return folder / "track.h5"


FILES = {
    "fcs": fcs,
    "h5ad": h5ad,
    "loom": loom,
    "10x": cellranger,
    "table": table,
    "fif": fif,
    "edf": edf,
    "brainvision": brainvision,
    "nwb": nwb_units,
    "npz": npz,
    "mat": mat,
    "spike table": spike_table,
    "traces": traces,
    "axona": axona,
    "deeplabcut": deeplabcut_h5,
}
#: Files that are read beside the one that is named.
BESIDE = {
    "axona spikes": (axona, "r1.d2.1"),
    "axona clusters": (axona, "r1.d2_1.cut"),
    "axona track": (axona, "r1.d2.pos"),
}
FOLDERS = {"10x folder": mtx, "phy": phy, "neurosuite": neurosuite, "minian": minian}
#: A table that ends early is a shorter table, and so is the list of settings of Axona.
BINARY = sorted(set(FILES) - {"table", "spike table", "traces", "brainvision", "axona"})


LARGEST_ALLOCATION = 32 * 2**20


def told(path):
    """Give a description without what names the path."""
    keys = describe(path).keys()
    return {key: value for key, value in keys.items() if key != "sheet_row"}


@pytest.mark.parametrize("kind", FILES | FOLDERS)
def test_the_path_does_not_matter(kind, tmp_path):
    (tmp_path / "a").mkdir()
    path = (FILES | FOLDERS)[kind](tmp_path / "a")
    first = told(path)
    odd = tmp_path / "my läb (2) · data"
    shutil.copytree(tmp_path / "a", odd)
    assert told(odd / path.name) == first
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "a")
    assert told(link / path.name) == first
    for file in odd.rglob("*"):
        file.chmod(0o555 if file.is_dir() else 0o444)
    assert told(odd / path.name) == first


def test_a_zipped_table_is_the_table(tmp_path):
    path = table(tmp_path)
    (tmp_path / "z.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert told(tmp_path / "z.csv.gz") == told(path)


@pytest.mark.parametrize("kind", FILES)
def test_an_empty_file_is_refused(kind, tmp_path):
    path = FILES[kind](tmp_path)
    path.write_bytes(b"")
    with pytest.raises(Refusal, match="empty"):
        describe(path)


@pytest.mark.parametrize("kind", FILES)
def test_a_folder_in_place_of_a_file_is_refused(kind, tmp_path):
    path = FILES[kind](tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(Refusal):
        describe(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", BINARY)
def test_a_file_that_is_cut_off_is_refused(kind, share, tmp_path):
    path = FILES[kind](tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(Refusal):
        describe(path)


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", BESIDE)
def test_a_file_beside_it_that_is_cut_off_is_refused(kind, share, tmp_path):
    write, name = BESIDE[kind]
    path = write(tmp_path)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(len(data) * share)])
    with pytest.raises(Refusal, match=name):
        describe(path)


@pytest.mark.parametrize("kind", FILES)
def test_text_under_another_name_is_refused(kind, tmp_path):
    path = FILES[kind](tmp_path)
    path.write_text("This is a note about the experiment.\nNothing else stands here.\n")
    with pytest.raises(Refusal):
        describe(path)


@pytest.mark.parametrize("kind", FILES)
def test_an_unreadable_file_is_refused(kind, tmp_path):
    path = FILES[kind](tmp_path)
    if os.geteuid() == 0:
        path.unlink()
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.chmod(0)
    with pytest.raises(Refusal):
        describe(path)


def test_pickled_objects_are_not_loaded(tmp_path):
    np.savez(tmp_path / "p.npz", spike_times=np.array([{"a": 1}], object), spike_units=[0])
    with pytest.raises(Refusal, match="allow_pickle"):
        describe(tmp_path / "p.npz")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*sorted(FILES), *BESIDE])
def test_changed_bytes_give_a_description_or_a_refusal(kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    write, beside = BESIDE[kind] if kind in BESIDE else (FILES[kind], None)
    path = write(folder)
    target = folder / beside if beside else path
    data = target.read_bytes()
    reach = min(len(data), 4096)

    @settings(
        max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.lists(st.tuples(st.integers(0, reach - 1), st.integers(0, 255)), max_size=8),
        st.integers(0, 200),
    )
    def hold(changes, shorter):
        changed = bytearray(data)
        for place, value in changes:
            changed[place] = value
        target.write_bytes(bytes(changed[: len(changed) - shorter]))
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            assert describe(path).shape
        except Refusal as refusal:
            assert path.stem in str(refusal) and (beside or path.name in str(refusal))
        # Headers are not believed: a size that they declare is held against the file first.
        assert tracemalloc.get_traced_memory()[1] - before < LARGEST_ALLOCATION + 4 * len(data)

    describe(path)  # the modules that it needs are not counted
    target.write_bytes(b"?" + data[1:])
    with suppress(Refusal):
        describe(path)  # nor are those of another format of the same suffix
    tracemalloc.start()
    try:
        hold()
    finally:
        tracemalloc.stop()
