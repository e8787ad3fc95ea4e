"""Tell what a text table or a file of arrays holds, by its header and its names."""

import csv
import gzip
from pathlib import Path
from typing import Any

from popflow.inputs.description import Description, whole_file
from popflow.inputs.matlab import load_mat
from popflow.inputs.registry import suffix_of
from popflow.runtime.refusal import Refusal


def describe_table(path: str | Path) -> Description:
    """Describe tracking, spikes or an expression matrix in a text table.

    Events of cytometry and matrices look alike: the samples sheet says which it is, and a table
    is described as expression unless its header tells otherwise.
    """
    from popflow.inputs import calcium, expression, spikes

    path = Path(path)
    head = _head(path)
    names = {cell.lower() for cell in head[0]} if head else set()
    if {"unit", "time"} <= names or {"unit", "sample"} <= names or {"unit", "time_s"} <= names:
        return spikes.describe(path, {"rate_hz": "1"} if "sample" in names else None)
    if head and calcium.is_trace_table(head[0]):
        return spikes.describe(path)
    third = [cell.lower() for cell in head[2][1:3]] if len(head) > 2 else []
    if third == ["x", "y"] or {"x", "t"} <= names or {"x", "time"} <= names:
        return describe_track(path)
    return expression.describe(path)


def _head(path: Path) -> list[list[str]]:
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    with whole_file(path), opener(path, "rt", encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter="," if suffix_of(path) == ".csv" else "\t")
        return [[cell.strip() for cell in row] for _, row in zip(range(3), rows, strict=False)]


def describe_track(path: Path) -> Description:
    """Describe a track; frames without times are told so."""
    import numpy as np

    from popflow.inputs.tracking import read_tracking

    warnings, rate = [], None
    try:
        t, xy, notes = read_tracking(path, {})
        rate = float(1 / np.median(np.diff(t)))
    except Refusal as refusal:
        if "position_rate_hz" not in refusal.fix:
            raise
        t, xy, notes = read_tracking(path, {"position_rate_hz": "1"})
        warnings.append(f"{refusal.found}: {refusal.fix}")
    known = np.isfinite(xy).all(1)
    return Description(
        modality="placecells",
        format="tracking",
        version=None,
        shape=list(xy.shape),
        names=["x", "y"][: xy.shape[1]],
        raw_mean=np.nanmean(xy, 0).tolist() if known.any() else [],
        first_row=xy[0].tolist(),
        sheet_row={"path": "the session's spikes", "position": path.name},
        rate_hz=rate,
        span_s=float(t[-1] - t[0]) if rate else None,
        warnings=[*warnings, *notes, f"{int((~known).sum())} of {len(xy)} frames lost"],
    )


def describe_arrays(path: str | Path) -> Description:
    """Describe an .npz or .mat file: spikes, tracking, or its arrays with shape and mean."""
    from popflow.inputs import spikes

    path = Path(path)
    with whole_file(path):
        arrays = _arrays(path)
    names = set(arrays)
    if {"spike_times", "spike_units"} <= names or {"t", "index"} <= names:
        return spikes.describe(path)
    if path.suffix.lower() == ".mat" and "spikes" in names and arrays["spikes"] is None:
        return spikes.describe(path)
    if {"t", "timestamps"} & names and {"position", "pos", "data", "d"} & names:
        if path.suffix.lower() == ".npz":
            return describe_track(path)
    return _plain(path, arrays)


def _arrays(path: Path) -> dict[str, Any]:
    """Read numeric arrays by name; None for what holds anything else."""
    import h5py
    import numpy as np

    if path.suffix.lower() == ".npz":
        with np.load(path, allow_pickle=False) as stored:
            held = {name: stored[name] for name in stored.files}
    elif h5py.is_hdf5(path):
        with h5py.File(path) as file:
            held = {k: v[()].T if isinstance(v, h5py.Dataset) else None for k, v in file.items()}
    else:
        held = load_mat(path)
    return {
        name: np.squeeze(v) if v is not None and np.issubdtype(v.dtype, np.number) else None
        for name, v in held.items()
    }


def _plain(path: Path, arrays: dict[str, Any]) -> Description:
    """List arrays; the largest table may be voltages, which the sessions sheet would name."""
    import numpy as np

    numeric = {name: v for name, v in arrays.items() if v is not None and v.size}
    if not numeric:
        found = f"no numeric array (holds {', '.join(arrays) or 'nothing'})"
        fix = "save the numbers as arrays of their own"
        raise Refusal(f"file {path}", found, "an array of numbers", fix)
    largest = max(numeric, key=lambda name: numeric[name].size)
    sheet_row = {"session": path.stem, "path": str(path), "field": largest}
    listed = {
        name: {"shape": list(v.shape), "mean": float(v.mean())} for name, v in numeric.items()
    }
    return Description(
        modality="intracranial",
        format=f"arrays ({path.suffix.lower()})",
        version=None,
        shape=sorted(np.atleast_2d(numeric[largest]).shape, reverse=True)[:2],
        names=list(numeric),
        raw_mean=[float(v.mean()) for v in numeric.values()],
        first_row=[float(v.ravel()[0]) for v in numeric.values()],
        sheet_row=sheet_row | {"rate": "", "units": ""},
        labels=listed,
        warnings=["arrays tell neither rate nor unit: the sessions sheet must (rate, units)"],
    )
