"""Frozen temporal encoders: one channel's window of voltage becomes one vector.

An encoder has `name`, `dim`, `rate`, `window_s` and `digest`, and ``encode(x)`` maps voltages
(windows, channels, samples) to vectors (windows, channels, dim).
"""

from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np

from popflow.runtime.fingerprints import settings_fingerprint
from popflow.runtime.refusal import Refusal

# PopT's time-frequency image: 400 samples a frame and 350 of overlap at 2048 Hz, 40 bins.
FRAME_S, HOP_S, BINS = 400 / 2048, 50 / 2048, 40
EDGE_FRAMES, CENTRAL_FRAMES = 10, 10
BANDS_HZ = {
    "delta": (1.0, 4.0),
    "theta": (4.0, 8.0),
    "alpha": (8.0, 13.0),
    "low_beta": (13.0, 20.0),
    "high_beta": (20.0, 32.0),
    "low_gamma": (32.0, 55.0),
    "gamma": (65.0, 90.0),
    "high_gamma": (90.0, 150.0),
}


def stft_image(signal: np.ndarray, rate: float) -> np.ndarray:
    """Give the time-frequency image that BrainBERT and PopT work on.

    One-sided STFT with a Hann window and zero-padded ends, magnitude, first 40 bins (0 to 200 Hz),
    z-scored per bin over the window's own frames, ten frames cut at each end.

    Parameters
    ----------
    signal : ndarray
        (…, samples), any unit.
    rate : float
        Sampling rate, Hz. Frame (195 ms) and hop (24 ms) are kept in seconds; they are exactly the
        published ones at 2048 Hz.

    Returns
    -------
    ndarray
        (…, frames, 40), float32. Bins at or above the Nyquist frequency, and bins of a constant
        signal, are 0.

    Raises
    ------
    Refusal
        When the window is too short for one frame after the cut.
    """
    from scipy.signal import stft

    frame, hop = round(FRAME_S * rate), round(HOP_S * rate)
    frames = signal.shape[-1] / max(hop, 1) + 1
    if hop < 1 or signal.shape[-1] < frame or frames <= 2 * EDGE_FRAMES:
        raise Refusal(
            "time-frequency image",
            f"a window of {signal.shape[-1]} samples at {rate:g} Hz",
            f"a window of more than {2 * EDGE_FRAMES * HOP_S:.2f} s, sampled at 41 Hz or more",
            "set a longer window_s",
        )
    _, _, spectrum = stft(signal, rate, nperseg=frame, noverlap=frame - hop, axis=-1)
    magnitude = np.abs(spectrum[..., :BINS, :])
    mean, spread = magnitude.mean(-1, keepdims=True), magnitude.std(-1, keepdims=True)
    # A constant signal leaves rounding noise, which must not be blown up to unit variance.
    floor = 1e-12 * magnitude.max(initial=1e-300)
    image = (magnitude - mean) / np.where(spread > floor, spread, 1.0)
    image = np.nan_to_num(image[..., EDGE_FRAMES:-EDGE_FRAMES])
    missing = BINS - image.shape[-2]
    padding = [(0, 0)] * (image.ndim - 2) + [(0, max(missing, 0)), (0, 0)]
    return np.swapaxes(np.pad(image, padding), -1, -2).astype(np.float32)


class Encoder(Protocol):
    """What the preparation asks of a temporal encoder."""

    name: str
    rate: float
    window_s: float

    @property
    def dim(self) -> int:
        """Size of a vector."""

    @property
    def digest(self) -> str:
        """Hash of everything that the vectors depend on."""

    def encode(self, x: np.ndarray) -> np.ndarray:
        """Map (windows, channels, samples) to (windows, channels, dim), float32."""


@dataclass(frozen=True)
class _Fixed:
    """An encoder without weights, so that its settings are its digest."""

    rate: float
    window_s: float

    @property
    def digest(self) -> str:
        return settings_fingerprint([type(self).__name__, asdict(self), BANDS_HZ])


@dataclass(frozen=True)
class StftCenter(_Fixed):
    """The ten central frames of the time-frequency image, flattened: 400 numbers."""

    name: str = "stft-center"
    dim: int = CENTRAL_FRAMES * BINS

    def encode(self, x: np.ndarray) -> np.ndarray:
        """Encode windows; see `Encoder`."""
        image = stft_image(x, self.rate)
        middle = image.shape[-2] // 2
        if image.shape[-2] < CENTRAL_FRAMES:
            raise Refusal(
                "encoder stft-center",
                f"{image.shape[-2]} frames in a window of {self.window_s:g} s",
                f"at least {CENTRAL_FRAMES} frames",
                "set window_s to 0.8 or more",
            )
        centre = image[..., middle - CENTRAL_FRAMES // 2 : middle + CENTRAL_FRAMES // 2, :]
        return centre.reshape(*centre.shape[:-2], -1)


@dataclass(frozen=True)
class BandPower(_Fixed):
    """Log10 power (µV² in the band) of the bands of `BANDS_HZ` that lie below Nyquist."""

    name: str = "bandpower"

    @property
    def bands(self) -> dict[str, tuple[float, float]]:
        """The bands that the rate carries; the top one is cut at 0.9 of the Nyquist frequency."""
        top = 0.45 * self.rate
        return {name: (low, min(high, top)) for name, (low, high) in BANDS_HZ.items() if low < top}

    @property
    def dim(self) -> int:
        """One number per band."""
        return len(self.bands)

    def encode(self, x: np.ndarray) -> np.ndarray:
        """Encode windows; see `Encoder`."""
        from scipy.signal.windows import hann

        samples = x.shape[-1]
        taper = hann(samples, sym=False)
        centred = x - x.mean(-1, keepdims=True)
        power = np.abs(np.fft.rfft(centred * taper, axis=-1)) ** 2
        power *= 2.0 / (samples * (taper**2).sum())
        frequency = np.fft.rfftfreq(samples, 1.0 / self.rate)
        columns = [
            power[..., (frequency >= low) & (frequency < high)].sum(-1)
            for low, high in self.bands.values()
        ]
        return np.log10(np.stack(columns, axis=-1) + 1e-6).astype(np.float32)


@dataclass(frozen=True)
class Spectrogram(_Fixed):
    """A plain log spectrogram for the linear reference: 5 stretches of time × 15 Hz up to 200 Hz.

    The short-time spectrum has PopT's frames (195 ms every 24 ms), without z-score.
    """

    name: str = "spectrogram"
    stretches: int = 5

    @property
    def groups(self) -> int:
        """Groups of three bins that lie below the Nyquist frequency."""
        return min(BINS, round(FRAME_S * self.rate) // 2) // 3

    @property
    def dim(self) -> int:
        """Stretches times groups of bins."""
        return self.stretches * self.groups

    def encode(self, x: np.ndarray) -> np.ndarray:
        """Encode windows; see `Encoder`."""
        from scipy.signal import stft

        frame, hop = round(FRAME_S * self.rate), round(HOP_S * self.rate)
        _, _, spectrum = stft(x, self.rate, nperseg=frame, noverlap=frame - hop, axis=-1)
        bins = np.abs(spectrum[..., : 3 * self.groups, :])
        grouped = bins.reshape(*bins.shape[:-2], self.groups, 3, bins.shape[-1]).mean(-2)
        pieces = np.array_split(grouped, self.stretches, axis=-1)
        means = np.stack([piece.mean(-1) for piece in pieces], axis=-2)
        return np.log10(means + 1e-6).reshape(*x.shape[:-1], -1).astype(np.float32)


ENCODERS = {"stft-center": StftCenter, "bandpower": BandPower}


def temporal_encoder(name: str, rate: float, window_s: float) -> Encoder:
    """Make an encoder by its name in the settings.

    Raises
    ------
    Refusal
        When a band would hold no frequency of so short a window.
    """
    encoder = ENCODERS[name](rate, window_s)
    if name == "bandpower" and window_s < 0.5:
        raise Refusal(
            "encoder bandpower",
            f"window_s is {window_s:g}",
            "0.5 s or longer, else the low bands hold no frequency",
            "set window_s: 0.5 or longer under prepare",
        )
    return encoder
