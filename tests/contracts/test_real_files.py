"""Every real file of the shared data: read as its reference says, or refused with the reason."""

import json
from pathlib import Path

import numpy as np
import pytest

from popflow.inputs.expression import read_expression
from popflow.inputs.registry import describe
from popflow.runtime.refusal import Refusal
from tests.conftest import SHARED

REFERENCES = {
    str((file.parent / name).relative_to(SHARED)): values
    for file in sorted(SHARED.glob("cytometry/**/reference.json"))
    for name, values in json.loads(file.read_text()).items()
}
#: HEADER points into TEXT, and the reference holds the bytes of the text there ("000," is 12332).
FCS_OURS = {"FlowKit__data_start_offset_discrepancy_example.fcs": 49135.0}
OTHERS = (
    json.loads((SHARED / "reference_other.json").read_text())
    if (SHARED / "reference_other.json").is_file()
    else {}
)
GENES = {k: v for k, v in OTHERS.items() if k.startswith("gene_expression") and "shape" in v}
MATRICES = {k: v for k, v in GENES.items() if "label" not in k and "metadata" not in k}
GENES_IN_ROWS = ("golub", "bladder", "sc_mixology")
RECORDINGS = {k: v for k, v in OTHERS.items() if k.startswith("ieeg") and "n_ch" in v}
NWB = {k: v for k, v in OTHERS.items() if k.endswith(".nwb")}


def close(found, expected):
    return np.allclose(found, expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("name", REFERENCES)
def test_fcs(name, shared_data):
    expected, path = REFERENCES[name], shared_data / name
    if "events" not in expected:
        with pytest.raises(Refusal, match="cut off"):
            describe(path)
        return
    told = describe(path, dataset=0 if expected.get("nextdata") else None)
    assert told.shape == [expected["events"], expected["channels"]]
    assert told.names == expected["pnn"]
    if path.name in FCS_OURS:
        assert told.first_row[0] == FCS_OURS[path.name]
        return
    assert close(told.raw_mean, expected["raw_mean"])
    assert close(told.first_row, expected["raw_first_event"])


SCALED = [k for k, v in REFERENCES.items() if "scaled_mean" in v and Path(k).name not in FCS_OURS]


@pytest.mark.parametrize("name", SCALED)
def test_fcs_in_linear_values(name, shared_data):
    expected = REFERENCES[name]
    told = describe(shared_data / name, dataset=0 if expected.get("nextdata") else None)
    scaled = np.array(expected["scaled_mean"], float)
    known = np.isfinite(scaled)
    assert np.allclose(np.array(told.prepared_mean)[known], scaled[known], rtol=1e-4)


def test_the_newest_data_set_is_the_default(shared_data):
    folder = shared_data / "cytometry/fcs_reading"
    gallios = folder / "cytoflow__Beckman_Coulter_-_Gallios.LMD"
    told = describe(gallios)
    assert told.version == "3.0" and told.names == ["FS-A", "SS-A", "FL1-A", "FL2-A", "TIME"]
    assert close(told.raw_mean[:2], [453155.0, 329453.0])
    with pytest.raises(Refusal, match="no data set 2"):
        describe(gallios, dataset=2)


@pytest.mark.parametrize("name", MATRICES)
def test_expression(name, shared_data):
    expected, path = MATRICES[name], shared_data / name
    if path.name == "v0.11.4.h5ad":
        with pytest.raises(Refusal, match="no matrix X"):
            describe(path)
        return
    lies = "genes_in_rows" if any(part in name for part in GENES_IN_ROWS) else "samples_in_rows"
    if path.name.startswith("Khan"):
        # No column of ids: its first gene must not be taken for one.
        with pytest.raises(Refusal, match="not ids|no comma"):
            read_expression(path, lies)
        return
    read = read_expression(path, lies)
    shape = expected["shape"][::-1] if lies == "genes_in_rows" and ".csv" in name else None
    assert list(read.shape) == (shape or expected["shape"])
    if "X_mean" in expected:
        assert close(read.X.mean(), expected["X_mean"][0]) or abs(
            read.X.mean() - expected["X_mean"][0]
        ) < 5e-5 * abs(expected["X_mean"][0])
        assert close(read.X.max(), expected["X_max"][0])
        assert set(expected["obs"]) <= set(read.obs.columns)
    if "columns" in expected:
        names = (read.obs_names if lies == "genes_in_rows" else read.var_names).tolist()
        assert [name for name in expected["columns"] if name in names[:6]][-4:] == names[1:5]
    if "sum" in expected:
        assert read.X.sum() == expected["sum"]


def test_archived_zarr_is_what_its_h5ad_is(shared_data):
    folder = shared_data / "gene_expression/anndata_versions"
    zarr, h5ad = (read_expression(folder / f"v0.7.0.{kind}") for kind in ("zarr.zip", "h5ad"))
    assert zarr.shape == h5ad.shape and (zarr.X != h5ad.X).sum() == 0


@pytest.mark.parametrize(
    "folder, shape",
    [
        ("1.2.0/filtered_gene_bc_matrices/hg19_chr21", (12, 343)),
        ("3.0.0/filtered_feature_bc_matrix", (1107, 507)),
    ],
)
def test_10x_folders_hold_what_their_h5_holds(folder, shape, shared_data):
    base = shared_data / "gene_expression/10x_formats"
    read = read_expression(base / folder)
    file = next((base / folder.split("/")[0]).glob("*.h5"))
    other = read_expression(file)
    assert read.shape == other.shape == shape
    assert read.var_names.tolist() == other.var_names.tolist()
    assert (read.X != other.X).sum() == 0


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings(name, shared_data):
    expected = RECORDINGS[name]
    told = describe(shared_data / name)
    assert told.shape == [expected["n_times"], expected["n_ch"]]
    assert told.names[:3] == expected["first_ch"] and told.rate_hz == expected["sfreq"]
    # The reference is in what mne returns: volts, whatever its key says.
    means = expected.get("mean_V") or expected.get("mean_uV_or_V")
    if means:
        assert np.allclose(np.array(told.raw_mean[:3]) * 1e-6, means, rtol=5e-5, atol=1e-11)


@pytest.mark.parametrize("channel", ["LAHC1", "LAHC2", "LAHC3"])
def test_neuralynx_channels(channel, shared_data):
    expected = OTHERS[f"ieeg/formats/neuralynx/{channel}.ncs"]
    told = describe(shared_data / f"ieeg/formats/neuralynx/{channel}.ncs")
    assert told.shape == [expected["samples"], 1] and told.rate_hz == expected["fs"]
    folder = describe(shared_data / "ieeg/formats/neuralynx")
    assert folder.names == ["LAHC1", "LAHC2", "LAHC3"]
    assert folder.raw_mean[folder.names.index(channel)] == pytest.approx(told.raw_mean[0])


def test_neuralynx_counts_are_scaled_and_turned(shared_data):
    import scipy.io

    folder = shared_data / "ieeg/formats/neuralynx"
    held = scipy.io.loadmat(folder / "LAHC1.mat", variable_names=["Samples", "Header"])
    text = " ".join(str(line[0][0]) for line in held["Header"] if line[0].size)
    volts = float(text.split("-ADBitVolts")[1].split()[0])
    first = -held["Samples"][0, 0] * volts * 1e6
    assert describe(folder / "LAHC1.ncs").first_row[0] == pytest.approx(first, rel=1e-6)


@pytest.mark.parametrize("name", [k for k in OTHERS if "ieeg_visual" in k])
def test_stand_ins_for_recordings_are_told(name, shared_data):
    if "sub-01" in name:
        with pytest.raises(Refusal, match="0 samples"):
            describe(shared_data / name)
    else:
        assert "s that its sidecar" in " ".join(describe(shared_data / name).warnings)


@pytest.mark.parametrize("name", NWB)
def test_nwb(name, shared_data):
    expected, path = NWB[name], shared_data / name
    if not expected["units"] and "ElectricalSeries" not in expected["acquisition"]:
        with pytest.raises(Refusal, match="neither sorted units nor an ElectricalSeries"):
            describe(path)
        return
    told = describe(path)
    assert told.version == expected["nwb_version"]
    if expected["units"]:
        assert told.modality == "placecells" and told.shape[1] == expected["units"]
    else:
        assert told.shape == expected["acquisition"]["ElectricalSeries"]


def test_spike_counts_of_real_nwb(shared_data):
    phy = describe(shared_data / "place_cells/nwb_pynapple_phy/A8604-211122.nwb")
    assert phy.shape == [21354, 3]
    track = describe(shared_data / "place_cells/nelpy_linear_track/linear_track_derived.nwb")
    assert track.shape == [28829, 31] and track.first_row[0] == pytest.approx(4405.897, abs=1e-3)


def test_the_unit_fault_of_the_grip_force_recording_is_named(shared_data):
    from popflow.inputs.recordings import check_voltages, read_recording

    path = next((shared_data / "ieeg/bids_gripforce").rglob("*_ieeg.vhdr"))
    told = describe(path)
    assert "1e6 too large" in " ".join(told.warnings) and told.sheet_row["units"] == "uV"
    row = {"path": str(path), "frame": "MNI", "units": "uV"}
    recording = read_recording(row)
    table = check_voltages(recording, recording.channels["name"].tolist()[:9])
    assert 10 < table["spread"].median() < 60


MATS = [k for k, v in OTHERS.items() if k.endswith(".mat") and isinstance(v.get("vars"), dict)]


@pytest.mark.parametrize("name", MATS)
def test_arrays_of_matlab(name, shared_data):
    expected, path = OTHERS[name]["vars"], shared_data / name
    if "averaged_v73" in name:
        with pytest.raises(Refusal, match="no numeric array"):
            describe(path)
        return
    told = describe(path)
    if "spikes.mat" in name:
        assert told.modality == "placecells" and told.shape == [28829, 31]
        return
    for key, value in expected.items():
        shape, mean = value
        if isinstance(mean, list):
            assert told.labels[key]["shape"] == shape
            assert told.labels[key]["mean"] == pytest.approx(mean[0], rel=5e-5, abs=1e-9)


def test_matclust_units_are_those_of_their_nwb(shared_data):
    from popflow.inputs.spikes import read_session

    folder = shared_data / "place_cells/nelpy_linear_track"
    mat, nwb = (read_session(folder / n) for n in ("spikes.mat", "linear_track_derived.nwb"))
    first, second = (sorted(map(tuple, s.spikes.values())) for s in (mat, nwb))
    assert [len(times) for times in first] == [len(times) for times in second]
    for a, b in zip(first, second, strict=True):
        assert np.allclose(a, b, atol=1e-9)


def test_trodes_tracking_is_that_of_its_nwb(shared_data):
    from popflow.inputs.spikes import read_session
    from popflow.inputs.tracking import read_tracking

    folder = shared_data / "place_cells/nelpy_linear_track"
    t, xy, notes = read_tracking(folder / "trajectory.videoPositionTracking", {})
    nwb = read_session(folder / "linear_track_derived.nwb")
    assert len(nwb.position_t) == 118_965 and len(t) == 118_964 and "1 frames" in notes[0]
    assert np.allclose(t, np.unique(nwb.position_t))
    known = np.isfinite(xy[:1000, 0])
    assert np.allclose(xy[:1000][known], nwb.position[:1000][known])


@pytest.mark.parametrize(
    "name, frames",
    [
        ("miniscope_1d/behavior_position.csv", 10_000),
        ("miniscope_1d/zone_tracking.csv", 9_985),
        ("nelpy_ripple_position/position.npz", 35_794),
        ("trajectory_sargolini/sargolini.npz", 29_800),
    ],
)
def test_tracks(name, frames, shared_data):
    told = describe(shared_data / "place_cells" / name)
    assert told.format == "tracking" and told.shape == [frames, 2]


@pytest.mark.parametrize("name", ["C", "C_lp"])
def test_calcium_traces_of_minian(name, shared_data):
    import zarr

    from popflow.inputs.spikes import read_session

    folder = shared_data / "place_cells/miniscope_1d"
    stored = zarr.open_group(str(folder / f"neural_data/{name}.zarr"), mode="r")[name][:]
    told = describe(folder / f"neural_data/{name}.zarr")
    assert told.shape == [10_000, 10] and close(told.raw_mean, stored.mean(1, dtype=float))
    row = {"times": "../neural_timestamp.csv", "position": "../behavior_position.csv"}
    row |= {"position_times": "../behavior_timestamp.csv"}
    session = read_session(folder / f"neural_data/{name}.zarr", row)
    # Eleven time stamps of this camera are two minutes off.
    assert session.traces.out_of_order == 11 and len(session.position_t) == 10_000
    step = np.diff(session.traces.t)
    assert np.median(step) == pytest.approx(0.0494, abs=1e-3) and step.max() < 1


@pytest.mark.parametrize("name", ["neural_timestamp.csv", "behavior_timestamp.csv"])
def test_tables_of_time_stamps_are_read_as_they_stand(name, shared_data):
    expected = OTHERS[f"place_cells/miniscope_1d/{name}"]["shape"]
    assert describe(shared_data / "place_cells/miniscope_1d" / name).shape[0] == expected[0]


def test_a_file_of_another_kind_is_refused(shared_data):
    with pytest.raises(Refusal, match="no 10x matrix"):
        describe(shared_data / "ieeg/speech_semisynthetic/naplib_demo_reduced.h5")
