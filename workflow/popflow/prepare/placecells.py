"""Place cells: spikes and tracking -> counts in bins, with position, phase and hold-out masks.

Bins are half-open and counted in integer ticks; every spike is accounted for.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from popflow.inputs.spikes import Session
from popflow.runtime.files import atomic
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

TICK = 1e-9
SMOOTH_S = 0.25
LEAST_EXPOSURE = 0.5
LARGEST_JUMPS = 0.5


def tick(times: np.ndarray, start: float, width: float) -> np.ndarray:
    """Give the bin of each time, floor(x + 1e-9 max(1, |x|)) with x = (t - start) / width.

    A spike less than a billionth of a bin below an edge belongs to the next bin: this is the one
    tolerance, and it undoes the rounding of times that are multiples of the bin.
    """
    x = (np.asarray(times, float) - start) / width
    return np.floor(x + TICK * np.maximum(1.0, np.abs(x))).astype(np.int64)


def bin_count(start: float, stop: float, width: float) -> int:
    """Give the number of whole bins in an epoch, floor((stop - start) / width + 1e-9)."""
    return int(np.floor((stop - start) / width + TICK))


def bin_spikes(
    spikes: dict[str, np.ndarray], epochs: list[tuple[float, float, str]], width: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Count spikes per bin; no bin crosses the border of an epoch.

    Parameters
    ----------
    spikes : dict of str to (k,) array
    epochs : list of (start, stop, label)
        Sorted, not overlapping.
    width : float
        Seconds.

    Returns
    -------
    counts : (T, N) int32
    starts : (T,) float
        Left edges, start + i · width.
    epoch : (T,) int
    dropped : (N,) int
        Spikes outside of every bin.

    Raises
    ------
    Refusal
        For overlapping or reversed epochs, or when none is as long as a bin.
    """
    _check_epochs(epochs, width)
    counts, starts, epoch = [], [], []
    for number, (start, stop, _) in enumerate(epochs):
        bins = bin_count(start, stop, width)
        block = np.zeros((bins, len(spikes)), np.int32)
        for column, times in enumerate(spikes.values()):
            index = tick(times, start, width)
            index = index[(index >= 0) & (index < bins)]
            block[:, column] = np.bincount(index, minlength=bins)[:bins] if bins else 0
        counts.append(block)
        starts.append(start + np.arange(bins) * width)
        epoch.append(np.full(bins, number))
    whole = np.concatenate(counts)
    total = np.array([len(times) for times in spikes.values()])
    dropped = total - whole.sum(0)
    if (dropped < 0).any():
        raise AssertionError("a spike was counted twice")
    return whole, np.concatenate(starts), np.concatenate(epoch), dropped


def _check_epochs(epochs, width) -> None:
    for start, stop, label in epochs:
        if stop < start:
            found = f"epoch {label!r} stops at {stop:g} s, before it starts at {start:g} s"
            raise Refusal("epochs", found, "start ≤ stop", "mend the epochs of the file")
    for (_, stop, a), (start, _, b) in zip(epochs, epochs[1:], strict=False):
        if start < stop - TICK:
            found = f"epochs {a!r} and {b!r} overlap by {stop - start:g} s"
            raise Refusal("epochs", found, "epochs that do not overlap", "choose some in `epochs`")
    if not any(bin_count(start, stop, width) for start, stop, _ in epochs):
        longest = max((stop - start for start, stop, _ in epochs), default=0.0)
        found = f"the longest epoch lasts {longest:g} s, a bin {width:g} s"
        raise Refusal("epochs", found, "an epoch of one bin or more", "shorten bin_s")


def clean_position(
    t: np.ndarray, xy: np.ndarray, at: np.ndarray, max_gap: float, max_speed: float
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Take out lost and jumping frames, and read position and speed at bin centres.

    Parameters
    ----------
    t : (P,) array
        Seconds; repeated stamps are averaged.
    xy : (P, dims) array
        NaN, (0, 0) and (-1, -1) frames count as lost.
    at : (T,) array
        Bin centres in seconds.
    max_gap : float
        Longest gap that is interpolated.
    max_speed : float
        Faster frames are jumps.

    Returns
    -------
    position : (T, dims) array, NaN where it is not known
    speed : (T,) array
    lost : dict
        Frames removed, by reason.
    """
    stamps, first = np.unique(t, return_inverse=True)
    # Trackers write (0, 0) or (-1, -1); other negative places are those of a centred arena.
    lost = ~np.isfinite(xy).all(1) | (xy == 0).all(1) | (xy == -1).all(1)
    good = np.zeros(len(stamps))
    total = np.zeros((len(stamps), xy.shape[1]))
    np.add.at(good, first[~lost], 1)
    np.add.at(total, first[~lost], xy[~lost])
    kept = good > 0
    stamps, path = stamps[kept], total[kept] / good[kept, None]
    jumps = 0
    if len(stamps) > 2:
        step = np.linalg.norm(np.diff(path, axis=0), axis=1) / np.diff(stamps)
        # A jump is fast on both sides; a fast run ends somewhere else.
        fast = np.concatenate([[False], (step[:-1] > max_speed) & (step[1:] > max_speed), [False]])
        jumps = int(fast.sum())
        if jumps > LARGEST_JUMPS * len(stamps):
            raise Refusal(
                "the track",
                f"{jumps} of {len(stamps)} frames move faster than max_speed ({max_speed:g} per s)",
                "jumps in less than half of the frames",
                "set prepare.<dataset>.max_speed in the track's own unit (150 for cm, 1.5 for m)",
            )
        stamps, path = stamps[~fast], path[~fast]
    reasons = {"lost": int(lost.sum()), "jump": jumps, "repeated": len(t) - len(np.unique(t))}
    if len(stamps) < 2:
        return np.full((len(at), xy.shape[1]), np.nan), np.full(len(at), np.nan), reasons
    right = np.clip(np.searchsorted(stamps, at), 1, len(stamps) - 1)
    known = (at >= stamps[0]) & (at <= stamps[-1]) & (stamps[right] - stamps[right - 1] <= max_gap)
    place = np.column_stack([np.interp(at, stamps, path[:, axis]) for axis in range(xy.shape[1])])
    speed = np.interp(at, stamps, _speed(stamps, path))
    place[~known], speed[~known] = np.nan, np.nan
    return place, speed, reasons


def _speed(t: np.ndarray, path: np.ndarray) -> np.ndarray:
    """Give the speed of a smoothed path (sigma 0.25 s)."""
    from scipy.ndimage import gaussian_filter1d

    sigma = SMOOTH_S / float(np.median(np.diff(t)))
    smooth = gaussian_filter1d(path, sigma, axis=0)
    return np.linalg.norm(np.gradient(smooth, t, axis=0), axis=1)


def exposure_of(starts: np.ndarray, width: float, recorded: np.ndarray | None) -> np.ndarray:
    """Give the share of each bin that lies inside recorded intervals."""
    if recorded is None:
        return np.ones(len(starts))
    share = np.zeros(len(starts))
    for low, high in recorded:
        share += np.clip(np.minimum(starts + width, high) - np.maximum(starts, low), 0, None)
    return np.clip(share / width, 0, 1)


def prepare_placecells(
    session: Session, settings: dict[str, Any]
) -> "tuple[dict[str, np.ndarray], pd.DataFrame]":
    """Prepare a session for infinite GPFA.

    Parameters
    ----------
    session : Session
    settings : dict
        Of ``workflow/schemas/prepare-placecells.schema.yaml``.

    Returns
    -------
    arrays : dict
        What session.h5 holds, see `write_session`.
    report : DataFrame
        qc.tsv: item, kind, count, reason; kept + dropped = read, for spikes and for units.
    """
    epochs = _chosen_epochs(session, settings["epochs"])
    width = settings["bin_s"]
    counts, starts, epoch, outside = bin_spikes(session.spikes, epochs, width)
    exposure = exposure_of(starts, width, session.recorded)
    used = exposure >= LEAST_EXPOSURE
    seconds = float((exposure[used] * width).sum())
    kept, rows = _choose_units(session, counts[used], seconds, settings)
    centre = starts + width / 2
    xy = session.position if session.position.size else np.empty((0, 2))
    place, speed, lost = clean_position(
        session.position_t, xy, centre, settings["max_gap_s"], settings["max_speed"]
    )
    labels = np.array([label for _, _, label in epochs])
    arrays = {
        "counts": counts[:, kept],
        "t": centre,
        "epoch": epoch,
        "label": np.char.encode(labels[epoch], "utf-8"),
        "exposure": exposure,
        "position": place,
        "speed": speed,
        "held_out": _hold_outs(counts[:, kept].shape, used, settings),
        "used": used,
        "unit": np.char.encode(np.array(list(session.spikes))[kept], "utf-8"),
        "bin_s": np.array(width),
        "position_unit": np.array(session.position_unit.encode()),
    }
    return arrays, _report(session, counts, outside, kept, rows, lost, epochs, width)


def _chosen_epochs(session: Session, wanted: list[str]) -> list[tuple[float, float, str]]:
    """Give the epochs to use; the whole recording when the file has none."""
    if not session.epochs:
        spans = [times for times in session.spikes.values() if len(times)]
        stop = max(times[-1] for times in spans)
        return [(min(times[0] for times in spans), float(np.nextafter(stop, np.inf)), "session")]
    chosen = [epoch for epoch in session.epochs if not wanted or epoch[2] in wanted]
    if not chosen:
        known = ", ".join(sorted({label for _, _, label in session.epochs}))
        fix = "name some of them under prepare.<dataset>.epochs"
        raise Refusal("epochs", f"none is called {', '.join(wanted)}", known, fix)
    return chosen


def _choose_units(session, counts, seconds, settings):
    """Drop units that are too quiet or too loud, with the reason."""
    total = counts.sum(0)
    rate = total / max(seconds, 1e-9)
    few = total < settings["min_spikes"]
    quiet = ~few & (rate < settings["min_rate_hz"])
    loud = rate > settings["max_rate_hz"]
    kept = ~(few | quiet | loud)
    if not kept.any():
        found = f"none of {len(kept)} units is kept ({few.sum()} have too few spikes)"
        fix = "lower min_spikes and min_rate_hz, or check the epochs"
        raise Refusal("units", found, "one unit or more", fix)
    rows = [
        ("units", "dropped", int(few.sum()), f"fewer than {settings['min_spikes']} spikes"),
        ("units", "dropped", int(quiet.sum()), f"below {settings['min_rate_hz']} Hz"),
        ("units", "dropped", int(loud.sum()), f"above {settings['max_rate_hz']} Hz"),
    ]
    return kept, rows


def _hold_outs(shape: tuple[int, int], used: np.ndarray, settings: dict[str, Any]) -> np.ndarray:
    """Draw the speckled hold-out masks, (K, T, N) bool."""
    masks = np.empty((settings["hold_outs"], *shape), bool)
    for number in range(settings["hold_outs"]):
        masks[number] = generator(number, "hold out").random(shape) < settings["held_out"]
        masks[number][~used] = False
    return masks


def _report(session, counts, outside, kept, rows, lost, epochs, width):
    import pandas as pd

    total = sum(len(times) for times in session.spikes.values())
    binned = int(counts[:, kept].sum())
    rest = sum((stop - start) - bin_count(start, stop, width) * width for start, stop, _ in epochs)
    rows = [
        ("spikes", "read", total, f"{session.format} {session.version}".strip()),
        ("spikes", "kept", binned, ""),
        (
            "spikes",
            "dropped",
            int(outside.sum()),
            "outside of epochs or in a rest shorter than a bin",
        ),
        ("spikes", "dropped", int(counts[:, ~kept].sum()), "of dropped units"),
        ("units", "read", len(kept), ""),
        ("units", "kept", int(kept.sum()), ""),
        *rows,
        ("bins", "kept", len(counts), f"{len(epochs)} epochs, {rest:.3f} s in rests"),
        *(("frames", "dropped", count, reason) for reason, count in lost.items()),
        *(("warning", "told", 1, text) for text in session.warnings),
    ]
    frame = pd.DataFrame(rows, columns=["item", "kind", "count", "reason"])
    spikes = frame[frame["item"] == "spikes"].groupby("kind")["count"].sum()
    if spikes["read"] != spikes["kept"] + spikes["dropped"]:
        raise AssertionError("spikes are not conserved")
    return frame


def write_session(arrays: dict[str, np.ndarray], path: str | Path) -> None:
    """Write session.h5.

    Holds counts (T, N), t (T,) bin centres in seconds, epoch, label, exposure, position, speed,
    held_out (K, T, N), used (T,), unit (N,), bin_s, position_unit.
    """
    import h5py

    with atomic(path) as temporary, h5py.File(temporary, "w") as file:
        for name, array in arrays.items():
            packed = {"compression": "gzip", "shuffle": True} if np.ndim(array) > 1 else {}
            file.create_dataset(name, data=array, track_times=False, **packed)


def read_prepared(path: str | Path) -> dict[str, np.ndarray]:
    """Read session.h5; labels and unit ids as text."""
    import h5py

    with h5py.File(path) as file:
        arrays = {name: file[name][()] for name in file}
    for name in ("label", "unit"):
        arrays[name] = np.char.decode(arrays[name].astype("S"), "utf-8")
    arrays["bin_s"] = float(arrays["bin_s"])
    arrays["position_unit"] = bytes(arrays["position_unit"]).decode()
    return arrays
