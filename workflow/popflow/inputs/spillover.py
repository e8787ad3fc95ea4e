"""Spillover between fluorochromes: the matrix of a file, and compensation by it."""

from pathlib import Path
from typing import TYPE_CHECKING

from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import numpy as np

CHUNK_EVENTS = 100_000
MEND = "mend $SPILLOVER, or set compensate to off"


def read_spillover(
    text: dict[str, str], names: list[str], path: Path, notes: list[str] | None = None
) -> "tuple[list[str], np.ndarray] | None":
    """Parse ``$SPILLOVER``, ``SPILL`` or ``$COMP``: n, n names, n x n numbers row by row.

    Raises
    ------
    Refusal
        When the matrix is not square, holds what is no number, names a channel twice, or names one
        that the file lacks, unless it does nothing there.
    """
    import numpy as np

    notes = notes if notes is not None else []
    keys = [key for key in ("spillover", "spill", "comp") if text.get(key)]
    if not keys:
        return None
    fields = _fields(text[keys[0]])
    n = _count(fields[0])
    if n < 1 or len(fields) <= 1 + n:
        notes.append(f"${keys[0].upper()} holds no matrix and is not used")
        return None
    if len(fields) != 1 + n + n * n:
        found = f"${keys[0].upper()} holds {len(fields) - 1 - n} numbers for {n} channels"
        raise Refusal(f"file {path}", found, f"{n * n} numbers", MEND)
    listed = [_resolve_name(name, names) for name in fields[1 : n + 1]]
    matrix = np.array([_value(field) for field in fields[n + 1 :]]).reshape(n, n)
    if not np.isfinite(matrix).all():
        found = f"${keys[0].upper()} holds values that are no numbers"
        raise Refusal(f"file {path}", found, f"{n * n} numbers", MEND)
    if len(set(listed)) < n:
        found = f"${keys[0].upper()} names a channel twice ({', '.join(listed)})"
        raise Refusal(f"file {path}", found, "every channel once", MEND)
    keep = [i for i, name in enumerate(listed) if name in names]
    for i in set(range(n)) - set(keep):
        unit = np.eye(n)[i]
        if not (np.array_equal(matrix[i], unit) and np.array_equal(matrix[:, i], unit)):
            raise Refusal(
                f"file {path}",
                f"the spillover matrix names {listed[i]!r}, and the file has no such channel",
                f"channels of the file: {', '.join(names)}",
                MEND,
            )
    return [listed[i] for i in keep], matrix[np.ix_(keep, keep)]


def _fields(value: str) -> list[str]:
    """Split a matrix; a writer with decimal commas cuts every number in two, or uses semicolons."""
    separator = ";" if ";" in value else ","
    fields = [part.strip().strip('"') for part in value.strip(f" {separator}").split(separator)]
    n = _count(fields[0])
    numbers = fields[1 + n :]
    if separator == ";":
        numbers = [number.replace(",", ".") for number in numbers]
    elif n and len(numbers) == 2 * n * n:
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        numbers = [f"{whole}.{decimals}" for whole, decimals in pairs]
    return fields[: 1 + n] + numbers


def _count(text: str) -> int:
    try:
        return int(float(text))
    except ValueError:
        return 0


def _value(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _resolve_name(name: str, names: list[str]) -> str:
    """Give the channel that a spillover matrix means; some instruments write its number."""
    if name not in names and name.isdigit() and 1 <= int(name) <= len(names):
        return names[int(name) - 1]
    return name


def compensate(
    x: "np.ndarray", names: list[str], spillover: "tuple[list[str], np.ndarray]", where: str
) -> "np.ndarray":
    """Solve ``X_compensated S = X_observed`` for the fluorescence channels, in place.

    Parameters
    ----------
    x : (events, channels) float array
    names : list of str
        Of the columns of x.
    spillover : (list of str, (n, n) array)
    where : str
        Names the file in a refusal.

    Raises
    ------
    Refusal
        When the matrix cannot be solved safely (condition number above 1000).
    """
    import numpy as np

    listed, matrix = spillover
    condition = float(np.linalg.cond(matrix))
    if not condition < 1e3:
        raise Refusal(
            where,
            f"the spillover matrix has condition number {condition:.3g}",
            "below 1000",
            MEND,
        )
    columns = [names.index(name) for name in listed]
    for first in range(0, len(x), CHUNK_EVENTS):
        rows = slice(first, first + CHUNK_EVENTS)
        x[rows, columns] = np.linalg.solve(matrix.T, x[rows, columns].T.astype(float)).T
    return x
