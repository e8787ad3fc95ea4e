"""Place cells: spikes or traces, and tracking -> bins with position, phase and hold-out masks.

Bins are half-open and counted in integer ticks; every spike and every frame is accounted for.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from popflow.inputs.spikes import Session
from popflow.inputs.tracking import is_lost
from popflow.runtime.files import atomic
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

TICK = 1e-9
SMOOTH_S = 0.25
LEAST_EXPOSURE = 0.5
FASTEST_M_S = 1.5
UNITS_PER_METRE = (
    (("m", "meter", "meters", "metre", "metres"), 1.0),
    (("cm", "centimeter", "centimeters", "centimetre", "centimetres"), 100.0),
    (("mm", "millimeter", "millimeters", "millimetre", "millimetres"), 1000.0),
)
UNRECORDED = "not recorded for half of the bin"
LARGEST_JUMPS = 0.1


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


def bin_traces(
    t: np.ndarray, values: np.ndarray, epochs: list[tuple[float, float, str]], width: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Average the frames of calcium traces in every bin.

    Parameters
    ----------
    t : (F,) array
        Seconds, rising.
    values : (F, N) array
        NaN where a cell was not measured.
    epochs, width
        As in `bin_spikes`.

    Returns
    -------
    means : (T, N) float array
        NaN in a bin without a measured frame.
    starts, epoch
        As in `bin_spikes`.
    frames : (T,) int array
        Frames per bin; the rest of them lies outside of every bin.
    """
    _check_epochs(epochs, width)
    known = np.isfinite(values)
    filled, means, starts, epoch, frames = np.where(known, values, 0.0), [], [], [], []
    for number, (start, stop, _) in enumerate(epochs):
        bins = bin_count(start, stop, width)
        index = tick(t, start, width)
        edges = np.searchsorted(index, np.arange(bins + 1))
        sums, counts = (
            np.diff(np.concatenate([np.zeros((1, x.shape[1])), x.cumsum(0)])[edges], axis=0)
            for x in (filled, known.astype(float))
        )
        means.append(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))
        frames.append(np.diff(edges))
        starts.append(start + np.arange(bins) * width)
        epoch.append(np.full(bins, number))
    joined = [np.concatenate(parts) for parts in (means, starts, epoch, frames)]
    return joined[0], joined[1], joined[2], joined[3]


def trial_of(centre: np.ndarray, trials: list[tuple[float, float, str]]) -> np.ndarray:
    """Give the number of the trial that holds each bin centre, from 0; -1 outside of all."""
    found = np.full(len(centre), -1)
    for number, (start, stop, _) in enumerate(trials):
        found[(centre >= start) & (centre < stop)] = number
    return found


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
    lost = is_lost(xy)
    good = np.zeros(len(stamps))
    total = np.zeros((len(stamps), xy.shape[1]))
    np.add.at(good, first[~lost], 1)
    np.add.at(total, first[~lost], xy[~lost])
    kept = good > 0
    stamps, path = stamps[kept], total[kept] / good[kept, None]
    repeated = int((~lost).sum()) - int(kept.sum())
    fast = np.linalg.norm(np.diff(path, axis=0), axis=1) > max_speed * np.diff(stamps)
    if fast.sum() > LARGEST_JUMPS * len(stamps):
        found = f"{fast.sum()} of {len(stamps)} frames are faster than {max_speed:g} per s"
        fix = "set prepare.<dataset>.max_speed in the track's own unit (150 for cm, 1.5 for m)"
        raise Refusal("the track", found, "fewer than a tenth above max_speed", fix)
    jumps = find_jumps(stamps, path, max_speed, max_gap)
    stamps, path = stamps[~jumps], path[~jumps]
    reasons = {"lost": int(lost.sum()), "jump": int(jumps.sum()), "repeated": repeated}
    if len(stamps) < 2:
        return np.full((len(at), xy.shape[1]), np.nan), np.full(len(at), np.nan), reasons
    right = np.clip(np.searchsorted(stamps, at), 1, len(stamps) - 1)
    known = (at >= stamps[0]) & (at <= stamps[-1]) & (stamps[right] - stamps[right - 1] <= max_gap)
    place = np.column_stack([np.interp(at, stamps, path[:, axis]) for axis in range(xy.shape[1])])
    speed = np.interp(at, stamps, _speed(stamps, path, max_gap))
    place[~known], speed[~known] = np.nan, np.nan
    return place, speed, reasons


def find_jumps(t: np.ndarray, path: np.ndarray, max_speed: float, max_gap: float) -> np.ndarray:
    """Mark excursions: frames that are reached and left too fast, within the longest gap.

    A frame is held against the last good one. After the longest gap without a good frame the
    track goes on from where it is, so that a fast run does not blank all that follows.

    Returns
    -------
    (P,) bool array
    """
    jump = np.zeros(len(t), bool)
    if len(t) < 3:
        return jump
    step = np.linalg.norm(np.diff(path, axis=0), axis=1) > max_speed * np.diff(t)
    if not step.any():
        return jump
    first = _first_good(t, step, max_gap)
    jump[:first] = True
    last = first
    for frame in range(first + 1, len(t)):
        if t[frame] - t[last] > max_gap and frame - last > 1:
            jump[last + 1 : frame] = False
            last = frame
        elif not step[frame - 1] and last == frame - 1:
            last = frame
        elif np.linalg.norm(path[frame] - path[last]) > max_speed * (t[frame] - t[last]):
            jump[frame] = True
        else:
            last = frame
    return jump


def _first_good(t: np.ndarray, step: np.ndarray, max_gap: float) -> int:
    """Give the first frame of the track: behind a short beginning that is left too fast."""
    breaks = np.flatnonzero(step)
    beginning = breaks[t[breaks] - t[0] <= max_gap]
    if not len(beginning):
        return 0
    last = int(beginning[-1]) + 1
    following = step[last:]
    calm = t[min(last + int(np.argmax(following)), len(t) - 1)] - t[last] if following.any() else 1
    # What follows must go on calmly for longer than what was left.
    return last if calm > t[last - 1] - t[0] else 0


def _speed(t: np.ndarray, path: np.ndarray, max_gap: float) -> np.ndarray:
    """Give the speed of a smoothed path (sigma 0.25 s), each stretch between long gaps alone."""
    from scipy.ndimage import gaussian_filter1d

    sigma, speed = SMOOTH_S / float(np.median(np.diff(t))), np.zeros(len(t))
    breaks = np.flatnonzero(np.diff(t) > max_gap) + 1
    for part in np.split(np.arange(len(t)), breaks):
        if len(part) > 1:
            smooth = gaussian_filter1d(path[part], sigma, axis=0)
            speed[part] = np.linalg.norm(np.gradient(smooth, t[part], axis=0), axis=1)
    return speed


def exposure_of(starts: np.ndarray, width: float, recorded: np.ndarray | None) -> np.ndarray:
    """Give the share of each bin that lies inside recorded intervals."""
    if recorded is None:
        return np.ones(len(starts))
    share, end = np.zeros(len(starts)), -np.inf
    for low, high in sorted(map(tuple, recorded)):
        # Intervals may overlap; what was counted is not counted again.
        low, end = max(low, end), max(high, end)
        share += np.clip(
            np.minimum(starts + width, max(high, low)) - np.maximum(starts, low), 0, None
        )
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
    if session.traces is None:
        binned = _binned_spikes(session, epochs, settings)
    else:
        binned = _binned_traces(session, epochs, settings)
    activity, starts, epoch, used, exposure, kept, rows, told = binned
    centre = starts + width / 2
    xy = session.position if session.position.size else np.empty((0, 2))
    place, speed, lost = clean_position(
        session.position_t, xy, centre, settings["max_gap_s"], _largest_speed(session, settings)
    )
    labels = np.array([label for _, _, label in epochs])
    trial = trial_of(centre, session.trials)
    trial_labels = np.array([label for _, _, label in session.trials] + [""])
    held_out, scored = hold_outs(used, int(kept.sum()), epoch, trial, settings)
    if not scored.any((1, 2)).all():
        found = f"stretches of {settings['block_s']:g} s with gaps of {settings['gap_s']:g} s"
        fix = "lengthen block_s, shorten gap_s, or raise held_out"
        raise Refusal("hold-out masks", found, "entries left to score", fix)
    arrays = {
        "counts": activity[:, kept],
        "t": centre,
        "epoch": epoch,
        "label": np.char.encode(labels[epoch], "utf-8"),
        "trial": trial,
        "trial_label": np.char.encode(trial_labels[trial], "utf-8"),
        "exposure": exposure,
        "position": place,
        "speed": speed,
        "held_out": held_out,
        "scored": scored,
        "used": used,
        "unit": np.char.encode(np.array(session.units)[kept], "utf-8"),
        "bin_s": np.array(width),
        "position_unit": np.array(session.position_unit.encode()),
        "kind": np.array(b"spikes" if session.traces is None else b"traces"),
    }
    rest = sum((stop - start) - bin_count(start, stop, width) * width for start, stop, _ in epochs)
    rows += [
        ("bins", "read", len(activity), f"{len(epochs)} epochs, {rest:.3f} s in rests"),
        ("bins", "kept", int(used.sum()), ""),
        ("bins", "dropped", int((~used).sum()), told),
        *_frames_of(session, lost),
        *(("warning", "told", 1, text) for text in session.warnings),
    ]
    return arrays, _report(rows)


def _largest_speed(session: Session, settings: dict[str, Any]) -> float:
    """Give the fastest an animal moves in the track's unit: of the setting, or 1.5 m/s.

    Raises
    ------
    Refusal
        When neither the setting nor the unit tells.
    """
    if settings["max_speed"] is not None or not session.position.size:
        return settings["max_speed"] or np.inf
    unit = session.position_unit.strip().lower()
    factor = next((f for names, f in UNITS_PER_METRE if unit in names), None)
    if factor is None:
        where = "the track"
        found = f"places in {session.position_unit or 'a unit that is not told'!r}"
        fix = "set prepare.<dataset>.max_speed, the fastest the animal moves per second, or the "
        raise Refusal(where, found, "m, cm, mm, or max_speed", f"{fix}unit (position_unit)")
    return FASTEST_M_S * factor


def _binned_spikes(session: Session, epochs, settings):
    """Count spikes; give counts, starts, epoch, used, exposure, kept units and rows of qc."""
    counts, starts, epoch, outside = bin_spikes(session.spikes, epochs, settings["bin_s"])
    exposure = exposure_of(starts, settings["bin_s"], session.recorded)
    used = exposure >= LEAST_EXPOSURE
    seconds = float((exposure[used] * settings["bin_s"]).sum())
    kept, units = _choose_units(counts[used], seconds, settings)
    total = sum(len(times) for times in session.spikes.values())
    rest = "outside of epochs or in a rest shorter than a bin"
    rows = [
        ("spikes", "read", total, f"{session.format} {session.version}".strip()),
        ("spikes", "kept", int(counts[used][:, kept].sum()), ""),
        ("spikes", "dropped", int(outside.sum()), rest),
        ("spikes", "dropped", int(counts[:, ~kept].sum()), "of dropped units"),
        (
            "spikes",
            "dropped",
            int(counts[~used][:, kept].sum()),
            "not recorded for half of the bin",
        ),
        ("units", "read", len(kept), ""),
        ("units", "kept", int(kept.sum()), ""),
        *units,
        *(
            ("warning", "told", 1, f"unit {name} is dropped")
            for name in np.array(session.units)[~kept]
        ),
    ]
    return counts, starts, epoch, used, exposure, kept, rows, UNRECORDED


def _binned_traces(session: Session, epochs, settings):
    """Average traces; give what `_binned_spikes` gives. Bins with a gap in a kept cell are unused.

    A bin counts as recorded when it holds a frame; a cell is dropped when it does not change, or
    was measured in less than half of the bins that hold frames.
    """
    t, values = session.traces.t, session.traces.values
    means, starts, epoch, frames = bin_traces(t, values, epochs, settings["bin_s"])
    filled = frames > 0
    if filled.mean() < LEAST_EXPOSURE:
        found = f"{filled.sum()} of {len(filled)} bins hold a frame"
        fix = f"set bin_s to {np.median(np.diff(t)):.3g} s (a frame) or more"
        raise Refusal("bins", found, "a frame in half of the bins or more", fix)
    seen = np.isfinite(means[filled])
    gaps = seen.mean(0) < LEAST_EXPOSURE
    # Sums of equal frames differ by rounding; the frames themselves tell whether a trace changes.
    known = np.where(np.isfinite(values), values, np.nan)
    span = np.array([np.nanmax(v) - np.nanmin(v) if np.isfinite(v).any() else 0.0 for v in known.T])
    still = ~gaps & (span == 0)
    kept = ~(gaps | still)
    if not kept.any():
        raise Refusal("cells", f"none of {len(kept)} changes", "one or more", "check the traces")
    used = filled & np.isfinite(means[:, kept]).all(1)
    rows = [
        ("trace frames", "read", len(t) + session.traces.out_of_order, session.format),
        ("trace frames", "dropped", session.traces.out_of_order, "time stamp out of order"),
        ("trace frames", "kept", int(frames.sum()), ""),
        ("trace frames", "dropped", len(t) - int(frames.sum()), "outside of epochs or in a rest"),
        ("units", "read", len(kept), ""),
        ("units", "kept", int(kept.sum()), ""),
        ("units", "dropped", int(gaps.sum()), "not measured in half of the bins"),
        ("units", "dropped", int(still.sum()), "a trace that does not change"),
    ]
    told = "no frame, or a gap in a kept cell"
    return np.nan_to_num(means), starts, epoch, used, filled.astype(float), kept, rows, told


def _frames_of(session: Session, lost: dict[str, int]) -> list[tuple[str, str, int, str]]:
    """Give the rows of qc for frames of the track."""
    total = len(session.position_t)
    return [
        ("frames", "read", total, ""),
        ("frames", "kept", total - sum(lost.values()), ""),
        *(("frames", "dropped", count, reason) for reason, count in lost.items()),
    ]


def _chosen_epochs(session: Session, wanted: list[str]) -> list[tuple[float, float, str]]:
    """Give the epochs to use; the whole recording when the file has none."""
    if not session.epochs:
        start, stop = session.span
        return [(start, float(np.nextafter(stop, np.inf)), "session")]
    chosen = [epoch for epoch in session.epochs if not wanted or epoch[2] in wanted]
    if not chosen:
        known = ", ".join(sorted({label for _, _, label in session.epochs}))
        fix = "name some of them under prepare.<dataset>.epochs"
        raise Refusal("epochs", f"none is called {', '.join(wanted)}", known, fix)
    return chosen


def _choose_units(counts, seconds, settings):
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


def hold_outs(
    used: np.ndarray, units: int, epoch: np.ndarray, trial: np.ndarray, settings: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the hold-out masks.

    ``speckled`` holds out entries at random. ``blocks`` holds out stretches of `block_s`, each of
    its own half of the units. ``co_smoothing`` holds out a quarter of the units in a share of the
    trials (or of the stretches, where there are no trials). Within `gap_s` of the ends of a
    stretch entries are withheld but not scored, since smooth factors would carry them over.

    Parameters
    ----------
    used : (T,) bool array
    units : int
    epoch, trial : (T,) int array
        Trial -1 is none.
    settings : dict

    Returns
    -------
    held_out, scored : (K, T, N) bool array
        What a fit does not see, and the part of it that is scored.
    """
    bins = len(used)
    held = np.zeros((settings["hold_outs"], bins, units), bool)
    scored = held.copy()
    for number in range(settings["hold_outs"]):
        draw = generator(number, "hold out")
        if settings["scheme"] == "speckled":
            held[number] = draw.random((bins, units)) < settings["held_out"]
            scored[number] = held[number]
        else:
            _hold_stretches(held[number], scored[number], epoch, trial, draw, settings)
    held[:, ~used], scored[:, ~used] = False, False
    return held, scored


def _hold_stretches(held, scored, epoch, trial, draw, settings) -> None:
    """Hold out some units over stretches of time, in place."""
    bins, units = held.shape
    length = max(1, round(settings["block_s"] / settings["bin_s"]))
    gap = round(settings["gap_s"] / settings["bin_s"])
    smoothing = settings["scheme"] == "co_smoothing"
    stretch = epoch * bins + np.arange(bins) // length
    if smoothing and (trial >= 0).any():
        stretch = trial
    names = np.unique(stretch[stretch >= 0]) if smoothing else np.unique(stretch)
    share = 0.25 if smoothing else 0.5
    # One stretch stays whole: a unit that is never observed cannot be fitted.
    count = round(min(settings["held_out"] / share, 1.0) * len(names))
    count = max(1, min(count, len(names) - 1))
    if len(names) < 2:
        found, fix = "a single trial or stretch", "shorten block_s, or take scheme: speckled"
        raise Refusal("hold-out masks", found, "two stretches or more", fix)
    same = draw.permutation(units)[: max(1, round(share * units))]
    for name in draw.permutation(names)[:count]:
        rows = np.flatnonzero(stretch == name)
        chosen = same if smoothing else draw.permutation(units)[: max(1, round(share * units))]
        held[np.ix_(rows, chosen)] = True
        inner = rows[gap : len(rows) - gap] if len(rows) > 2 * gap else rows[:0]
        scored[np.ix_(inner, chosen)] = True


def _report(rows: list[tuple[str, str, int, str]]) -> "pd.DataFrame":
    """Make qc.tsv, and hold kept + dropped against read for every item."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=["item", "kind", "count", "reason"])
    sums = frame[frame["item"] != "warning"].groupby(["item", "kind"])["count"].sum().unstack()
    wrong = sums[sums["read"] != sums["kept"] + sums["dropped"]]
    if len(wrong):
        raise AssertionError(f"not conserved: {', '.join(wrong.index)}")
    return frame


def write_session(arrays: dict[str, np.ndarray], path: str | Path) -> None:
    """Write session.h5.

    Holds counts (T, N), t (T,) bin centres in seconds, epoch, label, trial (-1 outside of trials),
    trial_label, exposure, position, speed, held_out and scored (K, T, N), used (T,), unit (N,),
    bin_s, position_unit, and kind: under ``traces`` counts are means of the signal, in its unit.
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
    for name in ("label", "trial_label", "unit"):
        arrays[name] = np.char.decode(arrays[name].astype("S"), "utf-8")
    arrays["bin_s"] = float(arrays["bin_s"])
    for name in ("position_unit", "kind"):
        arrays[name] = bytes(arrays[name]).decode()
    return arrays
