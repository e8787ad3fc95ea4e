"""Tracking of an animal: DeepLabCut and plain tables, npz, Trodes, .whl."""

import re
from pathlib import Path

import numpy as np

from popflow.inputs.calcium import LARGEST_DISORDER, frame_times, rising
from popflow.inputs.description import whole_file
from popflow.runtime.refusal import Refusal

LEAST_LIKELIHOOD = 0.9
ACCEPTED = (
    "a table with the columns t, x, y; a DeepLabCut .csv; .npz with t and position; "
    ".videoPositionTracking; .whl"
)

Track = tuple[np.ndarray, np.ndarray, list[str]]


def read_tracking(path: str | Path, row: dict[str, str]) -> Track:
    """Read a track.

    Parameters
    ----------
    path : path
    row : dict
        Of the sheet; `position_times` (a table) or `position_rate_hz` for files that hold frames
        without times.

    Returns
    -------
    t : (P,) array
        Seconds, rising.
    xy : (P, 1 or 2) array
        In the file's unit; NaN where the animal was lost.
    notes : list of str

    Raises
    ------
    Refusal
        For a file of another kind, or one without times when no rate is told.
    """
    path = Path(path)
    readers = {".csv": _table, ".tsv": _table, ".npz": _npz, ".whl": _whl}
    readers[".videopositiontracking"] = _trodes
    if not path.is_file():
        raise Refusal(f"file {path}", "no such file", ACCEPTED, "mend 'position' in the sheet")
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise Refusal(f"file {path}", f"no reader for {path.suffix}", ACCEPTED, "convert it")
    with whole_file(path, ACCEPTED):
        t, xy, notes = reader(path, row)
    return _once(t, xy, notes, path)


def _once(t: np.ndarray, xy: np.ndarray, notes: list[str], path: Path) -> Track:
    """Average frames of the same time stamp, and drop those whose stamp is out of order."""
    xy = xy[:, None] if xy.ndim == 1 else xy
    if not np.isfinite(t).all() or t.shape != (len(xy),):
        return t, xy, notes  # refused by the session's checks, which name the file
    same = np.concatenate([[False], np.diff(t) == 0])
    if same.any():
        group = np.cumsum(~same) - 1
        counts = np.bincount(group)
        sums = np.stack([np.bincount(group, weights=column) for column in xy.T], axis=1)
        t, xy = t[~same], sums / counts[:, None]
        notes.append(f"{int(same.sum())} frames with a time stamp of another one are averaged")
    kept = rising(t)
    if (~kept).mean() > LARGEST_DISORDER:
        found = f"{int((~kept).sum())} of {len(t)} frames have times that do not rise"
        raise Refusal(f"file {path}", found, "times that rise", "sort the track by time")
    if not kept.all():
        notes.append(f"{int((~kept).sum())} frames with a time stamp out of order are dropped")
    return t[kept], xy[kept], notes


def _frames(count: int, path: Path, row: dict[str, str]) -> np.ndarray:
    """Give the times of frames, by the table or at the rate of the sheet."""
    return frame_times(count, path, row, "position_", "position_rate_hz")


def _table(path: Path, row: dict[str, str]) -> Track:
    import pandas as pd

    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    with open(path, encoding="utf-8-sig") as file:
        head = [file.readline().rstrip("\r\n").split(separator) for _ in range(3)]
    if [cell.strip().lower() for cell in head[2][1:]][:2] == ["x", "y"] or head[0][0] == "scorer":
        return _deeplabcut(path, row)
    table = pd.read_csv(path, sep=separator)
    table.columns = [str(column).strip().lower() for column in table.columns]
    if not {"x"} <= set(table.columns):
        found = f"the columns {', '.join(table.columns[:8])}"
        raise Refusal(f"file {path}", found, "the columns t, x, y", "rename them")
    columns = [column for column in ("x", "y") if column in table]
    timed = next((column for column in ("t", "time", "time_s") if column in table), None)
    t = table[timed].to_numpy(float) if timed else _frames(len(table), path, row)
    return t, table[columns].to_numpy(float), []


def _deeplabcut(path: Path, row: dict[str, str]) -> Track:
    """Average the body parts that are likely in each frame."""
    import pandas as pd

    table = pd.read_csv(path, header=[0, 1, 2], index_col=0)
    table.columns = table.columns.droplevel(0)
    parts = [part for part, kind in table.columns if kind == "x"]
    xy = np.stack([table[part][["x", "y"]].to_numpy(float) for part in parts])
    for number, part in enumerate(parts):
        if "likelihood" in table[part]:
            xy[number][table[part]["likelihood"].to_numpy(float) < LEAST_LIKELIHOOD] = np.nan
    seen = np.isfinite(xy)
    sums, counts = np.where(seen, xy, 0).sum(0), seen.sum(0)
    mean = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    lost = int((counts[:, 0] == 0).sum())
    notes = [f"DeepLabCut: {len(parts)} body parts averaged, {lost} frames lost"]
    return _frames(len(mean), path, row), mean, notes


def _npz(path: Path, row: dict[str, str]) -> Track:
    with np.load(path, allow_pickle=False) as stored:
        held = {name: stored[name] for name in stored.files}
    t = next((held[name] for name in ("t", "timestamps", "position_t") if name in held), None)
    xy = next((held[name] for name in ("position", "pos", "data", "d") if name in held), None)
    if xy is None:
        found = f"the arrays {', '.join(held)}"
        raise Refusal(f"file {path}", found, "t and position", "save them under these names")
    xy = xy.astype(float)
    if xy.ndim == 2 and xy.shape[0] <= 3 < xy.shape[1]:
        xy = xy.T
    xy = xy[:, :2] if xy.ndim == 2 else xy
    return (_frames(len(xy), path, row) if t is None else t.astype(float)), xy, []


def _trodes(path: Path, row: dict[str, str]) -> Track:
    """Read .videoPositionTracking: a header of text, then records of whole numbers."""
    data = path.read_bytes()
    end = data.index(b"<End settings>") + len(b"<End settings>\n")
    header = data[:end].decode("latin-1")
    clock = re.search(r"clockrate:\s*(\d+)", header)
    fields = re.findall(r"<(\w+) (\w+)>", header.split("Fields:")[1].split("\n")[0])
    kind = np.dtype([(name, np.dtype(base).newbyteorder("<")) for name, base in fields])
    whole = (len(data) - end) // kind.itemsize
    records = np.frombuffer(data, kind, whole, end)
    rate = float(clock.group(1)) if clock else 30_000.0
    xy = np.column_stack([records["xloc"], records["yloc"]]).astype(float)
    xy[(xy == 0).all(1)] = np.nan
    return records["time"].astype(float) / rate, xy, []


def _whl(path: Path, row: dict[str, str]) -> Track:
    """Read .whl of Neurosuite: the first two columns, -1 where the animal was lost."""
    values = np.loadtxt(path, ndmin=2)[:, :2].astype(float)
    values[(values < 0).any(1)] = np.nan
    return _frames(len(values), path, row), values, []
