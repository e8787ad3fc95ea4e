"""Places of spots beside a 10x matrix: Space Ranger's tissue positions."""

from pathlib import Path
from typing import TYPE_CHECKING

from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import anndata
    import pandas as pd

COLUMNS = ("in_tissue", "array_row", "array_col", "pxl_row_in_fullres", "pxl_col_in_fullres")
#: What `obs` gets; x runs along the columns of the image.
PLACES = ("in_tissue", "array_row", "array_col", "spatial_y", "spatial_x")


def positions_file(path: Path) -> Path | None:
    """Find ``spatial/tissue_positions.csv`` (or its older name) beside a matrix."""
    folders = [path.parent] if path.is_file() else [path, path.parent]
    names = ("tissue_positions.csv", "tissue_positions_list.csv")
    found = (folder / "spatial" / name for folder in folders for name in names)
    return next((file for file in found if file.is_file()), None)


def read_positions(path: Path) -> "pd.DataFrame":
    """Read places by barcode; Space Ranger 2 writes a header, older versions none.

    Returns
    -------
    DataFrame
        Indexed by barcode, with the columns `PLACES`.
    """
    import pandas as pd

    with open(path, encoding="utf-8-sig") as file:
        header = file.readline().lower().startswith("barcode")
    names = ["barcode", *PLACES]
    table = pd.read_csv(path, header=0 if header else None, dtype={0: str}, encoding="utf-8-sig")
    if table.shape[1] != len(names):
        accepted = f"barcode, {', '.join(COLUMNS)}"
        found = f"{table.shape[1]} columns"
        raise Refusal(f"file {path}", found, accepted, "copy the file of Space Ranger again")
    if header:
        table = table.rename(columns=str.lower)[["barcode", *COLUMNS]]
    table.columns = names
    return table.set_index("barcode")


def add_positions(adata: "anndata.AnnData", path: Path) -> None:
    """Join the places of spots to `obs`, where Space Ranger's folder stands beside the matrix.

    Raises
    ------
    Refusal
        When a spot of the matrix has no place, or one place twice.
    """
    file = positions_file(path)
    if file is None:
        return
    places = read_positions(file)
    absent = ~adata.obs_names.isin(places.index)
    if absent.any() or places.index.has_duplicates:
        found = f"{int(absent.sum())} of {len(absent)} spots have no place"
        if places.index.has_duplicates:
            found = f"{int(places.index.duplicated().sum())} barcodes stand there twice"
        fix = "copy the folder spatial of the same run beside the matrix, or remove it"
        raise Refusal(f"file {file}", found, "one place for every spot of the matrix", fix)
    joined = places.loc[adata.obs_names]
    if joined.isna().any(axis=None):
        spot = joined.index[joined.isna().any(axis=1)][0]
        raise Refusal(f"file {file}, spot {spot}", "a place is missing", "numbers", "mend the row")
    for column in PLACES:
        adata.obs[column] = joined[column].to_numpy()
    rest = len(places) - len(joined)
    note = f"places of {len(joined)} spots from {file.name}; {rest} more are not in the matrix"
    adata.uns["reading"] = [*adata.uns.get("reading", []), note]
