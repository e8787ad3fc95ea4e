"""Sessions of Axona's DACQ: a .set file, and beside it spikes, clusters and tracking.

The layout is that of Axona's "DacqUSB File Formats". neo reads the same spikes, but it stops at
the first tetrode number that is absent, cuts a session's name at its dots, and reads neither
clusters nor tracking; so the time stamps are read here.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from popflow.inputs.description import rate_of, whole_file
from popflow.runtime.refusal import Refusal

FIRST_WORD = b"trial_date"
TETRODES = range(1, 33)
LOST = 1023
WORDS = 8
AGAIN = "copy it again from the recording computer; a truncated copy is the usual cause"
SORTED = "NAME_1.cut or NAME.clu.1 beside NAME.set, for each tetrode"


class Axona(NamedTuple):
    """What a session of Axona holds.

    Attributes
    ----------
    spikes : dict of str to (k,) array
        Seconds by ``tetrode-cluster``.
    t : (P,) array
        Seconds of the frames; empty without tracking.
    xy : (P, 2) array
        NaN where the animal was lost.
    unit : str
        ``cm`` or ``px``; empty without tracking.
    version : str
        Of the recording program.
    notes : list of str
    """

    spikes: dict[str, np.ndarray]
    t: np.ndarray
    xy: np.ndarray
    unit: str
    version: str
    notes: list[str]


def is_axona(path: Path) -> bool:
    """Tell by its first word whether a .set file is Axona's; EEGLAB's is MATLAB or HDF5."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read(len(FIRST_WORD)) == FIRST_WORD
    return False


def read_axona(path: Path, track: bool = True) -> Axona:
    """Read a session by its .set file.

    Parameters
    ----------
    path : path
        NAME.set; read are NAME.1 to NAME.32, NAME_1.cut or NAME.clu.1, and NAME.pos beside it.
    track : bool
        Read NAME.pos, where it is.

    Raises
    ------
    Refusal
        Without spikes or without any sorting, and for files that are cut off or do not fit.
    """
    if not is_axona(path):
        found = f"it does not begin with {FIRST_WORD.decode()}, so it is not Axona's"
        fix = "name the .set of DACQ; EEGLAB's .set belongs to modality intracranial"
        raise Refusal(f"file {path}", found, "a .set file of Axona's DACQ", fix)
    header = _header(path.read_bytes())
    spikes, notes = _units(path)
    t, xy, unit = np.empty(0), np.empty((0, 2)), ""
    pos = path.with_name(f"{path.stem}.pos")
    if track and pos.is_file():
        with whole_file(pos):
            t, xy, unit = _track(pos, notes)
    return Axona(spikes, t, xy, unit, header.get("sw_version", ""), notes)


def _units(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Put the spikes of every tetrode to their clusters."""
    files = {number: path.with_name(f"{path.stem}.{number}") for number in TETRODES}
    files = {number: file for number, file in files.items() if file.is_file()}
    if not files:
        accepted, fix = f"{path.stem}.1 to {path.stem}.32 beside it", "copy the tetrode files too"
        raise Refusal(f"file {path}", "no tetrode file beside it", accepted, fix)
    sorting = {number: _clusters(path, number) for number in files}
    if not any(sorting.values()):
        found = f"{len(files)} tetrode files, none with clusters"
        raise Refusal(f"file {path}", found, SORTED, "sort the spikes, or copy the cut files too")
    spikes: dict[str, np.ndarray] = {}
    notes, noise = [], 0
    for number, file in files.items():
        times, found = _spike_times(file), sorting[number]
        if found is None:
            text = f"tetrode {number} has no .cut or .clu file: its {len(times)} spikes are not"
            notes.append(f"{text} sorted and left out")
            continue
        labels, source = found
        if len(labels) != len(times):
            text = f"{len(labels)} spikes, but {file.name} holds {len(times)}"
            fix = "cut this session again, or copy the files of one session"
            raise Refusal(f"file {source}", text, "one cluster per spike", fix)
        noise += int((labels < 1).sum())
        for cluster in np.unique(labels[labels > 0]):
            spikes[f"{number}-{cluster}"] = times[labels == cluster]
        if source.suffix != ".cut":
            notes.append(f"{source.name} counts clusters from 1; they are numbered as in a .cut")
    if noise:
        notes.append(f"{noise} spikes of cluster 0 (noise) are left out")
    return spikes, notes


def _spike_times(path: Path) -> np.ndarray:
    """Read the time of every spike in seconds; channels of a tetrode share their time stamp."""
    with whole_file(path):
        header, body = _split(path)
        _expect(header, "bytes_per_timestamp", 4, path)
        samples = _number(header, "samples_per_spike", path, "50")
        size = 4 + samples * _number(header, "bytes_per_sample", path, "1")
        size *= _number(header, "num_chans", path, "4")
        # Not signed: time stamps pass 2**31 after six hours.
        layout = {"names": ["time"], "formats": [">u4"], "offsets": [0], "itemsize": size}
        records = _records(body, np.dtype(layout), _number(header, "num_spikes", path), path)
        return records["time"].astype(float) / _rate(header, "timebase", path)


def _clusters(path: Path, tetrode: int) -> tuple[np.ndarray, Path] | None:
    """Read the clusters of a tetrode's spikes, 0 for noise; a .cut goes before a .clu."""
    cut = path.with_name(f"{path.stem}_{tetrode}.cut")
    clu = path.with_name(f"{path.stem}.clu.{tetrode}")
    if cut.is_file():
        with whole_file(cut):
            return _cut(cut), cut
    if clu.is_file():
        with whole_file(clu):
            # KlustaKwik counts from 1, its noise, where Tint's .cut counts from 0.
            return _whole_numbers(clu.read_text("latin-1").split(), clu)[1:] - 1, clu
    return None


def _cut(path: Path) -> np.ndarray:
    text = path.read_text("latin-1")
    head = re.search(r"Exact_cut_for:[\s\S]{0,2000}?spikes:\s*(\d+)", text)
    if head is None:
        accepted = "'Exact_cut_for: … spikes: N', then N whole numbers"
        raise Refusal(f"file {path}", "no line Exact_cut_for", accepted, AGAIN)
    labels = _whole_numbers(text[head.end() :].split(), path)
    if len(labels) != int(head.group(1)):
        found = f"{len(labels)} clusters, where the file tells {head.group(1)} spikes"
        raise Refusal(f"file {path}", found, "one cluster per spike", AGAIN)
    return labels


def _whole_numbers(words: list[str], path: Path) -> np.ndarray:
    wrong = next((word for word in words if not (word.isascii() and word.isdigit())), None)
    if wrong is not None:
        accepted = "whole numbers from 0"
        raise Refusal(f"file {path}", f"{wrong[:40]!r} among the clusters", accepted, AGAIN)
    return np.array([int(word) for word in words], np.int64)


def _track(path: Path, notes: list[str]) -> tuple[np.ndarray, np.ndarray, str]:
    """Read .pos: the spot that is seen in most frames, at the camera's rate.

    Frame counters repeat and jump where the camera's clock slips, so frames are counted.
    """
    header, body = _split(path)
    _expect(header, "bytes_per_timestamp", 4, path)
    _expect(header, "bytes_per_coord", 2, path)
    layout = np.dtype([("frame", ">u4"), ("words", ">i2", (WORDS,))])
    words = _records(body, layout, _number(header, "num_pos_samples", path), path)["words"]
    # Of two spots the last words count pixels; of four colours all are places.
    spots = 4 if "x3" in header.get("pos_format", "") else 2
    places = words[:, : 2 * spots].reshape(-1, spots, 2).astype(float)
    places[(places == LOST).any(2)] = np.nan
    seen = np.isfinite(places[..., 0]).sum(0)
    spot = int(seen.argmax())
    xy, lost = places[:, spot], len(places) - int(seen[spot])
    notes.append(f"{path.name}: spot {spot + 1} of {spots}, {lost} of {len(xy)} frames lost")
    t = np.arange(len(xy)) / _rate(header, "sample_rate", path)
    scale = rate_of(header.get("pixels_per_metre"))
    return (t, xy, "px") if scale is None else (t, xy * (100.0 / scale), "cm")


def _split(path: Path) -> tuple[dict[str, str], bytes]:
    """Split a file of DACQ at the word data_start."""
    text, mark, body = path.read_bytes().partition(b"data_start")
    if not mark:
        raise Refusal(f"file {path}", "no data_start", "a whole file of Axona's DACQ", AGAIN)
    return _header(text), body


def _header(text: bytes) -> dict[str, str]:
    lines = (line.partition(" ") for line in text.decode("latin-1").split("\n"))
    return {key.strip(): value.strip() for key, _, value in lines}


def _records(body: bytes, layout: np.dtype, count: int, path: Path) -> np.ndarray:
    """Take as many records as the header tells, and see that data_end follows them."""
    size = count * layout.itemsize
    if not body[size : size + 16].lstrip().startswith(b"data_end"):
        found = f"no data_end after {count} records of {layout.itemsize} bytes"
        accepted = "as many records as the header tells, then data_end"
        raise Refusal(f"file {path}", f"{found} ({len(body)} are there)", accepted, AGAIN)
    return np.frombuffer(body, layout, count)


def _number(header: dict[str, str], key: str, path: Path, usual: str = "") -> int:
    text = header.get(key, usual)
    if not (text.isascii() and text.isdigit()):
        found = f"{key} {text[:40] or 'is not told'}"
        raise Refusal(f"file {path}, header", found, "a whole number", AGAIN)
    return int(text)


def _expect(header: dict[str, str], key: str, size: int, path: Path) -> None:
    if _number(header, key, path, str(size)) != size:
        found, fix = f"{key} {header[key]}", "export it by a newer version of DACQ"
        raise Refusal(f"file {path}, header", found, f"{key} {size}", fix)


def _rate(header: dict[str, str], key: str, path: Path) -> float:
    """Read a rate that the header writes as ``96000 hz``."""
    rate = rate_of(header.get(key, "").lower().removesuffix("hz"))
    if rate is None:
        found = f"{key} {header.get(key, '')[:40] or 'is not told'}"
        raise Refusal(f"file {path}, header", found, "a rate in Hz", AGAIN)
    return rate
