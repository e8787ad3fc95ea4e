"""Tracks of DeepLabCut in .h5: the same as its .csv, and nothing is unpickled."""

import os
import pickle

import h5py
import numpy as np
import pandas as pd
import pytest

from popflow.inputs.deeplabcut import read_plain_pickle
from popflow.inputs.registry import describe, format_of
from popflow.inputs.tracking import read_tracking
from popflow.runtime.refusal import Refusal
from tests.contracts.test_readers import COLUMNS, cellranger, pandas_table

RATE = {"position_rate_hz": "20"}
VALUES = np.array(
    [
        [10, 20, 0.99, 30, 40, 0.95],
        [10, 20, 0.10, 30, 40, 0.95],
        [10, 20, 0.10, 30, 40, 0.20],
    ]
)


def fixed(path, values, names=COLUMNS, transposed=True):
    """Write what pandas writes for format="fixed": levels, the places in them, and blocks."""
    with h5py.File(path, "w") as file:
        group = file.create_group("tracks")
        group.attrs["pandas_type"] = np.bytes_("frame")
        block = group.create_dataset("block0_values", data=values if transposed else values.T)
        block.attrs["transposed"] = np.uint8(transposed)
        group["axis1"] = np.arange(len(values))
        for number, texts in enumerate(zip(*names, strict=True)):
            levels = sorted(set(texts))
            group[f"block0_items_level{number}"] = np.array(levels, "S")
            places = np.array([levels.index(text) for text in texts], np.int8)
            group[f"block0_items_label{number}"] = places


def as_csv(path, values, names=COLUMNS):
    columns = pd.MultiIndex.from_tuples(names, names=["scorer", "bodyparts", "coords"])
    pd.DataFrame(values, columns=columns).to_csv(path)


@pytest.mark.parametrize("write", [pandas_table, fixed])
def test_it_gives_what_the_csv_gives(tmp_path, write):
    write(tmp_path / "a.h5", VALUES)
    as_csv(tmp_path / "b.csv", VALUES)
    t, xy, notes = read_tracking(tmp_path / "a.h5", RATE)
    assert t.tolist() == [0, 0.05, 0.1]
    assert xy[:2].tolist() == [[20, 30], [30, 40]] and np.isnan(xy[2]).all()
    same_t, same_xy, same_notes = read_tracking(tmp_path / "b.csv", RATE)
    assert t.tolist() == same_t.tolist() and notes == same_notes
    np.testing.assert_array_equal(xy, same_xy)


def test_blocks_that_are_not_transposed(tmp_path):
    fixed(tmp_path / "a.h5", VALUES, transposed=False)
    assert read_tracking(tmp_path / "a.h5", RATE)[1][0].tolist() == [20, 30]


@pytest.mark.parametrize("write", [pandas_table, fixed])
def test_rows_are_numbered_by_frame(tmp_path, write):
    path = tmp_path / "a.h5"
    write(path, VALUES)
    with h5py.File(path, "a") as file:
        if write is fixed:
            file["tracks/axis1"][...] = [4, 5, 8]
        else:
            records = file["df_with_missing/table"][()]
            records["index"] = [4, 5, 8]
            file["df_with_missing/table"][...] = records
    assert read_tracking(path, RATE)[0].tolist() == [0.2, 0.25, 0.4]


def test_rows_with_other_names_are_refused(tmp_path):
    fixed(tmp_path / "a.h5", VALUES)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["tracks/axis1"]
        file["tracks/axis1"] = np.array(["img0", "img1", "img2"], "S")
    with pytest.raises(Refusal, match="rows called by"):
        read_tracking(tmp_path / "a.h5", RATE)


def test_without_likelihood_every_place_counts(tmp_path):
    names = [("net", "nöse", "x"), ("net", "nöse", "y")]
    pandas_table(tmp_path / "a.h5", VALUES[:, :2], names)
    assert read_tracking(tmp_path / "a.h5", RATE)[1].tolist() == [[10, 20]] * 3


def test_inspect_tells_a_track_from_a_matrix_of_cells(tmp_path):
    pandas_table(tmp_path / "a.h5", VALUES)
    assert format_of(tmp_path / "a.h5").name == "DeepLabCut tracking"
    described = describe(tmp_path / "a.h5")
    assert (described.format, described.shape) == ("tracking", [3, 2])
    assert "frames without times" in described.warnings[0]
    assert format_of(cellranger(tmp_path)).name == "10x HDF5"


class Danger:
    """An object that would run a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_is_refused_and_not_run(tmp_path, protocol):
    danger = tmp_path / "danger"
    data = pickle.dumps([("net", "ear", Danger(danger))], protocol)
    with pytest.raises(ValueError, match="the instruction"):
        read_plain_pickle(data)
    held = {"values_block_0_kind": np.void(data)} if protocol else {}
    held = held or {"values_block_0_kind": np.bytes_(data)}
    pandas_table(tmp_path / "a.h5", VALUES, **held)
    with pytest.raises(Refusal, match="names of columns"):
        read_tracking(tmp_path / "a.h5", RATE)
    assert not danger.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_plain_names_are_read_by_any_protocol(protocol):
    names = [("net", "nöse", "x"), ("net", "nöse", "y"), (), ("a",), ("a", "b"), [1, -70_000, None]]
    names += [(1, 2, 3, 4), [2**40], "x" * 300]
    assert read_plain_pickle(pickle.dumps(names, protocol)) == names


@pytest.mark.parametrize(
    "data", [b"", b".", b"(.", b"N", b"NN.", b"g5\n.", b"a.", b"Na.", b"t.", b"(lp0\nI", b"\xff"]
)
def test_a_broken_pickle_is_refused(data):
    with pytest.raises(ValueError, match="pickle"):
        read_plain_pickle(data)


def test_names_that_nest_without_end_are_refused_at_once(tmp_path):
    name = ("x",)
    for _ in range(60):
        name = (name, name)
    kind = np.bytes_(pickle.dumps([name], 0))
    pandas_table(tmp_path / "a.h5", VALUES[:, :1], values_block_0_kind=kind)
    with pytest.raises(Refusal, match="without three names"):
        read_tracking(tmp_path / "a.h5", RATE)


def test_names_that_cannot_be_read_point_to_the_csv_beside(tmp_path):
    kind = np.bytes_(pickle.dumps(np.array(["x"]), 0))
    pandas_table(tmp_path / "a.h5", VALUES, values_block_0_kind=kind)
    with pytest.raises(Refusal) as refusal:
        read_tracking(tmp_path / "a.h5", RATE)
    assert "save the track as .csv" in refusal.value.fix
    as_csv(tmp_path / "a.csv", VALUES)
    with pytest.raises(Refusal) as refusal:
        read_tracking(tmp_path / "a.h5", RATE)
    assert refusal.value.fix == "name a.csv instead, which is beside it"


def test_pickled_levels_are_refused(tmp_path):
    fixed(tmp_path / "a.h5", VALUES)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["tracks/block0_items_level1"]
        kind = h5py.vlen_dtype(np.uint8)
        level = file.create_dataset("tracks/block0_items_level1", (1,), kind)
        level[0] = np.frombuffer(pickle.dumps(["ear", "tail"]), np.uint8)
    with pytest.raises(Refusal, match="names stored as object"):
        read_tracking(tmp_path / "a.h5", RATE)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([(*name[:2], "i", name[2]) for name in COLUMNS], "several individuals"),
        ([name[1:] for name in COLUMNS], "the column 'ear, x'"),
        ([(*name[:2], "z") for name in COLUMNS], "the column 'net, ear, z'"),
        (COLUMNS[:3] * 2, "one of them twice"),
        ([("net", "ear", "x"), *COLUMNS[2:], ("net", "nose", "y")], "no x or no y of 'ear'"),
        (COLUMNS[:5], "5 names for values of shape"),
        (["x"] * 6, "without three names"),
    ],
)
def test_columns_that_are_no_track_are_refused(tmp_path, names, found):
    pandas_table(tmp_path / "a.h5", VALUES, names)
    with pytest.raises(Refusal, match=found):
        read_tracking(tmp_path / "a.h5", RATE)


def test_a_csv_of_several_animals_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("scorer,n,n\nindividuals,a,a\nbodyparts,ear,ear\ncoords,x,y\n0,1,2\n")
    with pytest.raises(Refusal, match="several individuals"):
        read_tracking(path, RATE)


@pytest.mark.parametrize(("rows", "packed"), [(10**5, None), (10**9, "gzip")])
def test_a_size_that_is_only_declared_is_not_believed(tmp_path, rows, packed):
    fixed(tmp_path / "a.h5", VALUES)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["tracks/block0_values"]
        file.create_dataset("tracks/block0_values", (rows, 6), "<f8", compression=packed)
    with pytest.raises(Refusal, match="in a file of"):
        read_tracking(tmp_path / "a.h5", RATE)


def test_two_tables_are_refused(tmp_path):
    pandas_table(tmp_path / "a.h5", VALUES)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.copy("df_with_missing", "other")
    with pytest.raises(Refusal, match="2 tables of pandas"):
        read_tracking(tmp_path / "a.h5", RATE)
