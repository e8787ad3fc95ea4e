"""MATLAB files of version 5, checked before scipy reads them.

scipy trusts the number of cells that a file states, and a changed byte can keep it busy for hours.
"""

import struct
import zlib
from pathlib import Path
from typing import Any

from popflow.inputs.description import whole_file
from popflow.runtime.refusal import Refusal

MATRIX, COMPRESSED = 14, 15
CELL, STRUCT, OBJECT = 1, 2, 3
CHARACTERS, SPARSE, NUMBERS = 4, 5, range(6, 16)
INT8, INT32, UINT32 = 1, 5, 6
COMPLEX = 0x800
#: Bytes of one number, by the type of an element.
WIDTHS = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8, 16: 1, 17: 2, 18: 4}
MOST_DIMENSIONS = 32
LEAST_ELEMENT = 8


def load_mat(path: Path, names: list[str] | None = None) -> dict[str, Any]:
    """Read variables of a MATLAB 5 file, all or those named.

    Raises
    ------
    Refusal
        When the file is broken, or states more elements than it can hold.
    """
    import scipy.io

    with whole_file(path):
        data = path.read_bytes()
        _check_version(data)
        _check(data[128:], "<" if data[126:128] == b"IM" else ">")
        held = scipy.io.loadmat(path, variable_names=names)
    return {name: value for name, value in held.items() if not name.startswith("__")}


def list_mat(path: Path) -> dict[str, tuple[int, ...]]:
    """Give the shapes of the variables of a MATLAB 5 file."""
    import scipy.io

    with whole_file(path):
        with open(path, "rb") as file:
            _check_version(file.read(128))
        return {name: shape for name, shape, _ in scipy.io.whosmat(path)}


def _check_version(header: bytes) -> None:
    """Stop at MATLAB 4, whose sizes scipy believes: a zero among the first four bytes tells it."""
    if len(header) < 128:
        raise ValueError(f"{len(header)} bytes are no header")
    if 0 in header[:4]:
        raise ValueError("not MATLAB 5 or 7.3 (MATLAB 4, or no MATLAB file); save it with -v7")


def _check(data: bytes, order: str, only: int | None = None) -> None:
    """Walk through elements; every matrix must have room for the elements that it states."""
    place = 0
    while place + 8 <= len(data):
        kind, size, start, place = _tag(data, place, order)
        if only is not None and kind != only:
            raise ValueError(f"an element of type {kind} stands where a matrix belongs")
        if start + size > len(data):
            raise ValueError(f"an element of {size} bytes ends behind the file")
        if kind == COMPRESSED:
            _check(zlib.decompress(data[start : start + size]), order)
        elif kind == MATRIX and size:
            _check_matrix(data[start : start + size], order)


def _tag(data: bytes, place: int, order: str) -> tuple[int, int, int, int]:
    """Read a tag: kind, bytes, where they begin, and where the next element begins."""
    kind, size = struct.unpack_from(f"{order}II", data, place)
    if kind >> 16:  # Up to four bytes stand in the tag itself.
        return kind & 0xFFFF, kind >> 16, place + 4, place + 8
    padded = size if kind == COMPRESSED else size + -size % 8
    return kind, size, place + 8, place + 8 + padded


def _check_matrix(data: bytes, order: str) -> None:
    """Check flags, dimensions, name and what follows; scipy crashes at types out of place."""
    tag, _, flags, place = _tag(data, 0, order)
    word = struct.unpack_from(f"{order}I", data, flags)[0]
    kind, parts = word & 0xFF, 2 if word & COMPLEX else 1
    shape_tag, size, start, place = _tag(data, place, order)
    if tag != UINT32 or shape_tag != INT32 or size % 4 or not 1 <= size // 4 <= MOST_DIMENSIONS:
        raise ValueError("a matrix without flags or dimensions")
    count = 1
    for extent in struct.unpack_from(f"{order}{size // 4}i", data, start):
        count *= max(extent, 0)
    name_tag, size, start, place = _tag(data, place, order)
    if name_tag not in (INT8, INT8 + 1) or start + size > len(data):
        raise ValueError("a matrix without a name")
    if kind not in (CELL, STRUCT, OBJECT):
        for _ in range(parts):
            place = _check_numbers(data, place, order, kind, count)
        return
    if count > len(data) // LEAST_ELEMENT:
        raise ValueError(f"{count} cells are stated in {len(data)} bytes")
    if kind == OBJECT:
        _, _, _, place = _tag(data, place, order)
    if kind != CELL:
        _, _, length, place = _tag(data, place, order)
        width = max(struct.unpack_from(f"{order}i", data, length)[0], 1)
        _, names, _, place = _tag(data, place, order)
        if count * (names // width) > len(data) // LEAST_ELEMENT:
            raise ValueError(f"{count} structs are stated in {len(data)} bytes")
    _check(data[place:], order, MATRIX)


def _check_numbers(data: bytes, place: int, order: str, kind: int, count: int) -> int:
    """Hold the numbers of a full array against its dimensions; sparse ones hold fewer."""
    if kind not in (CHARACTERS, SPARSE, *NUMBERS):
        raise ValueError(f"a matrix of the unknown class {kind}")
    if count == 0 or kind == SPARSE:
        return place
    tag, size, start, following = _tag(data, place, order)
    if start + size > len(data):
        raise ValueError(f"numbers of {size} bytes end behind their matrix")
    if tag not in WIDTHS or size != count * WIDTHS[tag] and kind != CHARACTERS:
        raise ValueError(f"{count} numbers are stated, {size} bytes of type {tag} are there")
    return following


def refuse_without(path: Path, name: str) -> Refusal:
    """Make the refusal of a file that lacks a variable."""
    names = ", ".join(list_mat(path)) or "none"
    accepted = f"a variable {name!r} of CellExplorer or MatClust"
    fix = "save spike_times (s) and spike_units as .npz"
    return Refusal(f"file {path}", f"variables {names}", accepted, fix)
