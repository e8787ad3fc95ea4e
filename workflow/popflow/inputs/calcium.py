"""Calcium traces: continuous signals of cells, from Minian's zarr or a table of text."""

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from popflow.inputs.delimited import read_delimited
from popflow.inputs.description import rate_of
from popflow.runtime.refusal import Refusal

TIMES = ("t", "time", "time_s", "timestamp", "timestamp_first", "unix_time")
LARGEST_DISORDER = 0.01
#: Calcium is imaged several times a second; slower clocks are in another unit.
LONGEST_FRAME_S = 5.0
STATUS = ("accepted", "undecided", "rejected")
ACCEPTED = (
    "a zarr folder of Minian (an array of unit_id × frame), or a table with a column of times (t, "
    "time, timestamp) and one column per cell"
)


@dataclass
class Traces:
    """Signals of cells on one clock.

    Attributes
    ----------
    t : (F,) float array
        Seconds, rising.
    values : (F, N) float array
        In the unit of the file; NaN where a cell was not measured.
    names : list of str
    notes : list of str
    out_of_order : int
        Frames that were dropped because their time stamps do not rise.
    """

    t: np.ndarray
    values: np.ndarray
    names: list[str]
    notes: list[str] = field(default_factory=list)
    out_of_order: int = 0


def is_minian(path: Path) -> bool:
    """Tell whether a zarr folder holds an array of cells × frames, as Minian writes it."""
    return path.is_dir() and any(path.glob("*/.zarray")) and _array_name(path) is not None


def _array_name(path: Path) -> str | None:
    import json

    for place in sorted(path.glob("*/.zattrs")):
        try:
            dims = json.loads(place.read_text()).get("_ARRAY_DIMENSIONS", [])
        except (ValueError, AttributeError):
            continue
        if sorted(dims) == ["frame", "unit_id"]:
            return place.parent.name
    return None


def is_trace_table(header: list[str]) -> bool:
    """Tell by its header whether a table holds traces: times first, then more than one cell."""
    names = [cell.strip().lower() for cell in header]
    numbered = [re.fullmatch(r"c\d+", name) is not None for name in names[1:]]
    inscopix = len(names) > 1 and names[0] == "" and all(numbered)
    tracked = [name for name in names if name == "unit" or re.search(r"(^|_)[xy](_|$)", name)]
    return inscopix or (len(names) > 1 and names[0] in TIMES and not tracked)


def read_traces(path: Path, row: dict[str, str]) -> Traces:
    """Read traces.

    Parameters
    ----------
    path : path
        A zarr folder of Minian; or ``.csv``, ``.tsv`` (Inscopix's second row, which tells accepted
        from rejected cells, is obeyed).
    row : dict
        Of the sheet: `times`, a table with the time of every frame, or `rate_hz`, for traces that
        have no times of their own.

    Raises
    ------
    Refusal
        For another kind of file, and for frames whose times nobody tells.
    """
    traces = _minian(path, row) if path.is_dir() else _table(path, row)
    step = float(np.median(np.diff(traces.t))) if len(traces.t) > 1 else 0.0
    if step > LONGEST_FRAME_S:
        found = f"frames every {step:.3g} s: the times look like milliseconds"
        raise Refusal(f"file {path}", found, "times in seconds", "divide them by 1000")
    kept = rising(traces.t)
    dropped = len(traces.t) - int(kept.sum())
    if dropped > LARGEST_DISORDER * len(traces.t):
        found = f"{dropped} of {len(traces.t)} frames have times that do not rise"
        fix = "name the table of this camera's times, in seconds"
        raise Refusal(f"file {path}", found, "times that rise", fix)
    if dropped:
        traces.notes.append(f"{dropped} frames with a time stamp out of order are dropped")
    return Traces(traces.t[kept], traces.values[kept], traces.names, traces.notes, dropped)


def rising(t: np.ndarray) -> np.ndarray:
    """Choose the most frames whose times rise strictly: the longest increasing subsequence.

    Cameras write single time stamps minutes off; sorting would move such a frame to a place where
    the animal was not.

    Parameters
    ----------
    t : (F,) array

    Returns
    -------
    (F,) bool array
    """
    ends: list[float] = []
    places: list[int] = []
    before = np.full(len(t), -1)
    for frame, time in enumerate(np.asarray(t, float)):
        if not np.isfinite(time):
            continue
        length = bisect_left(ends, time)
        before[frame] = places[length - 1] if length else -1
        ends[length : length + 1] = [time]
        places[length : length + 1] = [frame]
    kept, frame = np.zeros(len(t), bool), places[-1] if places else -1
    while frame >= 0:
        kept[frame], frame = True, before[frame]
    return kept


def _minian(path: Path, row: dict[str, str]) -> Traces:
    import json

    import zarr

    name = _array_name(path)
    if name is None:
        raise Refusal(f"folder {path}", "no array of unit_id × frame", ACCEPTED, "name C.zarr")
    group = zarr.open_group(str(path), mode="r")
    values = np.asarray(group[name][:], float)
    attributes = json.loads((path / name / ".zattrs").read_text())
    if attributes["_ARRAY_DIMENSIONS"][0] == "unit_id":
        values = values.T
    ids = group["unit_id"][:] if "unit_id" in group else np.arange(values.shape[1])
    # A video that was trimmed or thinned out keeps the numbers of its frames.
    numbers = np.asarray(group["frame"][:]) if "frame" in group else None
    return Traces(frame_times(len(values), path, row, numbers), values, [str(one) for one in ids])


def _table(path: Path, row: dict[str, str]) -> Traces:
    table = read_delimited(path, dtype=str, skipinitialspace=True)
    empty = [c for c in table.columns if c.startswith("Unnamed") and table[c].isna().all()]
    table = table.drop(columns=empty)
    names, notes = [str(column).strip() for column in table.columns], []
    kept = list(range(1, len(names)))
    second = [str(cell).strip().lower() for cell in table.iloc[0, 1:]] if len(table) else []
    if second and all(cell in STATUS for cell in second):
        kept = [number for number, cell in enumerate(second, 1) if cell == "accepted"]
        notes.append(f"{len(names) - 1 - len(kept)} cells that are not accepted are left out")
        table = table.iloc[1:]
    if not kept or not len(table):
        raise Refusal(f"file {path}", "no cell or no frame", ACCEPTED, "export the traces again")
    columns = [_numbers(table.iloc[:, number], names[number], path) for number in kept]
    t = _numbers(table.iloc[:, 0], names[0] or "of times", path)
    return Traces(t, np.column_stack(columns), [names[number] for number in kept], notes)


def _numbers(column, name: str, path: Path) -> np.ndarray:
    """Read a column of text as numbers; empty cells and NaN are missing."""
    import pandas as pd

    found = pd.to_numeric(column, errors="coerce").to_numpy(float)
    text = column.fillna("").str.strip().str.lower()
    wrong = np.flatnonzero(~np.isfinite(found) & ~text.isin(["", "nan", "na"]).to_numpy())
    if len(wrong):
        where = f"file {path}, column {name}, row {int(column.index[wrong[0]]) + 2}"
        raise Refusal(where, f"found {column.iloc[wrong[0]]!r}", "a number", "mend this cell")
    return found


def frame_times(
    count: int,
    path: Path,
    row: dict[str, str],
    numbers: np.ndarray | None = None,
    kind: str = "",
) -> np.ndarray:
    """Give the times of frames: of the table that the sheet names, else at the sheet's rate.

    Parameters
    ----------
    count : int
    path : path
        Of the frames.
    row : dict
        Of the sheet.
    numbers : (count,) int array, optional
        Of the frames, from 0, where the file tells them.
    kind : {"", "position_"}
        Before ``times`` and ``rate_hz`` in the names of the sheet's columns.
    """
    frames, rate = np.arange(count) if numbers is None else np.asarray(numbers), f"{kind}rate_hz"
    if row.get(f"{kind}times"):
        listed = _listed_times(Path(row[f"{kind}times"]), path)
        most = int(frames.max(initial=-1)) + 1
        unequal = numbers is None and len(listed) != count
        if unequal or not count or frames.min() < 0 or most > len(listed):
            found = f"{len(listed)} times for {most} frames"
            fix = "name the table of this camera"
            raise Refusal(f"file {path}", found, "one time per frame", fix)
        return listed[frames]
    found = rate_of(row.get(rate, ""))
    if found is None:
        text = f"frames without times, at a rate of {row.get(rate) or 'not told'!r}"
        fix = f"write the camera's rate under '{rate}' in the sheet, or name a table of times"
        raise Refusal(f"file {path}", text, "frames per second", f"{fix} under '{kind}times'")
    return frames / found


def _listed_times(table: Path, path: Path) -> np.ndarray:
    if not table.is_file():
        raise Refusal(f"file {table}", "no such file", "a table of times", "mend the sheet")
    frame = read_delimited(table)
    frame.columns = [str(name).strip().lower() for name in frame.columns]
    name = next((column for column in TIMES if column in frame), None)
    if name is None:
        found = f"the columns {', '.join(frame.columns[:8])}"
        raise Refusal(f"file {table}", found, f"one of {', '.join(TIMES)}", "rename the column")
    return _numbers(frame[name].astype(str), name, table)
