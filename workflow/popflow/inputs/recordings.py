"""Read an intracranial recording: BIDS-iEEG with its sidecars, or any single file mne reads.

Voltages leave this module in microvolts, coordinates in millimetres, times in seconds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.inputs import sheets
from popflow.inputs.description import Description, rate_of
from popflow.inputs.sidecars import find_sidecar, read_sidecar, read_sidecar_json, spaces_of
from popflow.inputs.signals import Signals, open_signals
from popflow.runtime.refusal import Refusal, Refusals

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

RECORDING_SUFFIXES = (".vhdr", ".edf", ".bdf", ".set", ".fif", ".gdf", ".lay", ".nwb")
LEAST_SHARE = 0.99
TO_MICROVOLT = {"V": 1e6, "mV": 1e3, "uV": 1.0, "µV": 1.0, "μV": 1.0, "nV": 1e-3}
TO_MILLIMETRE = {"m": 1000.0, "cm": 10.0, "mm": 1.0}
LARGEST_PLAUSIBLE_UV = 5000.0
CORTICAL_KINDS = ("SEEG", "ECOG", "DBS")


@dataclass
class Recording:
    """One recording, its samples still on disk.

    Attributes
    ----------
    name : str
        For messages: the file.
    rate : float
        Sampling rate, Hz, as the file says.
    samples : int
    channels : DataFrame
        name, kind (BIDS type), status (good or bad), reason (of a bad one); in file order.
    electrodes : DataFrame
        name, x, y, z (mm, missing where unknown), region; empty when there is no table.
    frame : str
        Coordinate frame of x, y, z, e.g. ``"MNI"``; empty when there is no table.
    line_frequency : float or None
        Hz.
    events : DataFrame
        onset and duration in s, and the table's label columns; empty when there is none.
    read : callable
        ``read(names, start, stop)`` gives float64 (channels, samples), µV.
    promised : float or None
        Length in s that the sidecar tells.
    """

    name: str
    rate: float
    samples: int
    channels: "pd.DataFrame"
    electrodes: "pd.DataFrame"
    frame: str
    line_frequency: float | None
    events: "pd.DataFrame"
    read: "Callable[[list[str], int, int], np.ndarray]"
    promised: float | None = None

    @property
    def duration(self) -> float:
        """Length in s."""
        return self.samples / self.rate

    def chunks(self, names: list[str], seconds: float) -> "Iterator[tuple[int, np.ndarray]]":
        """Give (first sample, µV) of consecutive pieces; never more than one is in memory."""
        length = max(1, round(seconds * self.rate))
        for start in range(0, self.samples, length):
            yield start, self.read(names, start, min(start + length, self.samples))


def read_recording(row: dict[str, str]) -> Recording:
    """Open a recording that a row of a sessions sheet names.

    Parameters
    ----------
    row : dict of str to str
        `path` (a file, or a folder that holds one ``*_ieeg.*`` file) and, optionally, `units`
        (what the numbers in the file are, whatever its header says), `space`, `frame`,
        `coordinate_units`, `electrodes`, `channels`, `events` (paths), `line_frequency`.

    Returns
    -------
    Recording

    Raises
    ------
    Refusal
        When file or sidecars cannot be read, or contradict each other.
    """
    import pandas as pd

    path = recording_file(row["path"])
    signals = open_signals(path, row)
    factor = _factor(row, path, signals)
    electrodes, frame = _electrodes(path, row, signals)
    side = read_sidecar_json(find_sidecar(path, "ieeg", ".json"))
    line = row.get("line_frequency") or side.get("PowerLineFrequency") or signals.line
    events_file = row.get("events") or find_sidecar(path, "events", ".tsv")
    marks = pd.DataFrame(signals.marks, columns=["onset", "duration", "trial_type"])
    events = read_sidecar(events_file, ["onset", "duration"]) if events_file else marks
    for column in ("onset", "duration"):
        events[column] = pd.to_numeric(events[column], errors="coerce")

    def read(names: list[str], start: int, stop: int) -> "np.ndarray":
        return signals.read(names, start, stop) * factor

    return Recording(
        name=str(path),
        rate=signals.rate,
        samples=signals.samples,
        channels=_channels(path, row, signals),
        electrodes=electrodes,
        frame=frame,
        line_frequency=_line(line, path),
        events=events,
        read=read,
        promised=_seconds(side.get("RecordingDuration")),
    )


def _line(value: Any, path: Path) -> float | None:
    """Read a line frequency: a number, or one with its unit."""
    text = "" if value is None else str(value).lower().replace("hz", "").strip()
    if text in ("", "n/a", "nan"):
        return None
    found = rate_of(text)
    if found is None or isinstance(value, bool):
        fix = "mend PowerLineFrequency in the sidecar, or line_frequency in the sheet"
        raise Refusal(f"recording {path}", f"a line frequency of {value!r}", "Hz, e.g. 50", fix)
    return found


def _seconds(value: Any) -> float | None:
    """Read the length that a sidecar promises, where it is a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def session_row(source: dict[str, Any], session: str) -> dict[str, str]:
    """Find a session in the sheet of a dataset.

    Parameters
    ----------
    source : dict
        A row of the datasets sheet.
    session : str

    Returns
    -------
    dict of str to str
        The session's row, all its paths absolute or relative to the working directory.
    """
    row = next(unit for unit in sheets.read_units(source) if unit["session"] == session)
    for column in ("electrodes", "channels", "events"):
        if column in row:
            row[column] = str(Path(source["source"]) / row[column])
    return row


def recording_file(path: str | Path) -> Path:
    """Give the recording that a path names: a file, a folder of .ncs, or its one ``*_ieeg.*``.

    Raises
    ------
    Refusal
        When a folder holds none or several.
    """
    path = Path(path)
    if not path.is_dir() or any(path.glob("*.ncs")):
        return path
    found = sorted(
        file for file in path.rglob("*_ieeg.*") if file.suffix.lower() in RECORDING_SUFFIXES
    )
    if len(found) != 1:
        listed = ", ".join(str(file.relative_to(path)) for file in found[:5]) or "none"
        raise Refusal(
            f"folder {path}",
            f"{len(found)} recordings ({listed})",
            "one file per row of the sessions sheet",
            "write the file itself, with its folder, under 'path'",
        )
    return found[0]


def _factor(row: dict[str, str], path: Path, signals: Signals) -> float:
    """Give what turns the file's numbers into microvolts."""
    units = row.get("units") or signals.unit
    if units not in TO_MICROVOLT:
        raise Refusal(
            f"file {path}",
            f"the unit of its values is {units or 'not told'!r}",
            f"one of {', '.join(TO_MICROVOLT)}",
            "write the unit of its numbers under 'units' in the sessions sheet",
        )
    return TO_MICROVOLT[units]


def _channels(path: Path, row: dict[str, str], signals: Signals) -> "pd.DataFrame":
    """Join the file's channels with channels.tsv, by name."""
    import pandas as pd

    table = pd.DataFrame({"name": signals.names, "kind": signals.kinds})
    table["status"] = ["bad" if name in signals.bads else "good" for name in signals.names]
    table["reason"] = ["marked bad in the file" if s == "bad" else "" for s in table["status"]]
    file = row.get("channels") or find_sidecar(path, "channels", ".tsv")
    if not file:
        table.loc[table["kind"] == "", "kind"] = "SEEG"
        return table
    side = read_sidecar(file, ["name"])
    doubled = side["name"][side["name"].duplicated()].tolist()
    absent = [name for name in signals.names if name not in set(side["name"])]
    if doubled or absent:
        found = f"twice: {', '.join(doubled)}" if doubled else f"absent: {', '.join(absent[:8])}"
        raise Refusal(
            f"file {file}, column 'name'",
            found,
            f"every channel of {path.name} once",
            "add or remove these rows",
        )
    side = side.set_index("name").reindex(signals.names)
    if "type" in side:
        table["kind"] = side["type"].fillna("MISC").str.upper().to_numpy()
    if "status" in side:
        states = side["status"].fillna("good").str.lower()
        odd = sorted(set(states) - {"good", "bad"})
        if odd:
            where, fix = f"file {file}, column 'status'", "mend the spelling"
            raise Refusal(where, f"found {', '.join(odd)}", "good, bad or n/a", fix)
        bad = (side["status"].str.lower() == "bad").to_numpy()
        why = side["status_description"] if "status_description" in side else side["status"]
        table.loc[bad, "status"] = "bad"
        table.loc[bad, "reason"] = [f"channels.tsv: {text}" for text in why.to_numpy()[bad]]
    return table


def _electrodes(path: Path, row: dict[str, str], signals: Signals) -> "tuple[pd.DataFrame, str]":
    """Read the electrodes in mm, and the frame of their coordinates."""
    import pandas as pd

    file = row.get("electrodes") or find_sidecar(path, "electrodes", ".tsv", row.get("space"))
    if not file and signals.electrodes is None:
        return pd.DataFrame(columns=["name", "x", "y", "z", "region"]), ""
    if file:
        table = read_sidecar(file, ["name", "x", "y", "z"])
        system = read_sidecar_json(
            find_sidecar(path, "coordsystem", ".json", row.get("space"), of=Path(file))
        )
    else:
        file, table, system = path, signals.electrodes.copy(), {}
    units = row.get("coordinate_units") or system.get("iEEGCoordinateUnits", "")
    frame = row.get("frame") or system.get("iEEGCoordinateSystem", "")
    if units not in TO_MILLIMETRE:
        raise Refusal(
            f"file {file}",
            f"the unit of its coordinates is {units or 'not told'!r}",
            f"one of {', '.join(TO_MILLIMETRE)}",
            "write it under 'coordinate_units' in the sessions sheet, or in coordsystem.json",
        )
    if frame in ("", "n/a", "Other"):
        raise Refusal(
            f"file {file}",
            f"the frame of its coordinates is {frame or 'not told'!r}",
            "MNI, Talairach, ACPC, fsaverage (RAS, mm from the centre), or LIP (voxels of 1 mm)",
            "write it under 'frame' in the sessions sheet",
        )
    for axis in "xyz":
        numbers = pd.to_numeric(table[axis], errors="coerce")
        wrong = (numbers.isna() & table[axis].notna()).to_numpy()
        if wrong.any():
            where = f"file {file}, column {axis!r}, row {int(wrong.argmax()) + 2}"
            found, fix = f"found {table[axis][wrong.argmax()]!r}", "write it with a point"
            raise Refusal(where, found, "a number or n/a", fix)
        table[axis] = numbers * TO_MILLIMETRE[units]
    largest = table[["x", "y", "z"]].abs().max().max()
    if largest < 1.0 or largest > 1000.0:
        raise Refusal(
            f"file {file}",
            f"the largest coordinate is {largest:.3g} mm when read in {units}",
            "coordinates inside a head",
            "mend 'coordinate_units' in the sessions sheet (m, cm or mm)",
        )
    known = [c for c in ("region", "anatomy", "label", "DesikanKilliany", "group") if c in table]
    table["region"] = table[known[0]].fillna("unknown") if known else "unknown"
    return table[["name", "x", "y", "z", "region"]], frame


def check_voltages(recording: Recording, names: list[str], chunk_s: float = 60.0) -> "pd.DataFrame":
    """Scan channels once for what would spoil every later step.

    Parameters
    ----------
    recording : Recording
    names : list of str
    chunk_s : float
        Seconds in memory at a time.

    Returns
    -------
    DataFrame
        name, spread (standard deviation, µV), nan_samples, flat (bool).

    Raises
    ------
    Refusal
        When the typical spread exceeds 5 mV: the unit of the file is wrong.
    """
    import numpy as np
    import pandas as pd

    count, nan = np.zeros(len(names)), np.zeros(len(names), dtype=int)
    total, square, origin = np.zeros(len(names)), np.zeros(len(names)), None
    for _, x in recording.chunks(names, chunk_s):
        valid = np.isfinite(x)
        if origin is None:
            origin = np.nan_to_num(x[:, :1])
        shifted = np.where(valid, x - origin, 0.0)
        count += valid.sum(1)
        nan += (~valid).sum(1)
        total += shifted.sum(1)
        square += (shifted**2).sum(1)
    mean = total / np.maximum(count, 1)
    spread = np.sqrt(np.maximum(square / np.maximum(count, 1) - mean**2, 0.0))
    table = pd.DataFrame({"name": names, "spread": spread, "nan_samples": nan})
    table["flat"] = spread < 1e-6
    alive = table.loc[~table["flat"], "spread"]
    if len(alive) and alive.median() > LARGEST_PLAUSIBLE_UV:
        raise _implausible(recording, float(alive.median()))
    return table


def check_source(
    row: dict[str, Any], units: list[dict[str, str]], settings: dict[str, Any]
) -> None:
    """Look for mistakes in the recordings of a dataset; headers and sidecars are read, no signal.

    Parameters
    ----------
    row : dict
        The dataset's row of the datasets sheet.
    units : list of dict
        The rows of its sessions sheet.
    settings : dict
        The dataset's block of `prepare`.

    Raises
    ------
    Refusals
        With the first mistake of every session.
    """
    found: list[Refusal] = _seen_again(row, units)
    for unit in units:
        try:
            recording = read_recording(session_row(row, unit["session"]))
            check_recording(recording, settings)
        except Refusal as refusal:
            found.append(refusal)
    if found:
        raise Refusals(found)


def _seen_again(row: dict[str, Any], units: list[dict[str, str]]) -> list[Refusal]:
    """Refuse subjects that are held out in one session and pretrained on in another."""
    subjects: dict[str, set[str]] = {"held_out": set(), "seen": set()}
    for unit in units:
        role = unit.get("role", "both")
        kind = role if role == "held_out" else "seen" if role in ("both", "pretrain") else ""
        if kind:
            subjects[kind].add(unit.get("subject", unit["session"]))
    again = sorted(subjects["held_out"] & subjects["seen"])
    if not again:
        return []
    where, fix = f"sheet {row['sheet']}, column 'role'", "give all of their sessions held_out"
    found = f"{', '.join(again)} both held_out and pretrained on"
    return [Refusal(where, found, "a subject that is either seen or held out", fix)]


def check_recording(recording: Recording, settings: dict[str, Any]) -> None:
    """Refuse a recording that cannot be prepared with these settings, from its header alone."""
    check_length(recording)
    parts = settings["train_fraction"] + settings["validation_fraction"]
    if parts >= 1:
        raise Refusal(
            "key 'prepare', 'train_fraction' and 'validation_fraction'",
            f"together {parts:g}",
            "less than 1: the rest is the test part",
            "lower one of them",
        )
    if round(settings["window_s"] * recording.rate) > recording.samples:
        raise Refusal(
            f"file {recording.name}",
            f"the recording lasts {recording.duration:.2f} s, a window {settings['window_s']:g} s",
            "a recording that holds at least one window",
            "set a shorter window_s under prepare",
        )
    names = recording.channels["name"].tolist()
    absent = [target for target in settings["targets"] if target not in names]
    if absent:
        raise Refusal(
            "key 'prepare', 'targets'",
            f"no channel {absent[0]!r} in {recording.name}",
            f"one of {', '.join(names)}",
            "mend the name",
        )
    keys = recording.electrodes["name"].astype(str).str.strip("*# ")
    doubled = keys[keys.duplicated()].tolist()
    cortical = recording.channels["kind"].isin(CORTICAL_KINDS)
    known = recording.channels["name"].str.strip("*# ").isin(keys)
    if doubled or not (cortical & known).any():
        found = f"{', '.join(doubled[:5])} twice" if doubled else "no name of its channels"
        raise Refusal(
            f"electrodes of {recording.name}",
            found if len(keys) else "no table of electrode positions",
            f"one row per contact, named as the channels ({', '.join(names[:4])}, …)",
            "add *_electrodes.tsv (name, x, y, z), or name a table under 'electrodes' in the sheet",
        )


def check_length(recording: Recording) -> None:
    """Refuse a recording shorter than its sidecar says: it was cut off, or is a stand-in."""
    if recording.promised and recording.duration < LEAST_SHARE * recording.promised:
        raise Refusal(
            f"file {recording.name}",
            f"{recording.duration:.6g} s of signal",
            f"the {recording.promised:.6g} s that its sidecar *_ieeg.json tells",
            "copy the whole recording, or mend RecordingDuration",
        )


def describe(path: str | Path) -> Description:
    """Tell what reading a recording gives, in µV by its header; see `inputs.registry.describe`."""
    import numpy as np

    path, warnings, unit = Path(path), [], "V"
    recording = _read_leniently(path, warnings)
    try:
        check_length(recording)
    except Refusal as refusal:
        warnings.append(str(refusal).replace("\n", ";"))
    names = recording.channels["name"].tolist()
    cortical = recording.channels["kind"].isin(CORTICAL_KINDS)
    try:
        check_voltages(recording, recording.channels["name"][cortical].tolist())
    except Refusal as refusal:
        warnings.append(str(refusal).replace("\n", ";"))
        unit = refusal.fix.split()[1]
    total = np.zeros(len(names))
    for _, x in recording.chunks(names, 60.0):
        total += np.nansum(x, axis=1)
    labels = recording.events.drop(columns=["onset", "duration"], errors="ignore")
    counts = {
        column: labels[column].astype(str).value_counts().to_dict()
        for column in labels.columns
        if labels[column].nunique() <= 50
    }
    session = path.stem.removesuffix("_ieeg")
    sheet_row = {"session": session, "subject": session.split("_")[0], "path": str(path)}
    sheet_row |= {"units": "" if unit == "V" else unit, "frame": ""}
    return Description(
        modality="intracranial",
        format=path.suffix,
        version=None,
        shape=[recording.samples, len(names)],
        names=names,
        raw_mean=(total / recording.samples).tolist(),
        first_row=recording.read(names, 0, 1)[:, 0].tolist(),
        sheet_row=sheet_row,
        labels=counts,
        rate_hz=recording.rate,
        units="µV",
        span_s=recording.duration,
        warnings=warnings,
    )


def _read_leniently(path: Path, warnings: list[str]) -> Recording:
    """Read although frame or unit of the coordinates are not told; say so in `warnings`."""
    guesses: list[dict[str, str]] = [{}, {"frame": "not told"}]
    guesses += [{"frame": "not told", "coordinate_units": unit} for unit in TO_MILLIMETRE]
    spaces = spaces_of(path)
    guesses += [guess | {"space": spaces[0]} for guess in guesses] if spaces else []
    for guess in guesses:
        try:
            return read_recording({"path": str(path)} | guess)
        except Refusal as refusal:
            last = refusal
            warnings.append(str(refusal).replace("\n", ";"))
    raise last


def _implausible(recording: Recording, spread: float) -> Refusal:
    """Name the factor that would bring the spread near 30 µV."""
    import math

    power = min((3, 6, 9), key=lambda p: abs(math.log10(spread / 10**p / 30.0)))
    unit = {3: "mV", 6: "uV", 9: "nV"}[power]
    return Refusal(
        f"file {recording.name}",
        f"the channels vary by {spread:.3g} µV (median standard deviation)",
        f"at most {LARGEST_PLAUSIBLE_UV:g} µV in the brain; the values seem 1e{power} too large",
        f"write {unit} under 'units' in the sessions sheet, if the header states a wrong unit",
    )
