"""What every reader tells about a file, and how it turns down one that is broken."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from popflow.runtime.refusal import Refusal, Refusals


@dataclass
class Description:
    """What reading a file or folder gives; its fields are the keys of ``popflow inspect --json``.

    Attributes
    ----------
    modality, format : str
    version : str or None
        Of the format.
    shape : list of int
        [rows, columns]: events × channels, samples × genes, samples in time × electrodes,
        spikes or bins × units.
    names : list of str
        One per column.
    raw_mean : list of float
        One per column, of the stored values (see the reader); empty without rows.
    first_row : list of float
    sheet_row : dict
        What a row of a sheet for it would look like.
    labels : dict or list or None
        Second names of columns, or the labels of rows and how often each stands there.
    rate_hz : float or None
    units : str or dict or None
    instrument : str or None
    span_s : float or None
        Length in time, seconds.
    prepared_mean : list of float or None
        One per column, after the reader's defaults for linear values (gain, log, units).
    warnings : list of str
        What was odd and how it was read.
    """

    modality: str
    format: str
    version: str | None
    shape: list[int]
    names: list[str]
    raw_mean: list[float]
    first_row: list[float]
    sheet_row: dict[str, str]
    labels: Any = None
    rate_hz: float | None = None
    units: Any = None
    instrument: str | None = None
    span_s: float | None = None
    prepared_mean: list[float] | None = None
    warnings: list[str] = field(default_factory=list)

    def keys(self) -> dict[str, Any]:
        """Give the stable keys, for JSON: numbers that are not finite become None."""
        return _finite(asdict(self))


def rate_of(text: str | None) -> float | None:
    """Read a rate in Hz that a sheet or file tells; None for anything but a positive number."""
    try:
        rate = float(text or 0)
    except ValueError:
        return None
    return rate if 0 < rate < math.inf else None


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON has no words for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def whole_file(path: str | Path, accepted: str = "a whole file", fix: str = "") -> Iterator[None]:
    """Turn whatever a library raises at a broken file into the one refusal.

    Parameters
    ----------
    path : path
    accepted, fix : str
        Of the refusal, where the reader knows better than "copy it again".
    """
    try:
        yield
    except (Refusal, Refusals):
        raise
    except Exception as error:  # libraries raise anything, from KeyError to struct.error
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        fix = fix or "copy it again from its source; a truncated copy is the usual cause"
        raise Refusal(f"file {path}", f"cannot be read ({reason})", accepted, fix) from error
