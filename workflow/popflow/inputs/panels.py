"""Which channel of a file holds which marker."""

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from popflow.inputs.sheets import read_sheet
from popflow.runtime.refusal import Refusal, Refusals

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class PanelRow:
    """A channel that the panel lists.

    Attributes
    ----------
    channel, marker : str
        Marker is the channel's name where the panel gives none.
    role : {"type", "state", "qc", "ignore"}
    cofactor : float
    low, high : float or None
        Gate on linear values.
    """

    channel: str
    marker: str
    role: str
    cofactor: float
    low: float | None = None
    high: float | None = None

    @property
    def modelled(self) -> bool:
        """Whether the marker enters the models."""
        return self.role in ("type", "state")

    @property
    def gated(self) -> bool:
        """Whether events are dropped by their value."""
        return self.low is not None or self.high is not None


def read_panel(path: str | Path, cofactor: float = 5.0) -> list[PanelRow]:
    """Read a panel sheet.

    Parameters
    ----------
    path : str or Path
    cofactor : float
        For markers without one.

    Raises
    ------
    Refusal, Refusals
        When columns are absent, a marker stands there twice, or none is of class type or state.
    """
    sheet = read_sheet(path, "sheet-panel", unique="channel")
    mistaken = [_odd_numbers(row, path) for row in sheet]
    if any(mistaken):
        raise Refusals([mistake for mistake in mistaken if mistake])
    rows = [
        PanelRow(
            channel=row["channel"],
            marker=row.get("marker", row["channel"]),
            role=row.get("class", "type"),
            cofactor=float(row.get("cofactor", cofactor)),
            low=float(row["low"]) if "low" in row else None,
            high=float(row["high"]) if "high" in row else None,
        )
        for row in sheet
    ]
    seen: dict[str, str] = {}
    for row in rows:
        key = canonical(row.marker)
        if row.modelled and key in seen:
            found = f"the markers {seen[key]!r} and {row.marker!r} are the same"
            accepted = "every marker once, whatever its case and dashes"
            raise Refusal(f"sheet {path}, column 'marker'", found, accepted, "rename or ignore one")
        if row.modelled:
            seen[key] = row.marker
    if not seen:
        accepted = "one marker or more of class type or state"
        raise Refusal(
            f"sheet {path}, column 'class'", "no marker to model", accepted, "set a class"
        )
    return rows


def _odd_numbers(row: dict[str, str], path: str | Path) -> Refusal | None:
    """Refuse a cofactor that is not positive, and a gate that no event passes."""
    where = f"sheet {path}, channel {row['channel']!r}"
    numbers = {}
    for column in ("cofactor", "low", "high"):
        try:
            numbers[column] = float(row[column]) if column in row else None
        except ValueError:
            found = f"{column} is {row[column]!r}"
            return Refusal(where, found, "a number", "write it with a decimal point")
    if numbers["cofactor"] is not None and not 0 < numbers["cofactor"] < float("inf"):
        found = f"cofactor is {row['cofactor']}"
        return Refusal(where, found, "a number above 0 (5 mass, 150 flow)", "mend the cofactor")
    if None not in (numbers["low"], numbers["high"]) and numbers["low"] >= numbers["high"]:
        found = f"low {row['low']} is not below high {row['high']}"
        return Refusal(where, found, "low below high", "exchange them")
    return None


def canonical(name: str) -> str:
    """Reduce a name to what counts when names are compared: letters and digits, in capitals.

    >>> canonical("HLA-DR") == canonical("hladr")
    True
    """
    return re.sub(r"[^A-Z0-9]", "", name.upper())


def match_panel(panel: list[PanelRow], channels: "pd.DataFrame", where: str) -> list[int]:
    """Find the column of each panel row in a file.

    A row is found by its marker among the file's markers ($PnS, or $PnN where that is blank), and,
    if no channel carries the marker, by its channel among the names ($PnN). The order of the
    channels in the file does not matter.

    Parameters
    ----------
    panel : list of PanelRow
        Rows of class ignore should be left out.
    channels : DataFrame
        Columns name and marker, a row per channel of the file.
    where : str
        Names the file in a refusal.

    Returns
    -------
    list of int
        Positions in `channels`, in the order of the panel.

    Raises
    ------
    Refusal
        When a marker is missing or ambiguous, or its channel holds another marker.
    """
    names = channels["name"].tolist()
    markers = channels["marker"].str.strip().tolist()
    # A marker field that repeats the channel's name tells nothing.
    markers = ["" if m == n else m for n, m in zip(names, markers, strict=True)]
    found = [_find(row, names, markers, where) for row in panel]
    missing = [row.marker for row, place in zip(panel, found, strict=True) if place is None]
    if missing:
        labels = [m or n for n, m in zip(names, markers, strict=True)]
        near = {m: difflib.get_close_matches(m, labels, 1) for m in missing}
        hints = [f"{m} (near: {match[0]})" if match else m for m, match in near.items()]
        raise Refusal(
            where,
            f"no channel for the marker{'s' * (len(missing) > 1)} {', '.join(hints)}",
            f"every marker of the panel; the file has {', '.join(labels)}",
            "mend marker or channel in the panel, or set its class to ignore",
        )
    return [place for place in found if place is not None]


def _find(row: PanelRow, names: list[str], markers: list[str], where: str) -> int | None:
    """Find one row of the panel, or None."""
    wanted = canonical(row.marker)
    hits = [i for i, m in enumerate(markers) if canonical(m or names[i]) == wanted]
    if not hits:
        hits = [i for i, m in enumerate(markers) if wanted in map(canonical, m.split("_"))]
    if len(hits) > 1:
        exact = [i for i in hits if canonical(names[i]) == canonical(row.channel)]
        if len(exact) != 1:
            listed = ", ".join(names[i] for i in hits)
            accepted = "one channel per marker, or the channel's name in the panel"
            fix = "write the channel's name under 'channel' in the panel"
            raise Refusal(where, f"marker {row.marker!r} stands at {listed}", accepted, fix)
        hits = exact
    if hits:
        return hits[0]
    hits = [i for i, n in enumerate(names) if canonical(n) == canonical(row.channel)]
    if not hits:
        return None
    if len(hits) > 1:
        accepted, fix = "every channel name once", "rename a channel in the file"
        raise Refusal(where, f"{len(hits)} channels are named {row.channel!r}", accepted, fix)
    label = markers[hits[0]]
    if label and row.marker != row.channel:
        raise Refusal(
            where,
            f"channel {row.channel!r} holds marker {label!r}, the panel says {row.marker!r}",
            "the same marker in panel and file",
            "mend the marker in the panel",
        )
    return hits[0]
