"""Tracks of DeepLabCut, as .csv and as the .h5 that pandas writes by PyTables.

PyTables stores the names of columns pickled. They are never unpickled: a small interpreter builds
texts, tuples and lists of the stream and refuses every other instruction of it.
"""

import pickletools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import h5py
    import pandas as pd

#: Of each block of columns the names and (frames, columns) values.
Blocks = list[tuple[list[Any], np.ndarray]]

LEAST_LIKELIHOOD = 0.9
LEVELS = ("scorer", "bodyparts", "coords")
ACCEPTED = "columns of (scorer, body part, x, y or likelihood), as DeepLabCut writes for one animal"
#: No compression of numbers gives more; what declares more is broken.
LARGEST_RATIO = 1100
TEXTS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
TEXTS |= {"STRING", "BINSTRING", "SHORT_BINSTRING"}
NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"}
PUTS, GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
LENGTHS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


def is_pandas_file(path: Path) -> bool:
    """Tell whether an .h5 file holds a table that pandas wrote."""
    import h5py

    try:
        with h5py.File(path) as file:
            return bool(_groups(file))
    except Exception:  # of a broken file h5py raises anything; its reader will refuse it
        return False


def read_places(path: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Average the body parts that are likely in each frame.

    Parameters
    ----------
    path : path
        A .csv or .h5 of DeepLabCut.

    Returns
    -------
    frames : (F,) int array
        Their numbers: the first column of the .csv, the index of the .h5.
    xy : (F, 2) array
        Pixels; NaN where no part is likely.
    notes : list of str

    Raises
    ------
    Refusal
        For a table of several animals, and for names of columns that cannot be read.
    """
    table = _read_h5(path) if path.suffix.lower() == ".h5" else _read_csv(path)
    try:
        frames = table.index.to_numpy(int)
    except ValueError:
        found = f"rows called by {str(table.index[0])[:40]!r}: frames labelled by hand"
        fix = "name the .csv or .h5 of the analysed video"
        raise Refusal(f"file {path}", found, "a row per frame, by its number", fix) from None
    return frames, *_mean_place(table)


def _read_csv(path: Path) -> "pd.DataFrame":
    import pandas as pd

    with open(path, encoding="utf-8-sig") as file:
        second = [file.readline() for _ in range(2)][1]
    if second.lower().startswith("individuals"):
        raise _several_animals(path)
    return pd.read_csv(path, header=[0, 1, 2], index_col=0)


def _several_animals(path: Path) -> Refusal:
    fix = "export the track of one animal"
    return Refusal(f"file {path}", "columns of several individuals", ACCEPTED, fix)


def _mean_place(table: "pd.DataFrame") -> tuple[np.ndarray, list[str]]:
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
    return mean, [f"DeepLabCut: {len(parts)} body parts averaged, {lost} frames lost"]


def _read_h5(path: Path) -> "pd.DataFrame":
    """Read the only table of a file, in either layout of pandas."""
    import h5py
    import pandas as pd

    with h5py.File(path) as file:
        groups = _groups(file)
        if len(groups) != 1:
            found = f"{len(groups)} tables of pandas ({', '.join(groups) or 'none'})"
            raise Refusal(f"file {path}", found, "the .h5 of one track", _fix(path))
        group = file[groups[0]]
        read = _table_blocks if "table" in group else _fixed_blocks
        frames, blocks = read(group, path)
    names = [name for found, _ in blocks for name in found]
    _check_names(names, path)
    for found, values in blocks:
        if values.ndim != 2 or values.shape[1] != len(found):
            text = f"{len(found)} names for values of shape {values.shape}"
            raise Refusal(f"file {path}", text, "one name per column", _fix(path))
    if frames.dtype.kind not in "iu":
        found = f"rows called by {frames.dtype}"
        raise Refusal(f"file {path}", found, "rows numbered by frame", _fix(path))
    columns = pd.MultiIndex.from_tuples(names, names=LEVELS)
    values = np.concatenate([values for _, values in blocks], axis=1)
    return pd.DataFrame(values, index=frames, columns=columns)


def _groups(file: "h5py.File") -> list[str]:
    """List the groups that pandas wrote."""
    kinds = (b"frame", b"frame_table")
    return [name for name, group in file.items() if group.attrs.get("pandas_type") in kinds]


def _check_names(names: list[Any], path: Path) -> None:
    """See that each name is scorer, body part and coordinate, and that x and y are there."""
    if any(isinstance(name, tuple) and len(name) == 4 for name in names):
        raise _several_animals(path)
    for name in names:
        # Nested names are not written out or hashed: a few bytes can nest without end.
        if not isinstance(name, tuple) or not all(isinstance(part, str) for part in name):
            raise Refusal(f"file {path}", "a column without three names", ACCEPTED, _fix(path))
        if len(name) != 3 or name[2] not in ("x", "y", "likelihood"):
            found = f"the column {', '.join(name)[:80]!r}"
            raise Refusal(f"file {path}", found, ACCEPTED, _fix(path))
    known = {name[1:] for name in names}
    absent = sorted({part for part, _ in known if not {(part, "x"), (part, "y")} <= known})
    if absent or len(known) < len(names) or not names:
        found = f"no x or no y of {absent[0]!r}" if absent else "no columns, or one of them twice"
        raise Refusal(f"file {path}", found, ACCEPTED, _fix(path))


def _table_blocks(group: "h5py.Group", path: Path) -> tuple[np.ndarray, Blocks]:
    """Read format="table": records of an index and of blocks, whose names are attributes."""
    table = group["table"]
    records = _whole(table, path)
    fields = [name for name in records.dtype.names or () if name.startswith("values_block_")]
    names = [_names(table.attrs.get(f"{name}_kind"), path) for name in fields]
    return records["index"], [
        (found, records[name]) for found, name in zip(names, fields, strict=True)
    ]


def _fixed_blocks(group: "h5py.Group", path: Path) -> tuple[np.ndarray, Blocks]:
    """Read format="fixed": arrays of blocks, whose names are levels and the place in them."""
    blocks = []
    for number in range(sum(name.endswith("_values") for name in group)):
        values = _whole(group[f"block{number}_values"], path)
        values = values if group[f"block{number}_values"].attrs.get("transposed") else values.T
        start, levels = f"block{number}_items_", []
        for level in range(sum(name.startswith(f"{start}level") for name in group)):
            texts = _texts(group[f"{start}level{level}"], path)
            places = _whole(group[f"{start}label{level}"], path)
            if places.size and not 0 <= places.min() <= places.max() < len(texts):
                raise _unnamed(path, f"a column without a name on level {level}")
            levels.append([texts[place] for place in places.tolist()])
        blocks.append((list(zip(*levels, strict=True)), values))
    return _whole(group["axis1"], path), blocks


def _texts(level: "h5py.Dataset", path: Path) -> list[str]:
    """Read the names of a level; those that PyTables pickled as objects are refused."""
    if level.dtype.kind != "S":
        raise _unnamed(path, f"names stored as {level.dtype}")
    return [text.decode("utf-8") for text in _whole(level, path).tolist()]


def _whole(data: "h5py.Dataset", path: Path) -> np.ndarray:
    """Read a dataset, unless it declares more than the file can hold."""
    packed = data.id.get_create_plist().get_nfilters() > 0
    if data.nbytes > path.stat().st_size * (LARGEST_RATIO if packed else 1):
        found = f"{data.name} of shape {data.shape} in a file of {path.stat().st_size} bytes"
        raise Refusal(f"file {path}", found, "a whole file", "copy it again from its source")
    try:
        return data[()]
    except OSError as error:
        found = f"{data.name} cannot be read ({' '.join(str(error).split())[:120]})"
        accepted = "numbers stored plainly or by zlib"
        raise Refusal(f"file {path}", found, accepted, _fix(path)) from error


def _fix(path: Path) -> str:
    """Name the .csv of the same track, where DeepLabCut has written one."""
    other = path.with_suffix(".csv")
    if other.is_file():
        return f"name {other.name} instead, which is beside it"
    return "save the track as .csv (deeplabcut.analyze_videos with save_as_csv=True) and name it"


def _unnamed(path: Path, found: str) -> Refusal:
    return Refusal(f"file {path}", f"names of columns: {found}", "names that are text", _fix(path))


def _names(stored: Any, path: Path) -> list[Any]:
    """Read pickled names."""
    if not isinstance(stored, bytes):
        raise _unnamed(path, "none are stored")
    try:
        names = read_plain_pickle(bytes(stored))
    except ValueError as error:
        raise _unnamed(path, str(error)) from error
    if not isinstance(names, list | tuple):
        raise _unnamed(path, f"no list ({type(names).__name__})")
    return list(names)


def read_plain_pickle(data: bytes) -> Any:
    """Build texts, whole numbers, None, tuples and lists of a pickle; nothing is called.

    Parameters
    ----------
    data : bytes
        A pickle of any protocol.

    Raises
    ------
    ValueError
        For every other instruction, and for a stream that is broken.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for code, argument, _ in pickletools.genops(data):
            if code.name == "STOP":
                (result,) = stack
                if result is not _MARK:
                    return result
            _step(code.name, argument, stack, memo)
    except (IndexError, KeyError, AttributeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"a pickle that is not plain ({reason})") from error
    raise ValueError("a pickle without an end")


def _step(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    """Follow one instruction of a pickle."""
    if name in TEXTS | NUMBERS:
        stack.append(argument)
    elif name in PUTS | {"MEMOIZE"}:
        memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
    elif name in GETS:
        stack.append(memo[argument])
    elif name == "NONE":
        stack.append(None)
    elif name == "MARK":
        stack.append(_MARK)
    elif name in ("EMPTY_LIST", "EMPTY_TUPLE"):
        stack.append([] if name == "EMPTY_LIST" else ())
    elif name in ("LIST", "TUPLE"):
        items = _since_mark(stack)
        stack.append(items if name == "LIST" else tuple(items))
    elif name in LENGTHS:
        items = [stack.pop() for _ in range(LENGTHS[name])]
        stack.append(tuple(reversed(items)))
    elif name in ("APPEND", "APPENDS"):
        items = [stack.pop()] if name == "APPEND" else _since_mark(stack)
        if not isinstance(stack[-1], list):
            raise ValueError(f"{name} to no list")
        stack[-1].extend(items)
    elif name not in ("PROTO", "FRAME"):
        raise ValueError(f"the instruction {name}")


def _since_mark(stack: list[Any]) -> list[Any]:
    """Take what was put on the stack after the last mark."""
    items = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]
