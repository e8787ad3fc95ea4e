"""Read expression matrices: h5ad, 10x h5 and folders, csv and tsv tables."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.inputs.description import Description, whole_file
from popflow.inputs.registry import suffix_of
from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import anndata
    import pandas as pd

GENE_NAMES = re.compile(r"^(ENS[A-Z]*G\d{5,}|hsa-|mmu-|MIMAT\d)", re.IGNORECASE)
SAMPLE_NAMES = re.compile(r"^(TCGA-|[ACGT]{10,}(-\d+)?$)")
#: What a spreadsheet makes of MARCH1, SEPT2, DEC1.
DATES = re.compile(r"^\d{1,2}-(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)$", re.IGNORECASE)
SHARE_OF_NAMES = 0.5


def read_expression(path: str | Path, orientation: str = "auto") -> "anndata.AnnData":
    """Read a matrix of samples by genes.

    Parameters
    ----------
    path : path
        .h5ad, .h5 (10x), a 10x folder, .csv, .tsv or .txt, the last three plain or gzipped.
    orientation : {"auto", "samples_in_rows", "genes_in_rows"}
        Of a text table.

    Returns
    -------
    AnnData
        `X` as stored, `obs` and `var` indexed by text ids; `layers["counts"]` when the file has it.

    Raises
    ------
    Refusal
        For a file that is absent, of another kind, broken, without X, with repeated sample or gene
        ids, or with gene names that a spreadsheet turned into dates.
    """
    path = Path(path)
    name = path.name.lower().removesuffix(".gz")
    if not path.exists():
        raise Refusal(f"file {path}", "no such file", "an expression matrix", "mend the path")
    with whole_file(path):
        if path.is_dir():
            adata = _read_folder(path)
        elif name.endswith(".h5ad"):
            adata = _read_h5ad(path)
        elif name.endswith(".h5"):
            adata = _read_10x(path)
        elif name.endswith((".csv", ".tsv", ".txt")):
            adata = _read_table(path, orientation)
        else:
            accepted = ".h5ad, .h5 (10x), a 10x folder, .csv, .tsv or .txt (also .gz)"
            raise Refusal(f"file {path}", "an unknown kind of file", accepted, "convert it")
    _check(adata, path)
    return adata


def _read_h5ad(path: Path) -> "anndata.AnnData":
    import anndata

    adata = anndata.read_h5ad(path)
    if adata.X is None and adata.raw is None and "counts" not in adata.layers:
        accepted = "an h5ad with X, raw.X or layers['counts']"
        raise Refusal(f"file {path}", "it holds no matrix X", accepted, "write X before saving")
    return adata


def _read_10x(path: Path) -> "anndata.AnnData":
    import scanpy

    adata = scanpy.read_10x_h5(path, gex_only=False)
    return _by_gene_id(adata)


def _read_folder(path: Path) -> "anndata.AnnData":
    import scanpy

    if not any(path.glob("*matrix.mtx*")):
        accepted = "matrix.mtx, barcodes.tsv and features.tsv (or genes.tsv), plain or .gz"
        raise Refusal(f"folder {path}", "no matrix.mtx", accepted, "name the folder that holds it")
    return _by_gene_id(scanpy.read_10x_mtx(path, gex_only=False))


def _by_gene_id(adata: "anndata.AnnData") -> "anndata.AnnData":
    """Index genes by their stable id, keep expression only."""
    adata.var["gene_symbol"] = adata.var_names.astype(str)
    if "gene_ids" in adata.var:
        adata.var_names = adata.var["gene_ids"].astype(str)
    if "feature_types" in adata.var:
        adata = adata[:, adata.var["feature_types"] == "Gene Expression"].copy()
    return adata


def _read_table(path: Path, orientation: str) -> "anndata.AnnData":
    import anndata
    import pandas as pd

    name = path.name.lower().removesuffix(".gz")
    frame = pd.read_csv(
        path, sep="," if name.endswith(".csv") else "\t", index_col=0, keep_default_na=True
    )
    frame.index, frame.columns = frame.index.astype(str), frame.columns.astype(str)
    text = [column for column in frame.columns if not pd.api.types.is_numeric_dtype(frame[column])]
    if text:
        found = f"column {text[0]!r} holds text"
        fix = "move labels into a table of their own"
        raise Refusal(f"file {path}", found, "numbers after the first column", fix)
    if _genes_in_rows(frame, orientation, path):
        frame = frame.T
    return anndata.AnnData(frame.astype("float32"))


def _genes_in_rows(frame: "pd.DataFrame", orientation: str, path: Path) -> bool:
    """Decide from names which way a table lies; never from its shape."""
    if orientation != "auto":
        return orientation == "genes_in_rows"

    def share(names, pattern):
        return sum(bool(pattern.match(name)) for name in names) / max(len(names), 1)

    genes_in_rows = max(share(frame.index, GENE_NAMES), share(frame.columns, SAMPLE_NAMES))
    genes_in_columns = max(share(frame.columns, GENE_NAMES), share(frame.index, SAMPLE_NAMES))
    if max(genes_in_rows, genes_in_columns) < SHARE_OF_NAMES or genes_in_rows == genes_in_columns:
        found = f"the names do not tell genes from samples (e.g. {frame.index[0]!r})"
        accepted = "samples_in_rows or genes_in_rows"
        raise Refusal(f"file {path}", found, accepted, "set prepare.<dataset>.orientation")
    return genes_in_rows > genes_in_columns


def _check(adata: "anndata.AnnData", path: Path) -> None:
    """Refuse repeated ids and mangled names."""
    adata.obs_names, adata.var_names = adata.obs_names.astype(str), adata.var_names.astype(str)
    for names, kind in ((adata.obs_names, "sample"), (adata.var_names, "gene")):
        repeated = names[names.duplicated()].unique()
        if len(repeated):
            found = f"{len(repeated)} {kind} ids stand there more than once, e.g. {repeated[0]!r}"
            fix = "remove or rename the copies (genes: use stable ids, not symbols)"
            raise Refusal(f"file {path}", found, "every id once", fix)
    dates = [gene for gene in adata.var_names if DATES.match(gene)]
    if dates:
        found = f"gene names that a spreadsheet turned into dates: {', '.join(dates[:5])}"
        raise Refusal(f"file {path}", found, "gene names", "export again without the spreadsheet")


def describe(path: str | Path) -> Description:
    """Tell what reading an expression file gives; see `inputs.registry.describe`."""
    import numpy as np
    import pandas as pd

    adata = read_expression(path)
    first = adata.X[0].toarray().ravel() if hasattr(adata.X, "indptr") else np.asarray(adata.X)[0]
    labels = {
        column: adata.obs[column].astype(str).value_counts().to_dict()
        for column in adata.obs.columns
        if adata.obs[column].nunique() <= 50 and not pd.api.types.is_float_dtype(adata.obs[column])
    }
    warnings = [] if labels else ["no column of obs looks like a label"]
    return Description(
        modality="expression",
        format=Path(path).suffix or "10x folder",
        version=None,
        shape=list(adata.shape),
        names=adata.var_names.tolist(),
        raw_mean=np.asarray(adata.X.mean(0)).ravel().astype(float).tolist(),
        first_row=first.astype(float).tolist(),
        sheet_row={"dataset": "mydata", "modality": "expression", "source": str(path)},
        labels=labels,
        warnings=warnings,
    )


def check_source(
    row: dict[str, Any], units: list[dict[str, str]], settings: dict[str, Any]
) -> None:
    """Look for mistakes in a dataset without loading its matrix.

    Parameters
    ----------
    row : dict
        The dataset's row of the datasets sheet.
    units : list of dict
        Not used: expression has no units below the dataset.
    settings : dict
        The dataset's block of `prepare`.

    Raises
    ------
    Refusal
        For a file that is absent, no HDF5, without X, or whose label column is absent or holds
        one class.
    """
    path = Path(row["source"])
    if suffix_of(path) != ".h5ad":
        if not path.exists():
            raise Refusal(f"file {path}", "no such file", "an expression matrix", "mend the path")
        return
    with whole_file(path):
        obs = _obs_of(path)
    for key in ("label", "group"):
        column = settings[key]
        if column is None:
            continue
        where = f"file {path}, obs"
        if column not in obs:
            fix = f"set prepare.{row['dataset']}.{key} to one of them"
            known = ", ".join(obs.columns)
            raise Refusal(where, f"no column {column!r}", f"one of {known}", fix)
        if obs[column].nunique() < 2:
            fix = f"name another column under prepare.{row['dataset']}.{key}"
            raise Refusal(where, f"column {column!r} holds one class", "two or more", fix)


def _obs_of(path: Path) -> "pd.DataFrame":
    """Read the samples' table of an h5ad file, and see that there is a matrix."""
    import h5py
    from anndata.io import read_elem

    with h5py.File(path) as file:
        if not ({"X", "raw", "raw.X"} & set(file) or "counts" in file.get("layers", {})):
            accepted = "an h5ad with X, raw.X or layers['counts']"
            raise Refusal(f"file {path}", "it holds no matrix X", accepted, "write X before saving")
        return read_elem(file["obs"]) if isinstance(file["obs"], h5py.Group) else _old_obs(path)


def _old_obs(path: Path) -> "pd.DataFrame":
    """Read the samples' table of a file from before AnnData 0.7."""
    import anndata

    return anndata.read_h5ad(path, backed="r").obs
