"""Place cells on a real path, with assemblies that task phases switch on and off; as NWB."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from popflow.runtime.files import atomic
from popflow.runtime.seeds import generator

PHASES = ("foraging", "memory")


@dataclass
class Truth:
    """What was simulated, on the clock of the path.

    Attributes
    ----------
    t : (T,) array
        Seconds.
    factors : (T, D) array
        f, unit variance.
    masks : (T, D) array
        z.
    loadings : (N, D) array
    log_rate : (T, N) array
        Of spikes per second.
    """

    t: np.ndarray
    factors: np.ndarray
    masks: np.ndarray
    loadings: np.ndarray
    log_rate: np.ndarray


def unit_ids(settings: dict[str, Any]) -> list[str]:
    """Place cells have one session per dataset."""
    return []


def simulate_placecells(
    settings: dict[str, Any], trajectory: str | Path, path: str | Path
) -> Truth:
    """Write an NWB file with units, position and task phases.

    The log rate of a unit is a baseline, a Gaussian place field, and assemblies C z f: each
    assembly follows a smooth Gaussian process and acts in one phase only, where it is switched on
    and off at once; the last one is always on. Phases have irregular lengths, so that rotating
    their labels in time is a fair null.

    Parameters
    ----------
    settings : dict
        Of ``workflow/schemas/simulate-placecells.schema.yaml``.
    trajectory : path
        npz with `t` (P,) seconds and `pos` (P, 2) metres, of a real animal.
    path : path
        The NWB file.
    """
    with np.load(trajectory, allow_pickle=False) as stored:
        t, xy = stored["t"].astype(float), stored["pos"].astype(float)
    grid = np.arange(t[0], t[-1], settings["step_s"])
    place = np.column_stack([np.interp(grid, t, xy[:, axis]) for axis in range(2)])
    epochs = _phases(settings, float(grid[0]), float(grid[-1]))
    truth = _population(settings, grid, place, epochs)
    draw = generator(settings["seed"], "spikes")
    counts = draw.poisson(np.exp(truth.log_rate) * settings["step_s"])
    spikes = []
    for unit in range(counts.shape[1]):
        start = np.repeat(grid, counts[:, unit])
        spikes.append(np.sort(start + draw.random(len(start)) * settings["step_s"]))
    _write(path, spikes, t, xy, epochs)
    return truth


def _phases(settings: dict[str, Any], start: float, stop: float) -> list[tuple[float, float, str]]:
    """Cut the session into alternating phases of irregular length."""
    draw = generator(settings["seed"], "phases")
    epochs, now = [], start
    while now < stop:
        length = settings["phase_s"] * draw.uniform(0.5, 1.5)
        end = now + length if stop - now - length > 0.5 * settings["phase_s"] else stop
        epochs.append((now, end, PHASES[len(epochs) % 2]))
        now = end
    return epochs


def _population(settings, grid, place, epochs) -> Truth:
    """Draw factors, masks, loadings and rates."""
    draw = generator(settings["seed"], "population")
    n, d = settings["units"], settings["assemblies"]
    phase = np.zeros(len(grid), int)
    for begin, end, label in epochs:
        phase[(grid >= begin) & (grid < end)] = PHASES.index(label)
    masks = np.ones((len(grid), d))
    for factor in range(d - 1):
        switched = _switching(draw, grid, settings["on_s"], settings["off_s"])
        masks[:, factor] = (phase == factor % 2) & switched
    factors = np.column_stack(
        [
            _smooth_process(draw, len(grid), settings["timescale_s"] / settings["step_s"])
            for _ in range(d)
        ]
    )
    member = draw.random((n, d)) < settings["share"]
    loadings = draw.normal(0, settings["strength"], (n, d)) * member
    centres = draw.uniform(0, 1, (n, 2))
    distance = ((place[:, None, :] - centres) ** 2).sum(2)
    field = settings["field_gain"] * np.exp(-distance / (2 * settings["field_m"] ** 2))
    base = np.log(settings["rate_hz"]) + draw.normal(0, 0.4, n)
    log_rate = base + field + (masks * factors) @ loadings.T
    return Truth(grid, factors, masks, loadings, np.minimum(log_rate, np.log(150.0)))


def _switching(draw: np.random.Generator, grid: np.ndarray, on_s: float, off_s: float):
    """Draw a two-state series with exponential dwell times, (T,) bool; always on for off_s = 0."""
    on = np.ones(len(grid), bool)
    now = grid[0]
    while off_s > 0 and now < grid[-1]:
        stop = now + draw.exponential(on_s)
        again = stop + draw.exponential(off_s)
        on[(grid >= stop) & (grid < again)] = False
        now = again
    return on


def _smooth_process(draw: np.random.Generator, length: int, scale: float) -> np.ndarray:
    """Draw a squared-exponential process of a length-scale in steps: smoothed white noise."""
    from scipy.ndimage import gaussian_filter1d

    margin = int(6 * scale)
    noise = draw.normal(size=length + 2 * margin)
    smooth = gaussian_filter1d(noise, scale / np.sqrt(2))[margin : margin + length]
    return smooth / smooth.std()


def _write(path, spikes, t, xy, epochs) -> None:
    """Write NWB 2 with a fixed identifier and date, so that equal data give equal content."""
    from pynwb import NWBHDF5IO, NWBFile
    from pynwb.behavior import Position

    file = NWBFile(
        session_description="simulated place cells on a real path",
        identifier="popflow-simulated",
        session_start_time=datetime(2000, 1, 1, tzinfo=UTC),
    )
    for times in spikes:
        file.add_unit(spike_times=times)
    position = Position(name="Position")
    position.create_spatial_series(
        name="position", data=xy, timestamps=t, unit="meters", reference_frame="corner of the box"
    )
    file.create_processing_module("behavior", "position").add(position)
    for begin, end, label in epochs:
        file.add_epoch(start_time=begin, stop_time=end, tags=[label])
    with atomic(path) as temporary, NWBHDF5IO(str(temporary), "w") as io:
        io.write(file)
