"""Events exported as text: FlowJo's and other programs' .csv, one row per event."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from popflow.inputs.delimited import read_delimited, separator_of
from popflow.inputs.description import whole_file
from popflow.inputs.fcs import Fcs
from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import numpy as np

SUFFIXES = (".csv", ".tsv")


@dataclass
class EventTable(Fcs):
    """An exported table of events, with the interface of `fcs.Fcs`; values are linear as they are.

    A column ``FITC-A :: CD3`` is channel FITC-A with marker CD3. A prefix ``Comp-`` says that the
    export is compensated.
    """

    def read(self, linear: bool = True) -> "np.ndarray":
        """Read all events, (events, channels) float32."""
        import numpy as np
        import pandas as pd

        if not self.events:
            return np.empty((0, len(self.channels)), np.float32)
        table = read_delimited(self.path)
        text = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
        if text:
            found = f"column {text[0]!r} holds text"
            fix = "export numbers with a decimal point; put labels into 'cell_types'"
            raise Refusal(f"file {self.path}", found, "numbers in every column", fix)
        return table.to_numpy("float32")

    @property
    def limits(self) -> "np.ndarray":
        """A table tells no limits: infinite."""
        import numpy as np

        return np.full(len(self.channels), np.inf, np.float32)


def open_events(path: str | Path) -> EventTable:
    """Open a table of events by its header.

    Raises
    ------
    Refusal
        When it is absent, empty, or its header holds numbers (no names of channels).
    """
    import csv

    import pandas as pd

    path = Path(path)
    if not path.is_file():
        fix = "mend the path in the samples sheet"
        raise Refusal(f"file {path}", "no such file", "a table of events", fix)
    with whole_file(path), open(path, newline="", encoding="utf-8-sig") as file:
        header = [name.strip() for name in next(csv.reader(file, delimiter=separator_of(path)), [])]
        events = sum(1 for line in file if line.strip())
    if not header or all(_is_number(name) for name in header):
        found = "no header with names of channels"
        raise Refusal(f"file {path}", found, "names in the first line", "export with a header")
    parts = [name.split("::") for name in header]
    channels = pd.DataFrame(
        {
            "name": [part[0].strip() for part in parts],
            "marker": [part[1].strip() if len(part) > 1 else "" for part in parts],
        }
    )
    defaults = {"range": 0.0, "gain": 1.0, "decades": 0.0, "log_zero": 1.0, "bits": 32}
    channels = channels.assign(**defaults, kind="F", bytes=4)
    return EventTable(path, "csv", events, channels, None, {}, 0, "<")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
