"""Read spikes, position and epochs of a session, on one clock in seconds."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from popflow.inputs import sorted_units
from popflow.inputs.axona import read_axona
from popflow.inputs.calcium import Traces, is_minian, is_trace_table, read_traces
from popflow.inputs.delimited import read_delimited
from popflow.inputs.description import Description, whole_file
from popflow.inputs.sheets import beside_session
from popflow.inputs.tracking import read_tracking
from popflow.runtime.refusal import Refusal

log = logging.getLogger(__name__)

LARGEST_STEP_BACK_S = 1.0
CLOCK_RATIO = 3.0
LONGEST_TRACK = 50.0
PLAUSIBLE_HZ = (1e-3, 1e3)
ACCEPTED = (
    "NWB, .npz, a phy or Neurosuite folder, .mat of CellExplorer or MatClust, .set of Axona, a "
    "table of spikes (unit, time), or calcium traces (Minian's zarr, a table of times and cells)"
)


@dataclass
class Session:
    """One session, times in seconds on one clock.

    Attributes
    ----------
    spikes : dict of str to (k,) float array
        Sorted spike times by unit id.
    position_t : (P,) float array
    position : (P, 1 or 2) float array
        Empty when the file has none.
    position_unit : str
    epochs : list of (start, stop, label)
        Sorted by start.
    trials : list of (start, stop, label)
        Sorted by start.
    traces : Traces or None
        Continuous signals of cells, instead of spikes.
    recorded : (k, 2) float array or None
        Intervals in which spikes were detected; None means always.
    format, version : str
    warnings : list of str
    """

    spikes: dict[str, np.ndarray]
    position_t: np.ndarray
    position: np.ndarray
    position_unit: str = ""
    epochs: list[tuple[float, float, str]] = field(default_factory=list)
    recorded: np.ndarray | None = None
    format: str = ""
    version: str = ""
    warnings: list[str] = field(default_factory=list)
    trials: list[tuple[float, float, str]] = field(default_factory=list)
    traces: Traces | None = None

    @property
    def units(self) -> list[str]:
        """Ids of the units or cells."""
        return list(self.spikes) if self.traces is None else self.traces.names

    @property
    def span(self) -> tuple[float, float]:
        """First and last time of the activity, in seconds."""
        if self.traces is not None:
            return float(self.traces.t[0]), float(self.traces.t[-1])
        filled = [times for times in self.spikes.values() if len(times)]
        return min(times[0] for times in filled), max(times[-1] for times in filled)


def read_session(path: str | Path, row: dict[str, str] | None = None) -> Session:
    """Read a session.

    Parameters
    ----------
    path : path
        NWB; ``.npz`` with `spike_times` (seconds), `spike_units`, and optionally `position_t`,
        `position` and `epoch_start`, `epoch_stop`, `epoch_label`; what `sorted_units` reads (a phy
        or Neurosuite folder, ``.mat`` of CellExplorer or MatClust, a table of spikes); ``.set`` of
        Axona, with the files beside it.
    row : dict, optional
        Of the sheet: `rate_hz` where spikes are sample numbers and for frames without times;
        `position`, `epochs`, `times` and `position_times`, files beside `path`;
        `position_rate_hz`, `position_unit`.

    Raises
    ------
    Refusal
        For a file that is absent, broken, without units, or whose times cannot be seconds.
    """
    path = Path(path)
    if not path.exists():
        raise Refusal(f"file {path}", "no such file", ACCEPTED, "mend the path")
    row = dict(row or {}) | beside_session(path, row or {})
    with whole_file(path):
        session = _read(path, row)
    if not session.units or not (session.traces or any(map(len, session.spikes.values()))):
        raise Refusal(f"file {path}", "no units", "spikes of sorted units", "export the units")
    _add_tables(session, row)
    _check(session, path)
    return session


def _read(path: Path, row: dict[str, str]) -> Session:
    """Choose the reader of a file or folder."""
    if path.is_dir():
        if is_minian(path):
            return _of_traces(read_traces(path, row), "Minian")
        if sorted_units.is_phy(path):
            return _of_units(sorted_units.read_phy(path, row), "phy")
        if sorted_units.is_neurosuite(path):
            return _of_units(sorted_units.read_neurosuite(path, row), "Neurosuite")
        raise Refusal(f"folder {path}", "no spikes that are known", ACCEPTED, "name a file in it")
    suffix = path.suffix.lower()
    if suffix == ".nwb":
        return _read_nwb(path, row)
    if suffix == ".npz":
        return _read_npz(path)
    if suffix == ".mat":
        return _of_units(sorted_units.read_mat(path, row), "MATLAB")
    if suffix == ".set":
        return _read_set(path, row)
    if suffix in (".csv", ".tsv"):
        if is_trace_table(_header(path)):
            return _of_traces(read_traces(path, row), "table of traces")
        return _of_units(sorted_units.read_spike_table(path, row), "table")
    found = f"an unknown kind of file ({path.suffix or 'no suffix'})"
    raise Refusal(f"file {path}", found, ACCEPTED, "convert it")


def _read_set(path: Path, row: dict[str, str]) -> Session:
    """Read a session of Axona; its own track only where the sheet names no other."""
    held = read_axona(path, "position" not in row)
    session = Session(held.spikes, held.t, held.xy, held.unit, warnings=held.notes)
    session.format, session.version = "Axona", held.version
    return session


def _of_units(units: sorted_units.Units, kind: str) -> Session:
    """Make a session of spikes alone."""
    spikes, notes = units
    sorted_spikes = {name: np.asarray(times, float) for name, times in spikes.items()}
    return Session(sorted_spikes, np.empty(0), np.empty((0, 2)), format=kind, warnings=notes)


def _of_traces(traces: Traces, kind: str) -> Session:
    """Make a session of calcium traces alone."""
    notes = list(traces.notes)
    return Session({}, np.empty(0), np.empty((0, 2)), format=kind, warnings=notes, traces=traces)


def _header(path: Path) -> list[str]:
    """Read the first line of a table."""
    with open(path, encoding="utf-8-sig") as file:
        return file.readline().rstrip("\r\n").split("," if path.suffix.lower() == ".csv" else "\t")


def _add_tables(session: Session, row: dict[str, str]) -> None:
    """Add the track and the epochs that the sheet names; they replace those of the file."""
    if "position" in row:
        track = read_tracking(row["position"], row)
        session.position_t, session.position, notes = track
        session.position_unit = row.get("position_unit", "")
        session.warnings += notes
    if "epochs" in row:
        session.epochs = _epoch_table(Path(row["epochs"]))


def _epoch_table(path: Path) -> list[tuple[float, float, str]]:
    """Read a table start, stop (s), label."""
    import pandas as pd

    accepted, fix = "a table start, stop (s), label", "mend 'epochs' in the sheet"
    if not path.is_file():
        raise Refusal(f"file {path}", "no such file", accepted, fix)
    rows = read_delimited(path, dtype=str, keep_default_na=False)
    if not {"start", "stop"} <= set(rows.columns):
        raise Refusal(f"file {path}", f"columns {', '.join(rows.columns)}", accepted, fix)
    edges = rows[["start", "stop"]].apply(pd.to_numeric, errors="coerce")
    wrong = edges.isna().any(axis=1)
    if wrong.any():
        line = int(wrong.to_numpy().argmax())
        found = f"{rows['start'][line]!r} to {rows['stop'][line]!r}"
        fix = "write both times as seconds, with a point"
        raise Refusal(f"file {path}, row {line + 2}", found, "two numbers", fix)
    labels = rows["label"] if "label" in rows else [""] * len(rows)
    return sorted(zip(edges["start"], edges["stop"], labels, strict=True))


def _read_nwb(path: Path, row: dict[str, str]) -> Session:
    from pynwb import NWBHDF5IO

    with NWBHDF5IO(str(path), "r", load_namespaces=True) as io:
        file = io.read()
        units = file.units
        if units is None or len(units) == 0:
            fix = "give a file with sorted units"
            raise Refusal(f"file {path}", "no units", "an NWB file with a units table", fix)
        if "spike_times" not in units.colnames:
            found = "a units table without the column spike_times, which means no units"
            raise Refusal(f"file {path}", found, "spike times per unit", "add spike_times")
        names, notes = sorted_units.numbered([str(name) for name in units.id[:]])
        spikes = {
            name: np.asarray(units.get_unit_spike_times(row), float)
            for row, name in enumerate(names)
        }
        total = len(units["spike_times"].target.data)
        if sum(map(len, spikes.values())) != total:
            found = f"{sum(map(len, spikes.values()))} of {total} spikes belong to a unit"
            fix = "export the units table again"
            raise Refusal(f"file {path}", found, "an index that covers all spike times", fix)
        recorded = _recorded(units)
        t, xy, unit = _position(file, path, row)
        epochs, trials = _intervals(file.epochs), _intervals(file.trials)
        version = str(file.nwb_version) if hasattr(file, "nwb_version") else ""
    return Session(spikes, t, xy, unit, epochs, recorded, "NWB", version, notes, trials)


def _recorded(units: Any) -> np.ndarray | None:
    """Give the intervals in which all units were recorded: the intersection of theirs."""
    if "obs_intervals" not in units.colnames:
        return None
    shared = np.array([[-np.inf, np.inf]])
    for row in range(len(units)):
        own = np.asarray(units["obs_intervals"][row], float).reshape(-1, 2)
        pairs = [(max(a, c), min(b, d)) for a, b in shared for c, d in own if max(a, c) < min(b, d)]
        shared = np.array(sorted(pairs)).reshape(-1, 2)
    return shared


def _position(file: Any, path: Path, row: dict[str, str]) -> tuple[np.ndarray, np.ndarray, str]:
    """Read the one series of places, or the one that the sheet names.

    Series in a Position container go before loose ones; angles and eyes are no places.
    """
    from pynwb.behavior import Position, SpatialSeries

    held: dict[str, Any] = {}
    loose: dict[str, Any] = {}
    modules = [module.data_interfaces for module in file.processing.values()]
    for item in [one for place in [file.acquisition, *modules] for one in place.values()]:
        if isinstance(item, Position):
            held |= item.spatial_series
        elif isinstance(item, SpatialSeries):
            loose[item.name] = item
    if "series" in row:
        found = held | loose
        if row["series"] not in found:
            known = ", ".join(found) or "none"
            fix = "mend 'series' in the sheet"
            raise Refusal(f"file {path}", f"no series {row['series']!r}", f"one of {known}", fix)
        return _series(found[row["series"]])
    places = {k: v for k, v in (held or loose).items() if not _is_angle(k, v)}
    if not places:
        return np.empty(0), np.empty((0, 2)), ""
    if len(places) > 1:
        fix = "write one under 'series' in a sheet of one row (path, series)"
        found = f"{len(places)} series of places"
        raise Refusal(f"file {path}", found, f"one of {', '.join(places)}", fix)
    return _series(next(iter(places.values())))


def _is_angle(name: str, series: Any) -> bool:
    """Tell series of head directions, angles and eyes by name or unit."""
    words = ("direction", "angle", "orientation", "eye", "pupil", "gaze")
    angular = str(series.unit).lower() in ("radians", "radian", "rad", "degrees", "degree", "deg")
    return angular or any(word in name.lower() for word in words)


def _series(one: Any) -> tuple[np.ndarray, np.ndarray, str]:
    data = np.asarray(one.data[:], float) * float(one.conversion) + float(one.offset or 0.0)
    data = data[:, None] if data.ndim == 1 else data
    if data.shape[0] <= 3 < data.shape[1]:
        data = data.T
    if one.timestamps is not None:
        t = np.asarray(one.timestamps[:], float)
    else:
        t = float(one.starting_time) + np.arange(len(data)) / float(one.rate)
    return t, data[:, :2], str(one.unit)


def _intervals(table: Any) -> list[tuple[float, float, str]]:
    """Give rows of a table of intervals; the label is in `label`, `tags`, or the first text."""
    if table is None or not len(table):
        return []
    frame = table.to_dataframe()
    named = [name for name in ("label", "tags", "type", "condition") if name in frame]
    texts = [name for name in frame if frame[name].map(lambda value: isinstance(value, str)).all()]
    labels = frame[[*named, *texts][0]] if named or texts else [""] * len(frame)
    rows = [
        (float(start), float(stop), _label(label))
        for start, stop, label in zip(frame["start_time"], frame["stop_time"], labels, strict=True)
    ]
    return sorted(rows)


def _label(label: Any) -> str:
    """Write a label, or a list of tags, as text."""
    if isinstance(label, str) or not np.iterable(label):
        return str(label)
    return ",".join(map(str, label))


def _read_npz(path: Path) -> Session:
    with np.load(path, allow_pickle=False) as stored:
        held = {name: stored[name] for name in stored.files}
    if {"t", "index"} <= set(held):
        session = _of_units(sorted_units.read_pynapple(held), "pynapple")
        if {"start", "end"} <= set(held):
            support = np.column_stack([np.ravel(held["start"]), np.ravel(held["end"])])
            session.recorded = support.astype(float)
        return session
    absent = [name for name in ("spike_times", "spike_units") if name not in held]
    if absent:
        accepted = "arrays spike_times (seconds) and spike_units, of equal length"
        found = f"no array {', '.join(absent)} (arrays: {', '.join(sorted(held)) or 'none'})"
        raise Refusal(f"file {path}", found, accepted, "save them under these names")
    times, units = (np.squeeze(held[name]) for name in ("spike_times", "spike_units"))
    times, units = np.atleast_1d(times).astype(float), np.atleast_1d(units)
    if not times.size:
        raise Refusal(f"file {path}", "no units", "spike times", "give a file with spikes")
    if times.shape != units.shape:
        found = f"spike_times of shape {times.shape}, spike_units of {np.shape(units)}"
        raise Refusal(f"file {path}", found, "one unit per spike", "save them again")
    spikes = {str(name): times[units == name] for name in np.unique(units)}
    xy = held.get("position", np.empty((0, 2))).astype(float)
    xy = xy[:, None] if xy.ndim == 1 else xy
    xy = xy.T if xy.ndim == 2 and xy.shape[0] <= 3 < xy.shape[1] else xy
    epochs = []
    if "epoch_start" in held:
        labels = held.get("epoch_label", np.array([""] * len(held["epoch_start"])))
        sizes = [np.size(held.get(name, [])) for name in ("epoch_start", "epoch_stop")]
        if len({*sizes, np.size(labels)}) > 1:
            found = f"{sizes[0]} epoch_start, {sizes[1]} epoch_stop, {np.size(labels)} epoch_label"
            raise Refusal(f"file {path}", found, "as many of each", "save them again")
        epochs = sorted(
            (float(a), float(b), str(c))
            for a, b, c in zip(held["epoch_start"], held["epoch_stop"], labels, strict=True)
        )
    t = held.get("position_t", np.empty(0)).astype(float)
    return Session(spikes, t, xy, str(held.get("position_unit", "")), epochs, None, "npz", "")


def _check_shapes(session: Session, path: Path) -> None:
    """Refuse a track that does not fit its clock, and epochs that end before they begin."""
    t, xy = session.position_t, session.position
    if xy.size and (xy.ndim != 2 or t.shape != (len(xy),) or xy.shape[1] > 2):
        found = f"position of shape {xy.shape} at {t.size} times"
        accepted = "one time per row of x or x, y"
        raise Refusal(f"file {path}", found, accepted, "save position_t and position again")
    if t.size and not np.isfinite(t).all():
        found = f"{int((~np.isfinite(t)).sum())} times of the track are NaN or infinite"
        raise Refusal(f"file {path}", found, "finite seconds", "drop these frames")
    for kind, intervals in (("epoch", session.epochs), ("trial", session.trials)):
        for start, stop, label in intervals:
            if not (np.isfinite(start) and np.isfinite(stop) and start < stop):
                found = f"the {kind} {label!r} lasts from {start:g} to {stop:g} s"
                raise Refusal(f"file {path}", found, "a start before a stop", f"mend the {kind}s")


def _check(session: Session, path: Path) -> None:
    """Sort small steps back, and stop at what cannot be seconds on one clock."""
    _check_shapes(session, path)
    for name, times in session.spikes.items():
        if not np.isfinite(times).all():
            found = f"unit {name} holds spike times that are NaN or infinite"
            raise Refusal(f"file {path}", found, "finite seconds", "drop them")
        steps = np.diff(times)
        if len(steps) and steps.min() < -LARGEST_STEP_BACK_S:
            place = int(np.argmin(steps)) + 1
            found = f"unit {name}, spike {place}: the clock steps back by {-steps.min():.3f} s"
            fix = "split the file where the clock restarts, or put the parts on one clock"
            raise Refusal(f"file {path}", found, "times on one clock", fix)
        if len(steps) and steps.min() < 0:
            session.warnings.append(f"unit {name}: spikes out of order were sorted")
            session.spikes[name] = np.sort(times)
        repeated = int((np.diff(session.spikes[name]) == 0).sum())
        if repeated:
            session.warnings.append(f"unit {name}: {repeated} repeated spike times, kept")
    _check_clock(session, path)


def _check_clock(session: Session, path: Path) -> None:
    """Compare spikes with the other clocks, and their rates with what neurons do."""
    if session.traces is None:
        _check_rates(session, path)
    _check_overlap(session, path)


def _check_rates(session: Session, path: Path) -> None:
    """Stop at spike times that are no seconds, by the other clocks and by what neurons do."""
    filled = [times for times in session.spikes.values() if len(times) > 1]
    if not filled:
        return
    last = max(times[-1] for times in filled)
    clocks = [stop for _, stop, _ in session.epochs]
    clocks += [float(session.position_t[-1])] if len(session.position_t) else []
    rates = [len(times) / max(times[-1] - times[0], 1e-9) for times in filled]
    rate = float(np.median(rates))
    ratio = last / max(clocks) if clocks and max(clocks) > 0 else 1.0
    if len(session.position_t) and last > 0 and session.position_t[-1] > LONGEST_TRACK * last:
        found = f"the track ends at {session.position_t[-1]:.6g}, the last spike at {last:.6g}"
        accepted = "a track and spikes on one clock, in seconds"
        fix = "divide the times of the track by their rate (milliseconds: 1000)"
        raise Refusal(f"file {path}", found, accepted, fix)
    if ratio <= CLOCK_RATIO and PLAUSIBLE_HZ[0] <= rate <= PLAUSIBLE_HZ[1]:
        return
    guess = "samples" if ratio > 5000 or rate < 1e-3 else "milliseconds"
    found = (
        f"the last spike is at {last:.6g}, the last position or epoch at "
        f"{max(clocks) if clocks else float('nan'):.6g}, the median rate {rate:.3g} per second: "
        f"spike times look like {guess}"
    )
    raise Refusal(f"file {path}", found, "spike times in seconds", "divide them by their rate")


def _check_overlap(session: Session, path: Path) -> None:
    """Refuse a track or epochs that share no time with the activity, or are far longer."""
    first, last = session.span
    t, what = session.position_t, "spikes" if session.traces is None else "traces"
    fix = "bring all times onto one clock, in seconds (sheet: times, position_times)"
    if t.size and (t[-1] < first or t[0] > last):
        found = f"{what} from {first:.6g} to {last:.6g}, the track from {t[0]:.6g} to {t[-1]:.6g}"
        raise Refusal(f"file {path}", found, "clocks that overlap", fix)
    if session.epochs and not any(
        start < last and stop > first for start, stop, _ in session.epochs
    ):
        start, stop = session.epochs[0][0], session.epochs[-1][1]
        found = f"{what} from {first:.6g} to {last:.6g}, epochs from {start:.6g} to {stop:.6g}"
        raise Refusal(f"file {path}", found, "clocks that overlap", fix)
    longest = max((stop for _, stop, _ in session.epochs), default=0.0)
    if last > 0 and longest > LONGEST_TRACK * last:
        found = f"an epoch ends at {longest:.6g}, the last of the {what} at {last:.6g}"
        raise Refusal(
            f"file {path}", found, "epochs in seconds", "divide them (milliseconds: 1000)"
        )


def describe(path: str | Path, row: dict[str, str] | None = None) -> Description:
    """Tell what reading a session gives; see `inputs.registry.describe`."""
    session, warnings = _read_without_rate(path, row or {})
    first, last = session.span
    if session.traces is None:
        times = session.spikes.values()
        shape = [sum(len(one) for one in times), len(times)]
        means = [len(one) / (last - first) if last > first else None for one in times]
        row_one = [float(one[0]) if len(one) else None for one in times]
        units = {"spikes": "s"}
    else:
        values = session.traces.values
        shape, units = list(values.shape), {"traces": "as stored"}
        means = [float(np.nanmean(v)) if np.isfinite(v).any() else None for v in values.T]
        row_one = [float(v) if np.isfinite(v) else None for v in values[0]]
    return Description(
        modality="placecells",
        format=session.format,
        version=session.version or None,
        shape=shape,
        names=session.units,
        raw_mean=means,
        first_row=row_one,
        sheet_row={"path": str(path)},
        labels=sorted({label for _, _, label in session.epochs}) or None,
        rate_hz=None if warnings else _rate_of_session(session),
        units=units | {"position": session.position_unit or None},
        span_s=None if warnings else float(last - first),
        warnings=[*warnings, *session.warnings],
    )


def _read_without_rate(path: str | Path, row: dict[str, str]) -> tuple[Session, list[str]]:
    """Read a session; traces without times are read at one frame a second, and told so."""
    try:
        return read_session(path, row), []
    except Refusal as refusal:
        if "frames without times" not in str(refusal):
            raise
        return read_session(path, row | {"rate_hz": "1"}), [f"{refusal.found}: {refusal.fix}"]


def _rate_of_session(session: Session) -> float | None:
    t = session.position_t if session.traces is None else session.traces.t
    return float(1 / np.median(np.diff(t))) if len(t) > 1 else None


def check_source(
    row: dict[str, Any], units: list[dict[str, str]], settings: dict[str, Any]
) -> None:
    """Look for mistakes in a session's files without binning them."""
    unit = units[0] if units else {"path": str(row["source"])}
    session, where = read_session(unit["path"], unit), f"file {unit['path']}, epochs"
    labels = sorted({label for _, _, label in session.epochs})
    absent = [label for label in settings["epochs"] if label not in labels]
    if absent and session.epochs:
        known, fix = ", ".join(labels), f"mend prepare.{row['dataset']}.epochs"
        raise Refusal(where, f"none is called {', '.join(absent)}", f"one of {known}", fix)
    lengths = [stop - start for start, stop, _ in session.epochs]
    if lengths and max(lengths) < settings["bin_s"]:
        found = f"the longest epoch lasts {max(lengths):g} s, a bin {settings['bin_s']:g} s"
        raise Refusal(where, found, "an epoch of one bin or more", "shorten bin_s")
