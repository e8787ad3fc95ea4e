"""Simulated multi-subject intracranial recordings with known sources, events and artefacts.

Every contact has its own carrier in each frequency band. The log-power of the carriers follows
slow sources that lie at fixed places of the brain, the same in all subjects, and reach smoothly
into space; so nearby contacts share power and not phase, and re-referencing does not remove it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.runtime.files import write_json, write_tsv
from popflow.runtime.seeds import generator

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

SLOW_RATE = 16.0
# Bands (Hz) and standard deviation of their carrier (µV): the power falls with frequency.
BANDS = {(1, 4): 30.0, (4, 8): 20.0, (8, 13): 15.0, (13, 32): 8.0, (32, 60): 4.0, (60, 115): 3.0}
BOX_MM = ((-62.0, -18.0), (-70.0, 45.0), (-22.0, 58.0))
REGIONS = {
    "frontal": (-38, 35, 22),
    "precentral": (-40, -8, 48),
    "parietal": (-40, -48, 44),
    "temporal": (-54, -22, -8),
    "insula": (-37, 4, 2),
    "hippocampus": (-27, -22, -15),
    "occipital": (-26, -70, 8),
}
SPACE = "MNI152NLin2009bAsym"


def unit_ids(settings: dict[str, Any]) -> list[str]:
    """List the ids of the sessions that `simulate_intracranial` writes."""
    return [f"sub-{number:02d}" for number in range(1, settings["subjects"] + 1)]


def simulate_intracranial(folder: str | Path, settings: dict[str, Any]) -> None:
    """Write a BIDS-iEEG folder of simulated recordings, and their sessions sheet last.

    Parameters
    ----------
    folder : path
    settings : dict
        As ``simulate-intracranial.schema.yaml`` describes.

    Notes
    -----
    Files per session: BrainVision (16 bit, 0.1 µV), ``*_ieeg.json``, ``*_channels.tsv`` (one
    contact is marked bad and is noise), ``*_electrodes.tsv``, ``*_coordsystem.json``,
    ``*_events.tsv`` with the columns gain (high, low) and shift (up, down).
    """
    import pandas as pd

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sources = _places(settings)
    names = unit_ids(settings)
    for name in names:
        _write_session(folder, name, sources, settings)
    write_json(
        {"Name": "Simulated iEEG", "BIDSVersion": "1.9.0"}, folder / "dataset_description.json"
    )
    sheet = pd.DataFrame({"session": names, "subject": names})
    sheet["path"] = [f"{name}/ieeg/{name}_task-events_ieeg.vhdr" for name in names]
    first_held_out = len(names) - settings["held_out"]
    sheet["role"] = ["both" if i < first_held_out else "held_out" for i in range(len(names))]
    write_tsv(sheet, folder / "sessions.tsv")


def _places(settings: dict[str, Any]) -> "np.ndarray":
    """Draw the places of the sources, spread out: each is the farthest of ten candidates."""
    import numpy as np

    rng = generator(settings["seed"], "sources")
    low, high = np.array(BOX_MM).T
    places = rng.uniform(low, high, size=(1, 3))
    while len(places) < settings["sources"]:
        candidates = rng.uniform(low, high, size=(10, 3))
        nearest = np.linalg.norm(candidates[:, None] - places, axis=2).min(axis=1)
        places = np.vstack([places, candidates[nearest.argmax()]])
    return places


def _electrodes(name: str, settings: dict[str, Any]) -> "pd.DataFrame":
    """Place shafts that enter at the side of the head and run inwards."""
    import numpy as np
    import pandas as pd

    rng = generator(settings["seed"], "electrodes", name)
    shafts = max(1, settings["shafts"] + int(rng.integers(-1, 2)))
    rows = []
    for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:shafts]:
        entry = np.array([-62.0, rng.uniform(*BOX_MM[1]), rng.uniform(*BOX_MM[2])])
        heading = np.array([1.0, *rng.normal(0, 0.25, 2)])
        heading /= np.linalg.norm(heading)
        for contact in range(1, settings["contacts"] + 1):
            place = entry + heading * settings["spacing_mm"] * (contact - 1)
            region = min(REGIONS, key=lambda r: float(np.linalg.norm(REGIONS[r] - place)))
            rows.append((f"{letter}{contact}", *place.round(2), "n/a", letter, region))
    return pd.DataFrame(rows, columns=["name", "x", "y", "z", "size", "group", "region"])


def _events(name: str, settings: dict[str, Any]) -> "pd.DataFrame":
    """Draw the events: both labels of each are independent fair coins."""
    import numpy as np
    import pandas as pd

    rng = generator(settings["seed"], "events", name)
    step = settings["event_s"] + settings["pause_s"]
    count = int((settings["minutes"] * 60 - step) // step)
    events = pd.DataFrame({"onset": np.arange(count) * step + step / 2})
    events["duration"] = settings["event_s"]
    events["trial_type"] = "event"
    events["gain"] = rng.choice(["low", "high"], count)
    events["shift"] = rng.choice(["down", "up"], count)
    return events


def _slow_sources(events: "pd.DataFrame", name: str, settings: dict[str, Any]) -> "np.ndarray":
    """Draw the slow log-power of each source and band, (sources, bands, time), unit variance."""
    import numpy as np
    from scipy.ndimage import gaussian_filter1d

    rng = generator(settings["seed"], "slow", name)
    length = int(settings["minutes"] * 60 * SLOW_RATE) + 1
    slow = rng.standard_normal((settings["sources"], len(BANDS), length))
    slow = gaussian_filter1d(slow, settings["timescale_s"] * SLOW_RATE / 2, mode="wrap")
    slow /= slow.std(axis=-1, keepdims=True)
    varied = max(1, round(settings["gain_sources"] * settings["sources"]))
    shifted = max(1, round(settings["shift_sources"] * settings["sources"]))
    # Both gains keep the mean of the squares at 1, so that the whole recording has unit variance.
    low = np.sqrt(2.0 / (1.0 + settings["gain_ratio"] ** 2))
    time = np.arange(length) / SLOW_RATE
    margin = settings["pause_s"] / 2
    for event in events.itertuples():
        inside = (time >= event.onset - margin) & (time < event.onset + event.duration + margin)
        gain = low * (settings["gain_ratio"] if event.gain == "high" else 1.0)
        slow[:varied, :, inside] *= gain
        slow[-shifted:, :, inside] += settings["shift"] * (0.5 if event.shift == "up" else -0.5)
    return slow


def _signals(
    electrodes: "pd.DataFrame", sources: "np.ndarray", slow: "np.ndarray", name: str, settings: Any
) -> "np.ndarray":
    """Make the voltages (channels, samples), µV."""
    import numpy as np
    from scipy.ndimage import gaussian_filter1d

    rate, samples = settings["rate"], int(settings["minutes"] * 60 * settings["rate"])
    time, slow_time = np.arange(samples) / rate, np.arange(slow.shape[-1]) / SLOW_RATE
    frequency = np.fft.rfftfreq(samples, 1 / rate)
    distance = np.linalg.norm(
        electrodes[["x", "y", "z"]].to_numpy(float)[:, None] - sources, axis=2
    )
    reach = np.exp(-0.5 * (distance / settings["kernel_mm"]) ** 2)
    reach /= np.linalg.norm(reach, axis=1, keepdims=True)
    shared, private = np.sqrt(1 - settings["private"]), np.sqrt(settings["private"])
    common = _coloured(generator(settings["seed"], "reference", name), frequency, samples)
    voltage = np.empty((len(electrodes), samples), dtype=np.float32)
    for row, weights in enumerate(reach):
        rng = generator(settings["seed"], "contact", name, row)
        spectrum = np.fft.rfft(rng.standard_normal(samples))
        own = rng.standard_normal((len(BANDS), slow.shape[-1]))
        own = gaussian_filter1d(own, settings["timescale_s"] * SLOW_RATE / 2, mode="wrap")
        own /= own.std(axis=-1, keepdims=True)
        power = settings["depth"] * (shared * np.tensordot(weights, slow, 1) + private * own)
        x = settings["reference_uv"] * common
        for band, ((low, high), spread) in enumerate(BANDS.items()):
            inside = (frequency >= low) & (frequency < min(high, 0.45 * rate))
            carrier = np.fft.irfft(np.where(inside, spectrum, 0), samples)
            x = x + carrier * (
                spread / carrier.std() * np.exp(0.5 * np.interp(time, slow_time, power[band]))
            )
        line = rng.uniform(0.5, 1.5) * settings["line_uv"]
        phase = 2 * np.pi * settings["line_hz"] * time
        voltage[row] = x + line * (np.sin(phase) + 0.3 * np.sin(2 * phase))
    return voltage


def _coloured(rng: "np.random.Generator", frequency: "np.ndarray", samples: int) -> "np.ndarray":
    """Draw 1/f noise of unit standard deviation."""
    import numpy as np

    spectrum = np.fft.rfft(rng.standard_normal(samples)) / np.maximum(frequency, 1.0)
    spectrum[0] = 0
    noise = np.fft.irfft(spectrum, samples)
    return noise / noise.std()


def _write_session(
    folder: Path, name: str, sources: "np.ndarray", settings: dict[str, Any]
) -> None:
    """Write one recording and its sidecars."""
    import numpy as np
    import pandas as pd
    from pybv import write_brainvision

    electrodes, events = _electrodes(name, settings), _events(name, settings)
    slow = _slow_sources(events, name, settings)
    voltage = _signals(electrodes, sources, slow, name, settings)
    # The last contact is broken, as the channel table says.
    broken = generator(settings["seed"], "broken", name).standard_normal(voltage.shape[1])
    voltage[-1] = 300.0 * broken
    place = folder / name / "ieeg"
    place.mkdir(parents=True, exist_ok=True)
    base = f"{name}_task-events"
    write_brainvision(
        data=np.clip(voltage, -3000, 3000) * 1e-6,
        sfreq=settings["rate"],
        ch_names=electrodes["name"].tolist(),
        fname_base=f"{base}_ieeg",
        folder_out=str(place),
        unit="µV",
        resolution=0.1,
        fmt="binary_int16",
        overwrite=True,
    )
    channels = pd.DataFrame({"name": electrodes["name"], "type": "SEEG", "units": "µV"})
    channels["sampling_frequency"] = settings["rate"]
    channels["status"] = ["good"] * (len(channels) - 1) + ["bad"]
    channels["status_description"] = ["n/a"] * (len(channels) - 1) + ["broken contact"]
    system = {
        "iEEGCoordinateSystem": SPACE,
        "iEEGCoordinateUnits": "mm",
        "iEEGCoordinateSystemDescription": "right, anterior, superior, from the centre",
    }
    ieeg = {"TaskName": "events", "SamplingFrequency": settings["rate"], "iEEGReference": "shared"}
    write_tsv(channels, place / f"{base}_channels.tsv")
    write_tsv(electrodes, place / f"{name}_space-{SPACE}_electrodes.tsv")
    write_json(system, place / f"{name}_space-{SPACE}_coordsystem.json")
    write_json(ieeg | {"PowerLineFrequency": settings["line_hz"]}, place / f"{base}_ieeg.json")
    write_tsv(events, place / f"{base}_events.tsv")
