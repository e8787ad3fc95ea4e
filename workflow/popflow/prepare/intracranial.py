"""From voltages to the feature store: notch, re-reference, windows, frozen encoder.

The recording is streamed: one chunk of voltages and one chunk of vectors are in memory.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from popflow.inputs.recordings import (
    CORTICAL_KINDS,
    Recording,
    check_recording,
    check_voltages,
)
from popflow.prepare.encoders import Encoder, Spectrogram, temporal_encoder
from popflow.prepare.montage import Reference, lip_coordinates, parse_contact, rereference
from popflow.runtime.files import atomic, read_json, read_tsv, write_json, write_tsv
from popflow.runtime.fingerprints import file_fingerprint
from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

NOTCH_QUALITY = 30.0


@dataclass
class Session:
    """A prepared recording.

    Attributes
    ----------
    name, subject, role : str
        `role` is ``both``, ``pretrain``, ``decode`` or ``held_out`` (as decode, and its subject is
        never pretrained on).
    features : ndarray
        (windows, channels, dim), memory-mapped; not standardised.
    windows : DataFrame
        index, start_sample, t_s, part (train, validation, test, purged), target columns.
    event_features : ndarray
        (events, channels, dim), memory-mapped.
    event_spectrogram : ndarray
        (events, channels, entries), memory-mapped; for the linear reference.
    events : DataFrame
        The events that have features: event, sample, t_s, part and the label columns.
    electrodes : DataFrame
        The kept channels: name, x, y, z, frame, region, shaft, contact, in the order of features.
    lip : ndarray
        (channels, 3), coordinates as PopT codes them.
    meta : dict
        Encoder, window_s, stride_s, rate, notch, reference, versions, content hash.
    """

    name: str
    subject: str
    role: str
    features: np.ndarray
    windows: "pd.DataFrame"
    event_features: np.ndarray
    event_spectrogram: np.ndarray
    events: "pd.DataFrame"
    electrodes: "pd.DataFrame"
    lip: np.ndarray
    meta: dict[str, Any]

    def rows(self, part: str) -> np.ndarray:
        """Give the indices of the windows of a part, in order of time."""
        return np.flatnonzero(self.windows["part"].to_numpy() == part)


def prepare_session(
    recording: Recording, row: dict[str, str], settings: dict[str, Any], folder: str | Path
) -> None:
    """Write the feature store of a recording.

    Parameters
    ----------
    recording : Recording
    row : dict of str to str
        Its row of the sessions sheet: `session` and, optionally, `subject`, `role`.
    settings : dict
        As ``prepare-intracranial.schema.yaml`` describes.
    folder : path
        Gets features.npy, windows.tsv, event_features.npy, event_spectrogram.npy, events.tsv,
        electrodes.tsv, qc.tsv, meta.json.

    Raises
    ------
    Refusal
        On a recording that cannot be used; see the messages.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    width = round(settings["window_s"] * recording.rate)
    stride = round(settings["stride_s"] * recording.rate)
    check_recording(recording, settings)
    electrodes, reference, names = _choose_channels(recording, settings)
    encoder = temporal_encoder(settings["encoder"], recording.rate, width / recording.rate)
    windows = _windows(recording, settings, width, stride)
    events = _events(recording, settings, width)
    usable = events[events["reason_dropped"] == ""]
    counts = len(windows), len(usable)
    size = sum(counts) * len(reference.kept) * encoder.dim * np.dtype(settings["dtype"]).itemsize
    log.info("%d windows, %d events, %.1f MB of features", *counts, size / 1e6)
    line, notches = _notch(recording, settings)
    stream = _referenced(recording, names, reference, notches, settings["chunk_s"])
    starts, at_events = windows["start_sample"].to_numpy(), usable["sample"].to_numpy()
    spectrogram = Spectrogram(recording.rate, width / recording.rate)
    jobs = [
        EncodingJob(folder / "features.npy", starts, encoder),
        EncodingJob(folder / "event_features.npy", at_events, encoder),
        EncodingJob(folder / "event_spectrogram.npy", at_events, spectrogram),
    ]
    _encode_all(stream, jobs, len(reference.kept), width, settings["dtype"])
    for target in settings["targets"]:
        windows[f"target_{target}"] = _target(recording, target, starts, width)
    write_tsv(windows, folder / "windows.tsv")
    write_tsv(events, folder / "events.tsv")
    write_tsv(electrodes, folder / "electrodes.tsv")
    qc = report(recording, electrodes, windows, events, width)
    write_tsv(qc, folder / "qc.tsv")
    files = [job.path.name for job in jobs] + ["windows.tsv", "events.tsv", "electrodes.tsv"]
    lengths = {"window_s": width / recording.rate, "stride_s": stride / recording.rate}
    meta = _meta(recording, row, encoder, lengths)
    meta |= {"notch_hz": line, "reference": settings["reference"]}
    meta["content"] = {file: file_fingerprint(folder / file) for file in files}
    write_json(meta, folder / "meta.json")


def _meta(
    recording: Recording, row: dict[str, str], encoder: Encoder, lengths: dict[str, float]
) -> dict[str, Any]:
    """Describe a store: whose it is, with which encoder and versions it was made."""
    return lengths | {
        "session": row["session"],
        "subject": row.get("subject", row["session"]),
        "role": row.get("role", "both"),
        "encoder": {"name": encoder.name, "digest": encoder.digest, "dim": encoder.dim},
        "rate": recording.rate,
        "duration_s": recording.duration,
        "versions": {name: metadata.version(name) for name in ("popflow", "mne", "scipy", "numpy")},
    }


def load_session(folder: str | Path) -> Session:
    """Open what `prepare_session` wrote; features stay on disk."""
    folder = Path(folder)
    meta = read_json(folder / "meta.json")
    electrodes = read_tsv(folder / "electrodes.tsv", dtype={"name": str, "region": str})
    electrodes = electrodes[electrodes["status"] == "kept"].reset_index(drop=True)
    events = read_tsv(folder / "events.tsv")
    events = events[events["reason_dropped"].isna()].reset_index(drop=True)
    xyz, frame = electrodes[["x", "y", "z"]].to_numpy(float), electrodes["frame"].iloc[0]
    return Session(
        name=meta["session"],
        subject=meta["subject"],
        role=meta["role"],
        features=np.load(folder / "features.npy", mmap_mode="r"),
        windows=read_tsv(folder / "windows.tsv"),
        event_features=np.load(folder / "event_features.npy", mmap_mode="r"),
        event_spectrogram=np.load(folder / "event_spectrogram.npy", mmap_mode="r"),
        events=events,
        electrodes=electrodes,
        lip=lip_coordinates(xyz, frame, f"file {folder / 'electrodes.tsv'}"),
        meta=meta,
    )


def channel_statistics(
    features: np.ndarray, rows: np.ndarray, chunk: int = 2048
) -> tuple[np.ndarray, np.ndarray]:
    """Give mean and standard deviation per channel and feature over some rows.

    Parameters
    ----------
    features : ndarray
        (windows, channels, dim), may be memory-mapped.
    rows : ndarray
        Indices of the training rows; no other row is looked at.
    chunk : int
        Rows in memory at a time.

    Returns
    -------
    mean, spread : ndarray
        (channels, dim), float32; a spread of 0 is 1.
    """
    total = np.zeros(features.shape[1:])
    square = np.zeros(features.shape[1:])
    origin = np.asarray(features[rows[0]], dtype=float)
    for start in range(0, len(rows), chunk):
        part = np.asarray(features[rows[start : start + chunk]], dtype=float) - origin
        total += part.sum(0)
        square += (part**2).sum(0)
    mean = total / len(rows)
    spread = np.sqrt(np.maximum(square / len(rows) - mean**2, 0.0))
    spread = np.where(spread > 1e-6, spread, 1.0)
    return (mean + origin).astype(np.float32), spread.astype(np.float32)


def _choose_channels(
    recording: Recording, settings: dict[str, Any]
) -> "tuple[pd.DataFrame, Reference, list[str]]":
    """Decide which channels are kept, and tell of each other one why not."""
    import pandas as pd

    table = recording.channels.copy()
    table["reason"] = table["reason"].where(table["status"] == "bad", "")
    other = ~table["kind"].isin(CORTICAL_KINDS)
    table.loc[other, "reason"] = "not an intracranial channel (" + table["kind"] + ")"
    table, placed = _with_places(table, recording)
    names = table.loc[table["reason"] == "", "name"].tolist()
    if names:
        found = check_voltages(recording, names, settings["chunk_s"]).set_index("name")
        _mark_broken(table, found, recording, settings["nan_channels"])
    good = table[table["reason"] == ""]
    names = good["name"].tolist()
    xyz, kinds = good[["x", "y", "z"]].to_numpy(float), good["kind"].tolist()
    # A contact without a place may still be a neighbour of others.
    reference = rereference(names, xyz, kinds, settings["reference"], settings["nearest"])
    reference = reference.only(placed[good.index].to_numpy(), "no position")
    for index, reason in reference.reasons.items():
        table.loc[good.index[index], "reason"] = reason
    if len(reference.kept) < settings["min_channels"]:
        counted = table["reason"].value_counts().to_dict()
        raise Refusal(
            f"file {recording.name}",
            f"{len(reference.kept)} usable channels ({counted})",
            f"at least {settings['min_channels']}",
            "mend the tables, or set another reference (nearest, car) under prepare",
        )
    xyz = table.loc[table["reason"] == "", ["x", "y", "z"]].to_numpy(float)
    lip_coordinates(xyz, recording.frame, f"file {recording.name}, electrodes")
    contacts = pd.DataFrame([parse_contact(n) for n in table["name"]], columns=["shaft", "contact"])
    table["shaft"], table["contact"] = contacts["shaft"], contacts["contact"]
    table["frame"] = recording.frame
    table["status"] = ["dropped" if reason else "kept" for reason in table["reason"]]
    columns = ["name", "x", "y", "z", "frame", "region", "shaft", "contact", "kind"]
    return table[[*columns, "status", "reason"]], reference, names


def _with_places(table: "pd.DataFrame", recording: Recording) -> "tuple[pd.DataFrame, pd.Series]":
    """Join channels and electrodes by name; tell which channels have a place."""
    electrodes = recording.electrodes.copy()
    electrodes["key"] = electrodes["name"].str.strip("*# ")
    keys = table["name"].str.strip("*# ")
    places = electrodes.set_index("key").reindex(keys)
    for column in ("x", "y", "z", "region"):
        table[column] = places[column].to_numpy()
    table["region"] = table["region"].fillna("unknown")
    return table, table[["x", "y", "z"]].notna().all(axis=1)


def _mark_broken(table: "pd.DataFrame", found: "pd.DataFrame", recording: Recording, nan: str):
    """Mark flat channels and channels with NaN as dropped, or refuse NaN."""
    broken = found[found["nan_samples"] > 0]
    if len(broken) and nan == "refuse":
        name = broken.index[0]
        raise Refusal(
            f"file {recording.name}, channel {name}",
            f"{int(broken['nan_samples'].iloc[0])} samples are NaN "
            f"({len(broken)} channels have such)",
            "finite voltages in every channel that is not marked bad",
            f"mark {name} as bad in channels.tsv, or set nan_channels: drop under prepare",
        )
    for name in broken.index:
        table.loc[table["name"] == name, "reason"] = "NaN samples"
    for name in found.index[found["flat"] & (found["nan_samples"] == 0)]:
        table.loc[table["name"] == name, "reason"] = "flat"


def _windows(
    recording: Recording, settings: dict[str, Any], width: int, stride: int
) -> "pd.DataFrame":
    """Lay windows over the whole recording and tell the part of each."""
    import pandas as pd

    starts = np.arange(0, recording.samples - width + 1, max(stride, 1))
    table = pd.DataFrame({"index": np.arange(len(starts)), "start_sample": starts})
    table["t_s"] = starts / recording.rate
    table["part"] = _parts(starts, width, recording.samples, settings)
    return table


def _parts(starts: np.ndarray, width: int, samples: int, settings: dict[str, Any]) -> np.ndarray:
    """Assign train, validation, test by time; what straddles a border is purged."""
    first = settings["train_fraction"] * samples
    second = first + settings["validation_fraction"] * samples
    parts = np.full(len(starts), "purged", dtype=object)
    parts[starts + width <= first] = "train"
    parts[(starts >= first) & (starts + width <= second)] = "validation"
    parts[starts >= second] = "test"
    return parts


def _events(recording: Recording, settings: dict[str, Any], width: int) -> "pd.DataFrame":
    """Make the label table: one row per event of the file, dropped ones with their reason."""
    import pandas as pd

    source = recording.events.reset_index(drop=True)
    onset = source["onset"].to_numpy(float)
    samples = np.round((onset + settings["event_offset_s"]) * recording.rate)
    reason = np.full(len(source), "", dtype=object)
    reason[(samples < 0) | (samples + width > recording.samples)] = "outside the recording"
    reason[np.isnan(onset)] = "no onset"
    starts = np.where(reason == "", np.nan_to_num(samples), -1).astype(int)
    table = pd.DataFrame({"event": np.arange(len(source)), "sample": starts})
    table["t_s"] = np.where(reason == "", starts / recording.rate, np.nan)
    table["part"] = np.where(reason == "", _parts(starts, width, recording.samples, settings), "")
    labels = source.drop(columns=["onset", "sample"], errors="ignore")
    ours = [*table.columns, "reason_dropped"]
    labels = labels.rename(columns={name: f"{name}_in_file" for name in ours})
    table = pd.concat([table, labels], axis=1)
    table["reason_dropped"] = reason
    table = table.sort_values("sample", kind="stable").reset_index(drop=True)
    if dropped := int((reason != "").sum()):
        log.warning("%s: %d of %d events dropped", recording.name, dropped, len(source))
    return table


def report(
    recording: Recording,
    electrodes: "pd.DataFrame",
    windows: "pd.DataFrame",
    events: "pd.DataFrame",
    width: int,
) -> "pd.DataFrame":
    """Make qc.tsv: item, kind (read, kept, dropped), count, reason; kept + dropped = read.

    Items are channels, samples in time, windows and events.
    """
    import pandas as pd

    starts = windows["start_sample"].to_numpy()
    # Windows that overlap share samples, and a long stride leaves samples between them.
    seen = int(np.minimum(np.diff(starts), width).sum()) + width if len(starts) else 0
    reasons = {
        "channels": electrodes["reason"],
        "windows": windows["part"]
        .where(windows["part"] == "purged", "")
        .replace("purged", "straddles the border between two parts"),
        "events": events["reason_dropped"],
    }
    rows = [
        ("samples", "read", recording.samples, ""),
        ("samples", "kept", seen, ""),
        ("samples", "dropped", recording.samples - seen, "between windows, or in a last rest"),
    ]
    for item, reason in reasons.items():
        counted = reason[reason != ""].value_counts()
        rows += [(item, "read", len(reason), ""), (item, "kept", int((reason == "").sum()), "")]
        rows += [(item, "dropped", int(count), text) for text, count in counted.items()]
    return pd.DataFrame(rows, columns=["item", "kind", "count", "reason"])


def _notch(recording: Recording, settings: dict[str, Any]) -> tuple[list[float], np.ndarray]:
    """Design the notches at the line frequency and its harmonics below Nyquist (second-order)."""
    from scipy.signal import iirnotch, tf2sos

    line = settings["line_hz"] or recording.line_frequency or 0.0
    if not line:
        return [], np.zeros((0, 6))
    harmonics = [k * line for k in range(1, 7) if k * line < recording.rate / 2]
    sections = [tf2sos(*iirnotch(hz, NOTCH_QUALITY, recording.rate)) for hz in harmonics]
    return harmonics, np.concatenate(sections) if sections else np.zeros((0, 6))


def _referenced(
    recording: Recording,
    names: list[str],
    reference: Reference,
    notches: np.ndarray,
    seconds: float,
) -> Iterator[tuple[int, np.ndarray]]:
    """Give (first sample, re-referenced µV) of consecutive chunks; the filter's state is kept."""
    from scipy.signal import sosfilt, sosfilt_zi

    state = None
    for start, x in recording.chunks(names, seconds):
        if len(notches):
            if state is None:
                # The steady state of the first sample: the offset of a channel makes no transient.
                state = sosfilt_zi(notches)[:, None, :] * x[None, :, :1]
            x, state = sosfilt(notches, x, axis=1, zi=state)
        yield start, reference.weights @ x


@dataclass
class EncodingJob:
    """Windows that start at ascending samples, the encoder for them, and the file they go to."""

    path: Path
    starts: np.ndarray
    encoder: Encoder
    done: int = 0


def _encode_all(
    stream: Iterator[tuple[int, np.ndarray]],
    jobs: list[EncodingJob],
    channels: int,
    width: int,
    dtype: str,
) -> None:
    """Do all jobs in one pass over the recording; files appear when all are whole."""
    with ExitStack() as stack:
        outputs = []
        for job in jobs:
            path, shape = stack.enter_context(atomic(job.path)), (len(job.starts), channels)
            outputs.append(_open_array(path, (*shape, job.encoder.dim), dtype))
        kept, origin = np.zeros((channels, 0)), 0
        for start, x in stream:
            kept = np.concatenate([kept, x], axis=1)
            end = start + x.shape[1]
            for job, output in zip(jobs, outputs, strict=True):
                last = int(np.searchsorted(job.starts, end - width, side="right"))
                _encode_some(output, job, last, kept, origin, width)
            cut = max(0, end - width + 1 - origin)
            kept, origin = kept[:, cut:], origin + cut
        for output in outputs:
            if isinstance(output, np.memmap):
                output.flush()


def _open_array(path: Path, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Make a mapped .npy file; an empty one cannot be mapped and is written at once."""
    if 0 not in shape:
        return np.lib.format.open_memmap(path, "w+", dtype=dtype, shape=shape)
    empty = np.zeros(shape, dtype=dtype)
    np.save(path, empty)
    return empty


def _encode_some(
    output: np.ndarray,
    job: EncodingJob,
    last: int,
    kept: np.ndarray,
    origin: int,
    width: int,
    batch: int = 32,
) -> None:
    """Encode the windows up to number `last` from the samples in memory, `origin` the first."""
    if last <= job.done:
        return
    views = np.lib.stride_tricks.sliding_window_view(kept, width, axis=1)
    for begin in range(job.done, last, batch):
        chosen = job.starts[begin : min(begin + batch, last)] - origin
        vectors = job.encoder.encode(views[:, chosen].swapaxes(0, 1))
        output[begin : begin + len(chosen)] = vectors
    job.done = last


def _target(recording: Recording, name: str, starts: np.ndarray, width: int) -> np.ndarray:
    """Give the mean of a behavioural channel over each window; NaN where a sample is missing."""
    total, missing = (np.zeros(recording.samples + 1) for _ in range(2))
    for start, x in recording.chunks([name], 60.0):
        rows, known = slice(start + 1, start + 1 + x.shape[1]), np.isfinite(x[0])
        total[rows] = total[start] + np.cumsum(np.where(known, x[0], 0.0))
        missing[rows] = missing[start] + np.cumsum(~known)
    mean = (total[starts + width] - total[starts]) / width
    return np.where(missing[starts + width] > missing[starts], np.nan, mean)
