"""HEADER and TEXT of a data set of an FCS file.

Read here because writers in the field break rules that FlowIO insists on: empty values beside
doubled delimiters, blanks around keys, bytes that are not UTF-8, blank offsets, an absent $TOT.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from popflow.runtime.refusal import Refusal

log = logging.getLogger(__name__)

HEADER_BYTES = 58
#: A checksum of eight bytes may stand between a data set and a file that was appended.
APPENDED_WITHIN = 16
LARGEST_PAR = 10_000
REQUIRED = ("par", "datatype", "byteord", "p1n")
AGAIN = "export or copy the file again"


@dataclass
class DataSet:
    """What HEADER and TEXT of a data set tell.

    Attributes
    ----------
    version : str
        E.g. ``"3.1"``.
    offset : int
        Byte in the file where its HEADER begins; the others count from there.
    text_place, data_place : (int, int)
        First and last byte, as HEADER tells; 0 where it does not.
    text : dict of str to str
        Keywords in lower case without ``$``, values stripped.
    """

    version: str
    offset: int
    text_place: tuple[int, int]
    data_place: tuple[int, int]
    text: dict[str, str]


def read_data_sets(path: Path) -> list[DataSet]:
    """Read the HEADER and TEXT of every data set in a file.

    Raises
    ------
    Refusal
        When the first one cannot be read.
    """
    size, found, offset = path.stat().st_size, [], 0
    with open(path, "rb") as file:
        while True:
            try:
                found.append(_read(file, offset, size, path))
            except Refusal as refusal:
                if not found:
                    raise
                log.warning("%s: data set %d is left out: %s", path, len(found), refusal.found)
                break
            following = _number(found[-1].text.get("nextdata", ""))
            offset += following if following > 0 else _appended(file, found[-1])
            if offset == found[-1].offset or offset + HEADER_BYTES > size:
                break
    return found


def _appended(file: BinaryIO, data: DataSet) -> int:
    """Find a file that was written right behind a data set, counted from its beginning; else 0."""
    named = ("enddata", "endanalysis", "endstext")
    ends = [data.text_place[1], data.data_place[1], *(_number(data.text.get(k, "")) for k in named)]
    file.seek(data.offset + max(ends) + 1)
    place = file.read(APPENDED_WITHIN).find(b"FCS")
    return max(ends) + 1 + place if place >= 0 else 0


def _read(file: BinaryIO, offset: int, size: int, path: Path) -> DataSet:
    file.seek(offset)
    head = file.read(HEADER_BYTES)
    if not head.startswith(b"FCS") or len(head) < HEADER_BYTES:
        raise Refusal(f"file {path}", f"no HEADER at byte {offset}", "an FCS file", AGAIN)
    places = [_number(head[i : i + 8].decode("latin-1")) for i in range(10, 42, 8)]
    begin, end = places[0], places[1]
    if begin < HEADER_BYTES - 1 or end <= begin:
        found = f"unreadable: HEADER places TEXT at {begin} to {end}"
        raise Refusal(f"file {path}", found, "an FCS file", AGAIN)
    if offset + end >= size:
        found = f"it is cut off after {size} bytes, inside its TEXT"
        raise Refusal(f"file {path}", found, "a whole FCS file", AGAIN)
    text = _keywords(_bytes(file, offset + begin, offset + end), path)
    more = (_number(text.get("beginstext", "")), _number(text.get("endstext", "")))
    if HEADER_BYTES <= more[0] < more[1] < size - offset and more[0] != begin:
        try:
            text = _keywords(_bytes(file, offset + more[0], offset + more[1]), path, ()) | text
        except Refusal:
            pass
    version = head[3:6].decode("latin-1").strip()
    return DataSet(version, offset, (begin, end), (places[2], places[3]), text)


def _bytes(file: BinaryIO, first: int, last: int) -> bytes:
    file.seek(first)
    return file.read(last - first + 1)


def _number(text: str) -> int:
    """Read an offset; blanks and anything else that is no number count as 0."""
    try:
        return int(float(text.strip(" \0") or 0))
    except (ValueError, OverflowError):
        return 0


def _keywords(raw: bytes, path: Path, required: tuple[str, ...] = REQUIRED) -> dict[str, str]:
    """Split TEXT into keywords.

    A doubled delimiter is an escape in one file and an empty value in another. Three readings are
    held against each other: all escapes; empty values where a keyword follows; all empty values.
    The one that finds most of the keywords that `$PAR` promises is taken, the first of equals.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    delimiter, body = text[:1], text[1:]
    empty = body.replace(f"{delimiter * 2}$", f"{delimiter}\uffff{delimiter}$")
    readings = [_split(body, delimiter), _split(empty, delimiter), body.split(delimiter)]
    tables = [_pairs(tokens, delimiter) for tokens in readings]
    scores = [_score(tokens, table) for tokens, table in zip(readings, tables, strict=True)]
    best = max(range(len(tables)), key=lambda choice: scores[choice])
    table = tables[best]
    if all(key in table for key in required):
        if best:
            log.warning("%s: doubled delimiters in TEXT are read as empty values", path)
        return table
    absent = [f"${key.upper()}" for key in required if key not in tables[0]]
    raise Refusal(f"file {path}", f"unreadable: TEXT lacks {', '.join(absent)}", "FCS", AGAIN)


def _score(tokens: list[str], table: dict[str, str]) -> tuple[int, int]:
    """Count the keywords that a reading of TEXT should find, then whether its tokens pair up."""
    channels = range(1, min(_number(table.get("par", "")), LARGEST_PAR) + 1)
    wanted = [f"p{n}{part}" for n in channels for part in "bnre"] + ["par", "tot", "datatype"]
    whole = not any("\ufffe" in key for key in table)
    return sum(key in table for key in wanted) + whole, len(_trimmed(tokens)) % 2 == 0


def _split(body: str, delimiter: str) -> list[str]:
    """Split at single delimiters; doubled ones are marked."""
    return body.replace(delimiter * 2, "\ufffe").split(delimiter)


def _trimmed(tokens: list[str]) -> list[str]:
    """Leave out what stands behind the last keyword: blanks, NULs, surplus delimiters."""
    end = len(tokens)
    while end and not tokens[end - 1].strip(" \0\r\n\ufffe"):
        end -= 1
    return tokens[: end + end % 2] if end < len(tokens) else tokens


def _pairs(tokens: list[str], delimiter: str) -> dict[str, str]:
    """Pair keys with values; a keyword with ``$`` goes before a private one of the same name."""
    tokens = _trimmed(tokens)
    pairs = list(zip(tokens[::2], tokens[1::2], strict=False))
    found: dict[str, str] = {}
    for standard in (True, False):
        for key, value in pairs:
            if key.strip().startswith("$") is standard:
                value = value.replace("\ufffe", delimiter).replace("\uffff", "")
                found.setdefault(key.strip().lstrip("$").lower(), value.strip(" \0"))
    return found
