"""Electrodes: shafts and contacts, re-referencing, and the frame in which positions are coded."""

import re
from dataclasses import dataclass

import numpy as np

from popflow.runtime.refusal import Refusal

CENTRED_FRAMES = ("mni", "icbm", "talairach", "acpc", "fsaverage", "ras", "ctf")
CENTRE_MM, LARGEST_MM = 128.0, 256.0


def parse_contact(name: str) -> tuple[str, int | None]:
    """Split an electrode's name into its shaft and contact number.

    Digits inside the stem belong to the stem (``T2bHa10`` is contact 10 of ``T2bHa``); the marks
    ``*`` and ``#`` are dropped.

    Examples
    --------
    >>> from popflow.prepare.montage import parse_contact
    >>> parse_contact("T2bHa10"), parse_contact("MISC")
    (('T2bHa', 10), ('MISC', None))
    """
    clean = name.replace("*", "").replace("#", "").strip()
    match = re.fullmatch(r"(.*\D)(\d+)", clean)
    return (match.group(1), int(match.group(2))) if match else (clean, None)


@dataclass
class Reference:
    """A linear re-reference.

    Attributes
    ----------
    kept : list of int
        Rows of the input that have an output.
    weights : ndarray
        (kept, channels); output = weights @ input.
    reasons : dict of int to str
        Why the others have none.
    """

    kept: list[int]
    weights: np.ndarray
    reasons: dict[int, str]

    def only(self, wanted: np.ndarray, reason: str) -> "Reference":
        """Leave out the outputs of channels that are not wanted, (channels,) bool."""
        rows = [place for place, channel in enumerate(self.kept) if wanted[channel]]
        others = {channel: reason for channel in np.flatnonzero(~wanted).tolist()}
        kept = [self.kept[place] for place in rows]
        return Reference(kept, self.weights[rows], self.reasons | others)


def rereference(
    names: list[str], xyz: np.ndarray, kinds: list[str], method: str, nearest: int = 2
) -> Reference:
    """Choose what is subtracted from each channel.

    Parameters
    ----------
    names : list of str
    xyz : ndarray
        (channels, 3), mm.
    kinds : list of str
        BIDS types; a common average and nearest contacts stay within a type.
    method : {"laplacian", "nearest", "car", "none"}
        ``laplacian``: the mean of both neighbours on the shaft (numbers ± 1), as PopT does;
        shaft ends are lost. ``nearest``: the mean of the `nearest` closest contacts. ``car``: the
        mean of all channels of the type.
    nearest : int

    Returns
    -------
    Reference
    """
    count = len(names)
    weights, reasons = np.eye(count), {}
    contacts = {parse_contact(name): index for index, name in enumerate(names)}
    for index, name in enumerate(names):
        same = [j for j in range(count) if kinds[j] == kinds[index]]
        if method == "none":
            continue
        if method == "car":
            others = same
        elif method == "nearest":
            distance = np.linalg.norm(xyz[same] - xyz[index], axis=1)
            order = [j for j in np.argsort(distance, kind="stable") if np.isfinite(distance[j])]
            others = [same[j] for j in order if same[j] != index][:nearest]
        else:
            stem, number = parse_contact(name)
            sides = [] if number is None else [(stem, number - 1), (stem, number + 1)]
            others = [contacts[side] for side in sides if side in contacts]
            others = others if len(others) == 2 else []
        if len(others) < (2 if method == "car" else 1):
            reasons[index] = f"no {method} reference (neighbours absent or bad)"
            continue
        weights[index, others] -= 1.0 / len(others)
    kept = [index for index in range(count) if index not in reasons]
    return Reference(kept, weights[kept], reasons)


def lip_coordinates(xyz: np.ndarray, frame: str, where: str) -> np.ndarray:
    """Turn coordinates in mm into L, I, P: mm growing to the left, inferior, posterior.

    Parameters
    ----------
    xyz : ndarray
        (channels, 3), mm. Frames centred in the head are right, anterior, superior.
    frame : str
        A centred frame (MNI…, Talairach, ACPC, fsaverage) or ``LIP`` (taken as it is).
    where : str
        Names the file, for messages.

    Returns
    -------
    ndarray
        (channels, 3): L = 128 - x, I = 128 - z, P = 128 - y (PopT, 4.1).

    Raises
    ------
    Refusal
        On an unknown frame, or a place outside 0 to 256 mm.
    """
    key = frame.lower().replace("-", "").replace("_", "")
    if key == "lip":
        lip = np.asarray(xyz, dtype=float)
    elif key.startswith(CENTRED_FRAMES):
        lip = CENTRE_MM - np.asarray(xyz, dtype=float)[:, [0, 2, 1]]
    else:
        raise Refusal(
            where,
            f"the coordinate frame {frame!r}",
            "MNI…, Talairach, ACPC, fsaverage (RAS, mm from the centre), or LIP",
            "write the frame under 'frame' in the sessions sheet",
        )
    outside = np.flatnonzero(((lip < 0) | (lip > LARGEST_MM)).any(axis=1))
    if len(outside):
        raise Refusal(
            where,
            f"{len(outside)} electrodes lie outside the head, e.g. {xyz[outside[0]].tolist()} mm",
            f"places within {CENTRE_MM:g} mm of the centre of the frame {frame}",
            "mend 'coordinate_units' or 'frame' in the sessions sheet",
        )
    return lip
