"""Tracking of an animal: DeepLabCut and plain tables, npz, Trodes, .whl."""

import re
from pathlib import Path

import numpy as np

from popflow.inputs import deeplabcut
from popflow.inputs.calcium import LARGEST_DISORDER, TIMES, frame_times, rising
from popflow.inputs.delimited import read_delimited, separator_of
from popflow.inputs.description import whole_file
from popflow.runtime.refusal import Refusal

ACCEPTED = (
    "a table with the columns t, x, y; a DeepLabCut .csv or .h5; .npz with t and position; "
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
    readers |= {".videopositiontracking": _trodes, ".h5": _deeplabcut}
    if not path.is_file():
        raise Refusal(f"file {path}", "no such file", ACCEPTED, "mend 'position' in the sheet")
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise Refusal(f"file {path}", f"no reader for {path.suffix}", ACCEPTED, "convert it")
    with whole_file(path, ACCEPTED):
        t, xy, notes = reader(path, row)
    xy = xy[:, None] if xy.ndim == 1 else xy
    if not len(t) or xy.ndim != 2 or t.shape != (len(xy),) or xy.shape[1] > 2:
        found = f"{t.size} times, and places of shape {xy.shape}"
        raise Refusal(f"file {path}", found, "a time for every place (x or x, y)", "save it again")
    if not np.isfinite(t).all():
        found = f"{int((~np.isfinite(t)).sum())} times of the track are NaN or infinite"
        raise Refusal(f"file {path}", found, "finite seconds", "drop these frames")
    return _once(t, xy, notes, path)


def is_lost(xy: np.ndarray) -> np.ndarray:
    """Tell which frames a tracker lost: NaN, or (0, 0) or (-1, -1) of two coordinates.

    On a line 0 is a place, and other negative places are those of a centred arena.
    """
    lost = ~np.isfinite(xy).all(1)
    if xy.shape[1] == 2:
        lost |= (xy == 0).all(1) | (xy == -1).all(1)
    return lost


def _once(t: np.ndarray, xy: np.ndarray, notes: list[str], path: Path) -> Track:
    """Average the good frames of one time stamp; drop those whose stamp is out of order."""
    same = np.concatenate([[False], np.diff(t) == 0])
    if same.any():
        group, good = np.cumsum(~same) - 1, ~is_lost(xy)
        counts = np.bincount(group[good], minlength=group[-1] + 1)
        sums = [np.bincount(group[good], column[good], group[-1] + 1) for column in xy.T]
        t = t[~same]
        with np.errstate(invalid="ignore"):
            xy = np.stack(sums, axis=1) / counts[:, None]
        notes.append(f"{int(same.sum())} frames with a time stamp of another one are averaged")
    kept = rising(t)
    if (~kept).mean() > LARGEST_DISORDER:
        found = f"{int((~kept).sum())} of {len(t)} frames have times that do not rise"
        raise Refusal(f"file {path}", found, "times that rise", "sort the track by time")
    if not kept.all():
        notes.append(f"{int((~kept).sum())} frames with a time stamp out of order are dropped")
    return t[kept], xy[kept], notes


def _frames(
    count: int, path: Path, row: dict[str, str], numbers: np.ndarray | None = None
) -> np.ndarray:
    """Give the times of frames, by the table or at the rate of the sheet."""
    return frame_times(count, path, row, numbers, "position_")


def _table(path: Path, row: dict[str, str]) -> Track:
    separator = separator_of(path)
    with open(path, encoding="utf-8-sig") as file:
        head = [file.readline().rstrip("\r\n").split(separator) for _ in range(3)]
    if [cell.strip().lower() for cell in head[2][1:]][:2] == ["x", "y"] or head[0][0] == "scorer":
        return _deeplabcut(path, row)
    table = read_delimited(path)
    table.columns = [name.lower() for name in table.columns]
    if not {"x"} <= set(table.columns):
        found = f"the columns {', '.join(table.columns[:8])}"
        raise Refusal(f"file {path}", found, "the columns t, x, y", "rename them")
    columns = [column for column in ("x", "y") if column in table]
    timed = next((column for column in TIMES if column in table), None)
    numbers = table["frame"].to_numpy(int) if "frame" in table else None
    t = table[timed].to_numpy(float) if timed else _frames(len(table), path, row, numbers)
    return t, table[columns].to_numpy(float), []


def _deeplabcut(path: Path, row: dict[str, str]) -> Track:
    frames, xy, notes = deeplabcut.read_places(path)
    return _frames(len(frames), path, row, frames), xy, notes


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
