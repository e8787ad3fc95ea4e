"""Flow Cytometry Standard files (FCS 2.0 to 3.2): what the instrument wrote, as linear values.

The events are decoded here, straight from the file's bytes: of what instruments write, FlowIO
leaves 24-bit integers, mixed widths and ambiguous data offsets to the caller, and it holds several
copies of the events. HEADER and TEXT: `fcs_text`.
"""

import logging
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.inputs.description import Description, whole_file
from popflow.inputs.fcs_text import HEADER_BYTES, DataSet, read_data_sets
from popflow.inputs.spillover import MEND as MEND_SPILLOVER
from popflow.inputs.spillover import read_spillover
from popflow.runtime.files import read_tsv
from popflow.runtime.refusal import Refusal, Refusals

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

log = logging.getLogger(__name__)

LITTLE = ("1,2,3,4", "1,2", "1,2,3,4,5,6,7,8")
BIG, SWAPPED = ("4,3,2,1", "2,1", "8,7,6,5,4,3,2,1"), "3,4,1,2"
#: HEADER writes 99999999 where an offset has more than eight digits.
LARGEST_OFFSET = 99_999_999
CHUNK_EVENTS = 100_000
COMPENSATED_NAMES = ("Comp-", "FJComp-", "<")


@dataclass
class Fcs:
    """An open FCS data set; events stay on disk until `read`.

    Attributes
    ----------
    path : Path
    version : str
        E.g. ``"3.1"``.
    events : int
    channels : DataFrame
        name ($PnN), marker ($PnS, empty when blank), range ($PnR), gain ($PnG), decades and
        log_zero ($PnE), bits ($PnB), kind (I, F or D), bytes (of its container).
    spillover : (list of str, (n, n) array) or None
        Channel names and matrix; entry (i, j) is the share of i seen in detector j.
    text : dict
        Keywords in lower case without ``$``.
    data_sets : int
        How many the file holds.
    warnings : list of str
        What was odd and how it was read.
    """

    path: Path
    version: str
    events: int
    channels: "pd.DataFrame"
    spillover: "tuple[list[str], np.ndarray] | None"
    text: dict[str, str]
    start: int
    order: str
    data_sets: int = 1
    warnings: list[str] = field(default_factory=list)

    def read(self, linear: bool = True) -> "np.ndarray":
        """Decode all events.

        Parameters
        ----------
        linear : bool
            Undo log amplifiers (integers only: ``10**(f1 x / R) f2``), divide by the gain, scale
            the time channel by ``$TIMESTEP``. False gives the stored numbers.

        Returns
        -------
        (events, channels) float32 array
        """
        raw = _decode(self)
        return _linearise(raw, self) if linear else raw

    @property
    def limits(self) -> "np.ndarray":
        """Largest value that each channel can hold, linear, (channels,); inf where none is told."""
        import numpy as np

        top = []
        for channel in self.channels.to_dict("records"):
            last = channel["range"] - 1
            scale = math.log2(channel["range"]) if channel["range"] > 0 else 0.5
            # Software writes the largest value as range of floats; full scales are powers of two.
            floating = channel["kind"] != "I" and not scale.is_integer()
            if last <= 0 or channel["name"].upper() == "TIME" or floating:
                top.append(np.inf)
            elif channel["kind"] == "I" and channel["decades"] > 0:
                decades = channel["decades"] * last / channel["range"]
                top.append(10.0**decades * channel["log_zero"])
            else:
                top.append(last / (channel["gain"] or 1.0))
        return np.array(top, np.float32)

    @property
    def compensated(self) -> bool:
        """Whether the channel names say that the export is compensated already."""
        return any(name.startswith(COMPENSATED_NAMES) for name in self.channels["name"])


def open_fcs(path: str | Path, data_set: int | None = None, matrix: bool = True) -> Fcs:
    """Open an FCS file and check that its events are all there.

    Parameters
    ----------
    path : str or Path
    data_set : int, optional
        Of a file with several data sets (LMD), counted from 0. Default: the last one of the
        newest FCS version.
    matrix : bool
        Whether the spillover matrix is read.

    Raises
    ------
    Refusal
        When the file is empty, no FCS file, cut off, or of a kind that is not read.
    """
    path = Path(path)
    size = _check_magic(path)
    with whole_file(path, "an FCS file", "export it again as FCS 3.1"):
        return _open(path, size, data_set, matrix)


def _open(path: Path, size: int, data_set: int | None, matrix: bool) -> Fcs:
    """Interpret the keywords of a file; see `open_fcs`."""
    import pandas as pd

    data, data_sets = _data_set(path, data_set)
    text = dict(data.text)
    notes: list[str] = []
    count = _integer(text, "par", path, least=1)
    channels = pd.DataFrame([_channel(text, n, path) for n in range(1, count + 1)])
    if text.get("mode", "L").upper() != "L" or not channels["kind"].isin(list("IFD")).all():
        found = f"$DATATYPE {text.get('datatype', 'absent')}, $MODE {text.get('mode', 'absent')}"
        raise _refuse(path, found, "list mode with integers or floats", "export it as FCS 3.1")
    _rename_copies(channels, notes)
    channels["bytes"] = _widths(channels, path)
    start, events = _place(data, text, channels, size, notes, path)
    fcs = Fcs(
        path=path,
        version=data.version,
        events=events,
        channels=channels,
        spillover=None,
        text=text,
        start=start,
        order=_byte_order(text, path),
        data_sets=data_sets,
        warnings=notes,
    )
    floats = channels[(channels["kind"] != "I") & (channels["decades"] > 0)]
    if len(floats):
        notes.append(f"$PnE of {len(floats)} channels of floats is not applied: they are linear")
    if text.get("apply compensation", "").upper() == "TRUE" and matrix:
        notes.append(
            "APPLY COMPENSATION is TRUE: the program showed compensated events, the file "
            "holds them uncompensated"
        )
    if matrix:
        fcs.spillover = read_spillover(text, channels["name"].tolist(), path, notes)
    for note in notes:
        log.warning("%s: %s", path, note)
    return fcs


def open_unit(unit: dict[str, str], settings: dict[str, Any]) -> Fcs:
    """Open the file of a row of the samples sheet, as the settings of the preparation say."""
    from popflow.inputs import event_tables

    if Path(unit["path"]).suffix.lower() in event_tables.SUFFIXES:
        return event_tables.open_events(unit["path"])
    data_set = int(unit["data_set"]) if "data_set" in unit else None
    return open_fcs(unit["path"], data_set, settings["compensate"] != "off")


def _refuse(path: Path, found: str, accepted: str, fix: str) -> Refusal:
    return Refusal(f"file {path}", found, accepted, fix)


def _check_magic(path: Path) -> int:
    """Give the size of the file, if it begins as an FCS file does."""
    again = "export or copy the file again"
    if not path.is_file():
        raise _refuse(path, "no such file", "an FCS file", "mend the path in the samples sheet")
    size = path.stat().st_size
    with open(path, "rb") as handle:
        head = handle.read(HEADER_BYTES)
    if not head:
        raise _refuse(path, "the file is empty (0 bytes)", "an FCS file with events", again)
    if not head.startswith(b"FCS"):
        found = f"it begins with {head[:6]!r}, not with FCS"
        raise _refuse(path, found, "an FCS file, 2.0 to 3.2", "mend the path, or export as FCS")
    if len(head) < HEADER_BYTES:
        found = f"it is cut off after {size} bytes, inside its HEADER"
        raise _refuse(path, found, "a whole FCS file", again)
    return size


def _data_set(path: Path, wanted: int | None) -> tuple[DataSet, int]:
    """Give the wanted data set and their number; default: the last one of the newest version."""
    found = read_data_sets(path)
    if wanted is not None and not 0 <= wanted < len(found):
        fix = "mend 'data_set' in the samples sheet"
        raise _refuse(path, f"no data set {wanted}", f"0 to {len(found) - 1}", fix)
    newest = max(data.version for data in found)
    default = max(i for i, data in enumerate(found) if data.version == newest)
    return found[default if wanted is None else wanted], len(found)


def _integer(text: dict[str, str], key: str, path: Path, least: int = 0) -> int:
    value = _number(text.get(key), -1.0)
    if value < least or value != int(value):
        found = f"${key.upper()} is {text.get(key, 'absent')!r}"
        accepted = f"a whole number from {least} on"
        raise _refuse(path, found, accepted, "export the file again")
    return int(value)


def _number(value: str | None, otherwise: float) -> float:
    """Read a number with a decimal point or comma; what is none, or not finite, is `otherwise`."""
    try:
        found = float(str(value).replace(",", "."))
    except ValueError:
        return otherwise
    return found if math.isfinite(found) else otherwise


def _channel(text: dict[str, str], n: int, path: Path) -> dict[str, Any]:
    """Gather the keywords of channel n."""
    if f"p{n}n" not in text:
        raise _refuse(path, f"no $P{n}N", f"a name for channel {n}", "export the file again")
    decades, _, zero = text.get(f"p{n}e", "0,0").partition(",")
    bits = int(_number(text.get(f"p{n}b"), 32))
    kind = text.get(f"p{n}datatype", text.get("datatype", "")).upper()
    return {
        "name": text[f"p{n}n"],
        "marker": text.get(f"p{n}s", ""),
        "range": _number(text.get(f"p{n}r"), 0.0),
        "gain": _number(text.get(f"p{n}g"), 1.0),
        "decades": _number(decades, 0.0),
        "log_zero": _number(zero, 0.0) or 1.0,
        "bits": bits,
        # Some writers call doubles F, and tell them by their width.
        "kind": "D" if kind == "F" and bits == 64 else kind,
    }


def _rename_copies(channels: "pd.DataFrame", notes: list[str]) -> None:
    """Number names that stand there more than once, so that each channel can be named."""
    again = channels.groupby("name").cumcount()
    if again.any():
        copies = channels["name"][again > 0].unique().tolist()
        notes.append(f"$PnN {', '.join(copies)} stand there more than once; copies are numbered")
        channels.loc[again > 0, "name"] += "." + (again[again > 0] + 1).astype(str)


def _widths(channels: "pd.DataFrame", path: Path) -> list[int]:
    """Give the bytes of each channel's container; integers of odd widths fill whole bytes.

    An instrument that writes 10 bits stores them in words of 16; `_place` holds that against the
    length of the segment.
    """
    wide = channels[(channels["kind"] == "I") & ~channels["bits"].between(1, 64)]
    if len(wide):
        row = wide.iloc[0]
        found = f"channel {row['name']!r} has integers of {row['bits']} bits"
        raise _refuse(path, found, "1 to 64 bits", "export the file as FCS 3.1")
    widths = {"F": 4, "D": 8}
    rows = channels.to_dict("records")
    return [widths.get(row["kind"]) or _container(row["bits"]) for row in rows]


def _container(bits: int) -> int:
    """Give the bytes of the smallest usual container: 1, 2, 3, 4 or 8."""
    return next(size for size in (1, 2, 3, 4, 8) if bits <= 8 * size)


def _byte_order(text: dict[str, str], path: Path) -> str:
    order = text.get("byteord", "").replace(" ", "")
    if order in LITTLE or order == SWAPPED:
        return SWAPPED if order == SWAPPED else "<"
    if order in BIG:
        return ">"
    accepted = f"{', '.join(LITTLE + BIG)} or {SWAPPED}"
    raise _refuse(path, f"$BYTEORD is {order!r}", accepted, "export the file again")


def _place(data, text, channels, size, notes, path) -> tuple[int, int]:
    """Decide where the events begin and how many there are.

    HEADER and TEXT each name a place. A pair is admissible when it shares no byte with HEADER and
    TEXT and its length is that of ``$TOT`` events, or one byte more or less. HEADER wins a tie,
    unless TEXT's pair follows the TEXT segment directly. An end that says nothing (at or before
    its beginning) is computed from ``$TOT``; a segment of another length than ``$TOT`` tells is
    refused when it is shorter, and gives the number of events when both agree on it.
    """
    width = int(channels["bytes"].sum())
    named = _named_places(data, text)
    if "tot" not in text:
        longest = max((end - begin + 1 for begin, end in named), default=0)
        text["tot"] = str(longest // width)
        notes.append(f"$TOT is absent; {text['tot']} events fill the segment")
    events = _integer(text, "tot", path)
    first, last = data.text_place
    free = [
        (begin, end)
        for begin, end in named
        if begin >= HEADER_BYTES and (begin > last or begin + events * width <= first)
    ]
    near = range(events * width - 1, events * width + 2)
    pairs = [(begin, end) for begin, end in free if end - begin + 1 in near]
    if len(set(pairs)) == 2 and pairs[0][0] != pairs[1][0]:
        pairs.sort(key=lambda pair: pair[0] != last + 1)
        notes.append(f"HEADER and TEXT place the events at {named}: {pairs[0]} is used")
    if not pairs:
        pairs, events = _mended(free, events, width, channels, notes, path)
    begin = pairs[0][0]
    if data.offset + begin + events * width > size:
        there = max(size - data.offset - begin, 0) // width
        found = f"it is cut off: {there} of {events} events are there"
        raise _refuse(path, found, "a whole FCS file", "export or copy the file again")
    return data.offset + begin, events


def _named_places(data: DataSet, text: dict[str, str]) -> list[tuple[int, int]]:
    """Give the places of the events that HEADER and TEXT name; 0 and 99,999,999 name none."""
    keywords = tuple(int(_number(text.get(key), 0)) for key in ("begindata", "enddata"))
    return [pair for pair in (data.data_place, keywords) if 0 < pair[0] < LARGEST_OFFSET]


def _mended(free, events: int, width: int, channels, notes, path):
    """Make the best of places whose length is not that of ``$TOT`` events."""
    if (channels["bits"] % 8 != 0).any():
        bits = channels.loc[channels["bits"] % 8 != 0, "bits"].iloc[0]
        found = f"integers of {bits} bits that do not fill whole bytes ({free}, {events} events)"
        raise _refuse(path, found, "8, 16, 24, 32 or 64 bits", "export the file as FCS 3.1")
    endless = [pair for pair in free if pair[1] <= pair[0] + 1]
    if endless or not events:
        notes.append(f"the end of the events is not told ({free}); $TOT is used")
        return endless or [(HEADER_BYTES, 0)], events
    lengths = {end - begin + 1 for begin, end in free}
    if not free or len(lengths) > 1 or max(lengths) < events * width:
        found = f"$TOT tells {events} events of {width} bytes, the events stand at {free}"
        raise _refuse(path, found, "a segment of that length", "export or copy the file again")
    derived = lengths.pop() // width
    notes.append(f"$TOT tells {events} events, the segment holds {derived}: these are read")
    return free, derived


def _decode(fcs: Fcs) -> "np.ndarray":
    """Turn the bytes of the events into float32, a chunk of events at a time."""
    import numpy as np

    widths, kinds = fcs.channels["bytes"].tolist(), set(fcs.channels["kind"])
    out = np.empty((fcs.events, len(widths)), np.float32)
    if not fcs.events:
        return out
    stored = np.memmap(fcs.path, np.uint8, "r", fcs.start, (fcs.events, sum(widths)))
    order = "<" if fcs.order == SWAPPED else fcs.order
    for first in range(0, fcs.events, CHUNK_EVENTS):
        rows = slice(first, first + CHUNK_EVENTS)
        chunk = np.ascontiguousarray(stored[rows])
        if kinds in ({"F"}, {"D"}) and fcs.order != SWAPPED:
            out[rows] = chunk.view(f"{order}f{widths[0]}")
            continue
        place = 0
        for column, width in enumerate(widths):
            piece = chunk[:, place : place + width]
            out[rows, column] = _column(piece, fcs, fcs.channels.iloc[column])
            place += width
    return out


def _column(piece: "np.ndarray", fcs: Fcs, channel: "pd.Series") -> "np.ndarray":
    """Decode one channel; integers lose the bits above their range, where flags may stand."""
    import math

    import numpy as np

    if fcs.order == SWAPPED and piece.shape[1] == 4:
        piece = piece[:, [2, 3, 0, 1]]
    if fcs.order == ">":
        piece = piece[:, ::-1]
    if channel["kind"] != "I":
        return np.ascontiguousarray(piece).view(f"<f{piece.shape[1]}")[:, 0]
    padded = np.zeros((len(piece), 8), np.uint8)
    padded[:, : piece.shape[1]] = piece
    values = padded.view("<u8")[:, 0]
    if 1 < channel["range"] < 2.0 ** (8 * piece.shape[1]):
        values = values & np.uint64(2 ** math.ceil(math.log2(channel["range"])) - 1)
    return values


def _linearise(x: "np.ndarray", fcs: Fcs) -> "np.ndarray":
    """Undo amplifiers and gains in place."""
    time_seen = False
    for column, channel in enumerate(fcs.channels.to_dict("records")):
        if channel["name"].upper() == "TIME" and not time_seen:
            time_seen = True
            x[:, column] *= _number(fcs.text.get("timestep"), 1.0) or 1.0
        elif channel["kind"] == "I" and channel["decades"] > 0 and channel["range"] > 0:
            power = channel["decades"] * x[:, column] / channel["range"]
            x[:, column] = 10.0**power * channel["log_zero"]
        elif channel["gain"] not in (0.0, 1.0):
            x[:, column] /= channel["gain"]
    return x


def describe(path: str | Path, dataset: int | None = None) -> Description:
    """Tell what reading an FCS file gives; `dataset` chooses in a file of several (from 0)."""
    path, refused = Path(path), []
    try:
        file = open_fcs(path, dataset)
    except Refusal as refusal:
        if refusal.fix != MEND_SPILLOVER:
            raise
        refused.append(f"{refusal.found}: {refusal.fix}")
        file = open_fcs(path, dataset, matrix=False)
    raw = file.read(linear=False)
    markers = {
        row["name"]: row["marker"]
        for row in file.channels.to_dict("records")
        if row["marker"] and row["marker"] != row["name"]
    }
    notes = [*file.warnings, *refused]
    if file.spillover is not None:
        notes.append(f"carries a spillover matrix of {len(file.spillover[0])} channels")
    linear = _linearise(raw.copy(), file)
    if file.data_sets > 1:
        notes.append(f"holds {file.data_sets} data sets (data_set 0 to {file.data_sets - 1})")
    return Description(
        modality="cytometry",
        format="FCS",
        version=file.version,
        shape=list(raw.shape),
        names=file.channels["name"].tolist(),
        raw_mean=raw.mean(axis=0, dtype=float).tolist() if len(raw) else [],
        first_row=raw[0].astype(float).tolist() if len(raw) else [],
        sheet_row={"sample": _sample_id(path), "path": str(path), "subject": "", "batch": ""},
        labels={"marker": markers},
        units="a.u.",
        prepared_mean=linear.mean(axis=0, dtype=float).tolist() if len(raw) else None,
        instrument=file.text.get("cyt"),
        warnings=notes,
    )


def _sample_id(path: Path) -> str:
    """Turn a file's name into an id of letters, digits, point, dash and underscore."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", path.stem)


def check_source(
    row: dict[str, Any], units: list[dict[str, str]], settings: dict[str, Any]
) -> None:
    """Look for mistakes in a dataset by the heads of its files.

    Parameters
    ----------
    row : dict
        The dataset's row of the datasets sheet.
    units : list of dict
        The rows of its samples sheet.
    settings : dict
        The dataset's block of `prepare`.

    Raises
    ------
    Refusal, Refusals
        With the mistakes of all files: unreadable, cut off, or not fitting the panel.
    """
    from popflow.inputs import panels

    sheet = row.get("panel") or Path(row["sheet"]).parent / "panel.tsv"
    panel = [p for p in panels.read_panel(sheet, settings["cofactor"]) if p.role != "ignore"]
    found: list[Refusal] = []
    for unit in units:
        try:
            file = open_unit(unit, settings)
            panels.match_panel(panel, file.channels, f"file {file.path}")
            if "cell_types" in unit:
                types = Path(row["source"]) / unit["cell_types"]
                read_cell_types(types, file.events, unit["path"])
        except Refusal as refusal:
            found.append(refusal)
    if any("cells" in unit for unit in units):
        where = f"sheet {row['sheet']}, column 'cells'"
        found.append(Refusal(where, "a label called cells", "another name", "rename the column"))
    found += _nothing_to_score(row, units)
    if found:
        raise Refusals(_together(found))


def _nothing_to_score(row: dict[str, Any], units: list[dict[str, str]]) -> list[Refusal]:
    """Refuse a sheet from which no score can come, before anything is fitted."""
    ids = ("sample", "path", "subject", "split", "data_set", "cell_types")
    labels = {key for unit in units for key in unit if key not in ids}
    varied = [key for key in labels if len({unit.get(key) for unit in units}) > 1]
    if varied or any("cell_types" in unit for unit in units):
        return []
    where, found = f"sheet {row['sheet']}", "nothing to score: no label, batch or cell types differ"
    accepted = "a column with a label or batch, or cell_types"
    name = row["dataset"]
    fix = f"add one; vectors alone: snakemake results/{name}/maestro/default/seed-0/embedding.h5ad"
    return [Refusal(where, found, accepted, fix)]


def _together(refusals: list[Refusal]) -> list[Refusal]:
    """Tell a mistake of many files once."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for refusal in refusals:
        key = (refusal.found, refusal.accepted, refusal.fix)
        groups.setdefault(key, []).append(refusal.where)
    return [
        Refusal(f"{where[0]} and {len(where) - 1} more" if len(where) > 1 else where[0], *key)
        for key, where in groups.items()
    ]


def read_cell_types(path: Path, events: int, name: str) -> list[str]:
    """Read the gated type of each event: a table with a column cell_type, one row per event.

    Parameters
    ----------
    path : Path
    events : int
        Number of events in the file.
    name : str
        Of that file, for messages.

    Raises
    ------
    Refusal
        When it is no such table, or of another length.
    """
    where = f"file {path}"
    if not path.is_file():
        raise Refusal(where, "no such file", "a table with a column cell_type", "mend the path")
    with whole_file(path, "a tab-separated table with a column cell_type", "export it as text"):
        table = read_tsv(path, dtype=str)
    if "cell_type" not in table:
        found = f"columns: {', '.join(table.columns)}"
        raise Refusal(where, found, "a column 'cell_type'", "rename the column")
    if len(table) != events:
        found, accepted = f"{len(table)} rows", f"{events} rows, one per event of {name}"
        raise Refusal(where, found, accepted, "export the types of all events, in their order")
    return table["cell_type"].fillna("").tolist()
