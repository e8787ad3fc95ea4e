"""Read tables of text strictly: a row with more cells than the header would shift every column."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.inputs.description import whole_file
from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import pandas as pd


def separator_of(path: Path) -> str:
    """Give the separator by the name of a table."""
    return "," if path.name.lower().removesuffix(".gz").endswith(".csv") else "\t"


def read_delimited(path: Path, **options: Any) -> "pd.DataFrame":
    """Read a table whose first line names its columns.

    Parameters
    ----------
    path : path
        .csv with commas, anything else with tabs.
    **options
        Of `pandas.read_csv`.

    Raises
    ------
    Refusal
        For a broken or empty table, and for rows with more cells than the header.
    """
    import pandas as pd

    fix = "write numbers with a point, and no separator at the end of a line"
    with whole_file(path, "one cell under every name of the header", fix):
        with warnings.catch_warnings():
            # pandas would take the first column for row names, or cut the last one off.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                path, sep=separator_of(path), index_col=False, encoding="utf-8-sig", **options
            )
    table.columns = [str(name).strip() for name in table.columns]
    if not len(table):
        found = "a header without rows"
        raise Refusal(f"file {path}", found, "one row or more", "export it again")
    return table
