"""Open the voltages of a recording, whatever wrote it; samples stay on disk where they can.

mne reads the formats of recording systems. Arrays (MATLAB, npz, HDF5 of the Brain Treebank) tell
neither rate nor unit, so the sessions sheet must.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.inputs.description import rate_of, whole_file
from popflow.inputs.matlab import list_mat, load_mat
from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

log = logging.getLogger(__name__)

ARRAYS = (".mat", ".npz", ".h5")
ACCEPTED = (
    "BrainVision, EDF, BDF, EEGLAB, FIF, Persyst, Neuralynx, Nihon Kohden, NWB; or an array "
    "(.mat, .npz, Brain Treebank .h5) with 'rate' and 'units' in the sessions sheet"
)
IRREGULAR = 0.01
_MNE_KINDS = {
    "seeg": "SEEG",
    "ecog": "ECOG",
    "dbs": "DBS",
    "eeg": "",
    "misc": "MISC",
    "bio": "MISC",
}


@dataclass
class Signals:
    """Voltages on disk, and what the file itself tells of them.

    Attributes
    ----------
    names : list of str
    rate : float
        Hz.
    samples : int
    read : callable
        ``read(names, start, stop)`` gives float64 (channels, samples) in the file's unit.
    kinds : list of str
        BIDS types; empty where the file does not tell.
    bads : list of str
    line : float or None
        Line frequency, Hz.
    marks : list of (float, float, str)
        Onset and duration in s, description.
    electrodes : DataFrame or None
        name, x, y, z, region, where the file holds them.
    unit : str or None
        Of `read`; None where only the user can tell.
    """

    names: list[str]
    rate: float
    samples: int
    read: "Callable[[list[str], int, int], np.ndarray]"
    kinds: list[str] = field(default_factory=list)
    bads: list[str] = field(default_factory=list)
    line: float | None = None
    marks: list[tuple[float, float, str]] = field(default_factory=list)
    electrodes: "pd.DataFrame | None" = None
    unit: str | None = "V"

    def __post_init__(self):
        self.kinds = self.kinds or [""] * len(self.names)


def open_signals(path: Path, row: dict[str, str]) -> Signals:
    """Open a recording.

    Parameters
    ----------
    path : Path
        A file, or a folder of Neuralynx channels.
    row : dict
        Of the sessions sheet; `rate`, `field`, `names`, `series` where a format needs them.

    Raises
    ------
    Refusal
        When it cannot be read, or holds no sample.
    """
    suffix = path.suffix.lower()
    openers = {".nwb": _nwb, ".mat": _mat, ".npz": _npz, ".h5": _treebank, ".ncs": _neuralynx}
    if not path.exists():
        raise Refusal(f"file {path}", "no such file", ACCEPTED, "mend the path in the sheet")
    fix = "mend the path, put its companion files beside it, or export it again"
    with whole_file(path, ACCEPTED, fix):
        if path.is_dir():
            signals = _neuralynx(path, row)
        else:
            signals = openers.get(suffix, _mne)(path, row)
    if not signals.samples or not signals.names:
        found = f"{len(signals.names)} channels and {signals.samples} samples"
        raise Refusal(f"file {path}", found, "voltages", "copy the whole recording")
    if len(set(signals.names)) < len(signals.names):
        doubled = sorted({n for n in signals.names if signals.names.count(n) > 1})
        found = f"channels of the same name: {', '.join(doubled[:5])}"
        raise Refusal(f"file {path}", found, "every name once", "rename them in the file")
    signals.read = _guarded(signals.read, path)
    # A file that was cut off often opens, and fails only where its last samples should be.
    signals.read(signals.names[:1], signals.samples - 1, signals.samples)
    return signals


def _guarded(read: Callable, path: Path) -> Callable:
    """Refuse the file when reading samples fails, or gives fewer than asked for."""

    def guarded(names: list[str], start: int, stop: int) -> "np.ndarray":
        with whole_file(path):
            block = read(names, start, stop)
        if block.shape != (len(names), stop - start):
            found = f"{block.shape[-1]} of {stop - start} samples from sample {start} on"
            raise Refusal(f"file {path}", found, "a whole recording", "copy it again")
        return block

    return guarded


def _check_edf(path: Path) -> tuple[dict[str, float], bool]:
    """Hold an EDF or BDF file against its header; tell units, and whether rates differ.

    mne reads what is left of a file that was cut off, resamples channels of other rates, closes
    the gaps of EDF+D, and takes unknown units for volts.

    Returns
    -------
    factors : dict of str to float
        By channel, what makes volts of the numbers that mne gives; 0 for what is no voltage.
    mixed : bool

    Raises
    ------
    Refusal
        For a file that is cut off or has gaps.
    """
    with open(path, "rb") as file:
        head = file.read(256)
        count = int(head[252:256])
        fields = file.read(256 * count).decode("latin-1")
    width = 3 if path.suffix.lower() == ".bdf" else 2
    labels = [fields[16 * n : 16 * n + 16].strip() for n in range(count)]
    units = [fields[96 * count + 8 * n : 96 * count + 8 * n + 8].strip() for n in range(count)]
    each = [int(fields[216 * count + 8 * n : 216 * count + 8 * n + 8]) for n in range(count)]
    records, size = int(head[236:244]), path.stat().st_size
    expected = int(head[184:192]) + records * sum(each) * width
    if records >= 0 and size < expected:
        found = f"it is cut off: {size} of {expected} bytes"
        raise Refusal(f"file {path}", found, "a whole recording", "copy it again")
    data = [n for n, label in enumerate(labels) if not label.endswith("Annotations")]
    mixed = len({each[n] for n in data}) > 1
    if mixed:
        seconds = float(head[244:252])
        rates = ", ".join(f"{labels[n]} {each[n] / seconds:g} Hz" for n in data[:6])
        log.warning("%s: channels of several rates are resampled to the highest (%s)", path, rates)
    if head[192:236].strip().endswith(b"+D"):
        _check_gaps(path, head, each, labels, width)
    known = {n: EDF_UNITS.get(units[n].lower(), 0.0) for n in data}
    return {labels[n]: known[n] / MNE_UNITS.get(units[n], 1.0) for n in data}, mixed


def _check_gaps(path: Path, head: bytes, each: list[int], labels: list[str], width: int) -> None:
    """Refuse a discontinuous file whose records do not follow each other."""
    import numpy as np

    place = next((n for n, label in enumerate(labels) if label.endswith("Annotations")), None)
    records, seconds = int(head[236:244]), float(head[244:252])
    onsets = []
    with open(path, "rb") as file:
        for record in range(records if place is not None else 0):
            start = int(head[184:192]) + (record * sum(each) + sum(each[:place])) * width
            file.seek(start)
            onsets.append(float(file.read(32).split(b"\x14")[0]))
    steps = np.diff(onsets)
    gaps = np.flatnonzero(np.abs(steps - seconds) > 1e-3 * seconds)
    if len(gaps) or place is None:
        found = "EDF+D without times of its records"
        if len(gaps):
            found = f"{len(gaps)} gaps, the first one after {onsets[gaps[0]] + seconds:g} s"
        fix = "export every stretch to a file of its own"
        raise Refusal(f"file {path}", found, "a recording without gaps", fix)


#: Volts per unit of an EDF header, in lower case; 0 stands for what is no voltage.
EDF_UNITS = {"uv": 1e-6, "µv": 1e-6, "μv": 1e-6, "mv": 1e-3, "v": 1.0, "nv": 1e-9, "": 1.0}
#: Those that mne scales, spelled so and not otherwise.
MNE_UNITS = {"uV": 1e-6, "µV": 1e-6, "mV": 1e-3}


def _mne(path: Path, row: dict[str, str]) -> Signals:
    import mne

    if path.suffix.lower() not in (".edf", ".bdf"):
        return _from_mne(mne.io.read_raw(path, preload=False, verbose="ERROR"))
    units, mixed = _check_edf(path)
    # Resampling looks at what lies around: piece by piece it would depend on the pieces.
    raw = mne.io.read_raw(path, preload=mixed, verbose="ERROR")
    signals = _from_mne(raw)
    read = signals.read
    for place, name in enumerate(signals.names):
        if units.get(name) == 0.0:
            # Temperatures and the like are no voltages; they may be behavioural targets.
            signals.kinds[place] = "MISC"
    factors = {name: units.get(name) or 1.0 for name in signals.names}

    def scaled(names: list[str], start: int, stop: int) -> "np.ndarray":
        import numpy as np

        return read(names, start, stop) * np.array([[factors[name]] for name in names])

    signals.read = scaled
    return signals


def _neuralynx(path: Path, row: dict[str, str]) -> Signals:
    """Read one .ncs file, or all of a folder as the channels of one recording."""
    import mne

    folder, wanted = (path, None) if path.is_dir() else (path.parent, path.stem)
    signals = _from_mne(mne.io.read_raw_neuralynx(folder, preload=False, verbose="ERROR"))
    if wanted is not None:
        place = signals.names.index(wanted)
        signals.names, signals.kinds = [wanted], [signals.kinds[place]]
    return signals


def _from_mne(raw: Any) -> Signals:
    def read(names: list[str], start: int, stop: int) -> "np.ndarray":
        return raw.get_data(picks=names, start=start, stop=stop)

    marks = raw.annotations
    return Signals(
        names=list(raw.ch_names),
        rate=float(raw.info["sfreq"]),
        samples=int(raw.n_times),
        read=read,
        kinds=[_MNE_KINDS.get(kind, kind.upper()) for kind in raw.get_channel_types()],
        bads=list(raw.info["bads"]),
        line=raw.info["line_freq"],
        marks=[
            (float(onset) - raw.first_time, float(duration), str(text))
            for onset, duration, text in zip(
                marks.onset, marks.duration, marks.description, strict=True
            )
        ],
    )


def _nwb(path: Path, row: dict[str, str]) -> Signals:
    """Read an ElectricalSeries and its electrodes; the file stays open while samples are read."""
    import numpy as np
    from pynwb import NWBHDF5IO

    file = NWBHDF5IO(str(path), "r", load_namespaces=True).read()
    series = _electrical_series(file, path, row)
    data = series.data
    table = series.electrodes.to_dataframe() if series.electrodes is not None else None
    electrodes = _nwb_electrodes(table) if table is not None else None
    count = data.shape[1] if len(data.shape) > 1 else 1
    names = [f"channel{i}" for i in range(count)]
    if electrodes is not None and len(electrodes) == count:
        own = electrodes["name"].tolist()
        if len(set(own)) == count and all(name.strip() for name in own):
            names = own
        else:
            # Blank or repeated labels name nothing; the order of the columns does.
            electrodes["name"] = names
    scale = np.full(count, float(series.conversion))
    if series.channel_conversion is not None:
        scale = scale * np.asarray(series.channel_conversion[:], float)
    offset = float(getattr(series, "offset", 0.0) or 0.0)

    def read(wanted: list[str], start: int, stop: int) -> "np.ndarray":
        block = np.asarray(data[start:stop], float).reshape(-1, count)
        columns = [names.index(name) for name in wanted]
        return (block[:, columns] * scale[columns] + offset).T

    return Signals(
        names=names,
        rate=_nwb_rate(series, path),
        samples=int(data.shape[0]),
        read=read,
        electrodes=electrodes,
        unit={"volts": "V", "V": "V"}.get(str(series.unit), None),
    )


def _electrical_series(file: Any, path: Path, row: dict[str, str]) -> Any:
    """Find the one series of voltages, or the one that the sheet names."""
    from pynwb.ecephys import LFP, ElectricalSeries

    found: dict[str, Any] = {}
    modules = [module.data_interfaces for module in file.processing.values()]
    for place in [file.acquisition, *modules]:
        for item in place.values():
            many = item.electrical_series.values() if isinstance(item, LFP) else [item]
            found |= {one.name: one for one in many if isinstance(one, ElectricalSeries)}
    names = ", ".join(found) or "none"
    if not found:
        raise Refusal(
            f"file {path}",
            "neither sorted units nor an ElectricalSeries",
            "an NWB file with units (place cells) or voltages (intracranial)",
            "export it with its data",
        )
    if "series" in row and row["series"] not in found:
        found_text = f"no ElectricalSeries {row['series']!r}"
        raise Refusal(f"file {path}", found_text, f"one of {names}", "mend 'series' in the sheet")
    if "series" not in row and len(found) > 1:
        fix = "write one under 'series' in the sessions sheet"
        raise Refusal(f"file {path}", f"{len(found)} ElectricalSeries", f"one of {names}", fix)
    return found[row.get("series", next(iter(found)))]


def _nwb_electrodes(table: "pd.DataFrame") -> "pd.DataFrame":
    """Take names, places and regions from the columns that labs use."""
    import pandas as pd

    named = next((c for c in ("label", "channel_name", "name") if c in table), None)
    names = table[named] if named else pd.Series(table.index, index=table.index)
    out = pd.DataFrame({"name": names.astype(str).to_numpy()})
    for axis in "xyz":
        out[axis] = pd.to_numeric(table[axis]).to_numpy() if axis in table else float("nan")
    out["region"] = table["location"].astype(str).to_numpy() if "location" in table else "unknown"
    return out


def _nwb_rate(series: Any, path: Path) -> float:
    import numpy as np

    if series.rate:
        return float(series.rate)
    steps = np.diff(np.asarray(series.timestamps[:], float))
    step = float(np.median(steps))
    odd = np.abs(steps - step) > IRREGULAR * step
    if odd.any():
        found = f"{int(odd.sum())} steps of its time stamps differ from {step:.6g} s"
        fix = "split the recording at its gaps, one session each"
        raise Refusal(f"file {path}", found, "one regular clock", fix)
    return 1.0 / step


def _mat(path: Path, row: dict[str, str]) -> Signals:
    """Read an array of a MATLAB file, v5 through scipy and v7.3 through HDF5."""
    import h5py
    import numpy as np

    if h5py.is_hdf5(path):
        with h5py.File(path) as file:
            shapes = {k: v.shape[::-1] for k, v in file.items() if isinstance(v, h5py.Dataset)}
            name = _field(path, shapes, row)
            values = np.asarray(file[name]).T
    else:
        name = _field(path, list_mat(path), row)
        values = load_mat(path, [name])[name]
    return _array(path, values, row)


def _npz(path: Path, row: dict[str, str]) -> Signals:
    import numpy as np

    with np.load(path, allow_pickle=False) as stored:
        held = {key: stored[key] for key in stored.files}
    if "field" not in row and "Y" in held and {"fs", "samplerate"} & set(held):
        return _plain(path, held, row)
    name = _field(path, {key: value.shape for key, value in held.items()}, row)
    return _array(path, held[name], row)


def _plain(path: Path, held: dict[str, "np.ndarray"], row: dict[str, str]) -> Signals:
    """Read Y (samples, channels) with fs (or samplerate), coords (or R) and names.

    The unit of Y stands in the sheet, since the file does not tell it.
    """
    import numpy as np
    import pandas as pd

    values = held["Y"]
    if values.ndim != 2 or not np.issubdtype(values.dtype, np.number):
        found = f"Y of shape {values.shape} and {values.dtype}"
        raise Refusal(f"file {path}", found, "numbers, samples by channels", "save it again")
    rate = float(np.ravel(held.get("fs", held.get("samplerate")))[0])
    names = [str(name) for name in np.ravel(held["names"])] if "names" in held else None
    names = _names(path, row, values.shape[1], names)
    places = held.get("coords", held.get("R"))
    electrodes = None
    if places is not None and places.shape == (len(names), 3):
        electrodes = pd.DataFrame(places, columns=list("xyz")).assign(region="unknown")
        electrodes.insert(0, "name", names)

    def read(wanted: list[str], start: int, stop: int) -> "np.ndarray":
        return np.asarray(values[start:stop, [names.index(n) for n in wanted]], float).T

    return Signals(names, rate, len(values), read, electrodes=electrodes, unit=None)


def _field(path: Path, shapes: dict[str, tuple[int, ...]], row: dict[str, str]) -> str:
    """Choose the array: the one named in the sheet, or the only one of two dimensions."""
    tables = [name for name, shape in shapes.items() if len(shape) == 2 and min(shape) > 1]
    name = row.get("field") or (tables[0] if len(tables) == 1 else "")
    if name not in shapes:
        listed = ", ".join(f"{key} {list(shape)}" for key, shape in shapes.items()) or "none"
        found = f"no array {name!r}" if name else "no single array of channels by samples"
        fix = "write its name under 'field' in the sessions sheet"
        raise Refusal(f"file {path}", found, f"one of {listed}", fix)
    return name


def _array(path: Path, values: "np.ndarray", row: dict[str, str]) -> Signals:
    """Make signals of an array; time is its longer side."""
    import numpy as np

    if not np.issubdtype(values.dtype, np.number) or values.ndim not in (1, 2):
        found = f"an array of {values.dtype} and {values.ndim} dimensions"
        raise Refusal(f"file {path}", found, "numbers, channels by samples", "name another field")
    values = np.atleast_2d(values)
    if values.shape[0] > values.shape[1]:
        values = values.T
    names = _names(path, row, len(values))

    def read(wanted: list[str], start: int, stop: int) -> "np.ndarray":
        return np.asarray(values[[names.index(n) for n in wanted], start:stop], float)

    return Signals(names, _rate(path, row), values.shape[1], read, unit=None)


def _treebank(path: Path, row: dict[str, str]) -> Signals:
    """Read an HDF5 file of the Brain Treebank: ``data/electrode_<n>``, one array per channel."""
    import h5py
    import numpy as np

    with h5py.File(path) as file:
        group = file.get("data")
        held = [key for key in group or {} if key.startswith("electrode_")]
        if not held:
            found = f"no data/electrode_<n> (groups: {', '.join(file)})"
            raise Refusal(f"file {path}", found, "a recording of the Brain Treebank", "export it")
        held.sort(key=lambda key: int(key.removeprefix("electrode_")))
        samples = len(group[held[0]])
    names = _names(path, row, len(held), held)

    def read(wanted: list[str], start: int, stop: int) -> "np.ndarray":
        with h5py.File(path) as file:
            places = [held[names.index(name)] for name in wanted]
            return np.stack([np.asarray(file["data"][p][start:stop], float) for p in places])

    return Signals(names, _rate(path, row), samples, read, unit=None)


def _rate(path: Path, row: dict[str, str]) -> float:
    rate = rate_of(row.get("rate"))
    if rate is None:
        found = f"its sampling rate is {row.get('rate', 'not told')!r}"
        fix = "write it under 'rate' in the sessions sheet"
        raise Refusal(f"file {path}", found, "a number of Hz", fix)
    return rate


def _names(path: Path, row: dict[str, str], count: int, fallback: list[str] | None = None):
    """Read the channels' names: a JSON list or a text file with one per line."""
    if "names" not in row:
        return fallback or [f"channel{i}" for i in range(count)]
    file = path.parent / row["names"]
    with whole_file(file):
        text = file.read_text(encoding="utf-8-sig")
        names = json.loads(text) if file.suffix == ".json" else text.split()
    if len(names) != count or len(set(names)) != count:
        found = f"{len(names)} names ({len(set(names))} different) for {count} channels"
        raise Refusal(f"file {file}", found, "one name per channel", "mend the list")
    return [str(name) for name in names]
