"""Read expression matrices of every kind that `inputs.matrices` knows, and check their names."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.inputs import matrices
from popflow.inputs.description import Description, whole_file
from popflow.inputs.registry import suffix_of
from popflow.inputs.spatial import add_positions
from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import anndata
    import pandas as pd

GENE_NAMES = re.compile(r"^(ENS[A-Z]*G\d{5,}|hsa-|mmu-|MIMAT\d|\d+(_[a-z])?_at$|AFFX-)", re.I)
SAMPLE_NAMES = re.compile(r"^(TCGA-|[ACGT]{10,}(-\d+)?$|GSM\d+)")
ENSEMBL_VERSION = re.compile(r"^(ENS[A-Z]*G\d+)\.(\d+)$")
MONTH = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
#: What a spreadsheet makes of MARCH1, SEPT2, DEC1, and of clone names such as 2310009E13.
DATE = r"\d{4}-\d{2}-\d{2}( \d{2}:\d{2}:\d{2})?|\d{1,2}/\d{1,2}/\d{2,4}"
MANGLED = re.compile(
    rf"^(\d{{1,2}}-{MONTH}t?|{MONTH}t?-\d{{1,2}}|\d(\.\d+)?E\+\d+|{DATE})$", re.IGNORECASE
)
SHARE_OF_NAMES = 0.5
ACCEPTED = ".h5ad, .zarr, .loom, .h5 (10x), a 10x folder, .csv, .tsv or .txt (also .gz)"


def read_expression(
    path: str | Path,
    orientation: str = "auto",
    genome: str | None = None,
    duplicates: str = "error",
) -> "anndata.AnnData":
    """Read a matrix of samples by genes.

    Parameters
    ----------
    path : path
        .h5ad, a zarr folder or .zarr.zip, .loom, .h5 (10x), a 10x folder, or .csv, .tsv, .txt, the
        last three plain or gzipped.
    orientation : {"auto", "samples_in_rows", "genes_in_rows"}
        Of a text table.
    genome : str, optional
        Of a 10x file with several.
    duplicates : {"error", "sum", "mean"}
        What to do with genes that stand there more than once.

    Returns
    -------
    AnnData
        `X` as stored, `obs` and `var` indexed by text ids; ``var["gene_symbol"]`` and
        ``var["gene_version"]`` where the file has them; places of spots (``spatial_x``, …) in
        `obs` where Space Ranger's folder ``spatial`` is there; ``uns["reading"]`` lists what was
        odd.

    Raises
    ------
    Refusal
        For a file that is absent, of another kind, broken, without X, with repeated sample or gene
        ids, or with gene names that a spreadsheet changed.
    """
    path = Path(path)
    if not path.exists():
        raise Refusal(f"file {path}", "no such file", "an expression matrix", "mend the path")
    with whole_file(path):
        adata = _read(path, orientation, genome)
        if 0 in adata.shape:
            found = f"{adata.n_obs} samples and {adata.n_vars} genes"
            raise Refusal(f"file {path}", found, "one of each or more", "export the whole matrix")
        adata = check_names(adata, path, duplicates)
        if path.is_dir() or suffix_of(path) == ".h5":
            add_positions(adata, path)
    adata.uns["source"] = str(path)
    return adata


def add_labels(adata: "anndata.AnnData", units: list[dict[str, str]], sheet: str) -> None:
    """Join the samples sheet to `obs` by id, in place; it wins over columns of the same name.

    Parameters
    ----------
    adata : AnnData
    units : list of dict
        Rows of the sheet; may be empty.
    sheet : str
        Its path, for messages.

    Raises
    ------
    Refusal
        When no sample of the matrix stands in the sheet.
    """
    import pandas as pd

    if not units:
        return
    table = pd.DataFrame(units).set_index("sample")
    known = adata.obs_names.isin(table.index)
    if not known.any():
        found = f"none of its samples (e.g. {table.index[0]!r}) stands in the matrix"
        accepted = f"ids as in the matrix (e.g. {adata.obs_names[0]!r})"
        raise Refusal(f"sheet {sheet}, column 'sample'", found, accepted, "mend the ids")
    if not known.all():
        _note(adata, f"{int((~known).sum())} samples do not stand in the sheet")
    for column in table:
        adata.obs[column] = table[column].reindex(adata.obs_names).to_numpy(dtype=object)


def _read(path: Path, orientation: str, genome: str | None) -> "anndata.AnnData":
    """Choose the reader of a file by its name."""
    name = path.name.lower()
    if name.endswith((".zarr", ".zarr.zip")) or (path.is_dir() and matrices.is_zarr(path)):
        return matrices.read_zarr(path)
    if path.is_dir():
        return matrices.read_10x_folder(path)
    suffix = suffix_of(path)
    if suffix == ".h5ad":
        return matrices.read_h5ad(path)
    if suffix == ".loom":
        return matrices.read_loom(path)
    if suffix == ".h5":
        return matrices.read_10x_h5(path, genome)
    if suffix in (".csv", ".tsv", ".txt"):
        return _table(path, orientation)
    raise Refusal(f"file {path}", "an unknown kind of file", ACCEPTED, "convert it")


def _table(path: Path, orientation: str) -> "anndata.AnnData":
    import anndata
    import pandas as pd

    frame = matrices.read_table(path)
    if orientation == "auto":
        orientation = orientation_of(frame)
    if orientation == "unknown":
        found = f"the names do not tell genes from samples (e.g. {frame.index[0]!r})"
        accepted = "samples_in_rows or genes_in_rows"
        raise Refusal(f"file {path}", found, accepted, "set prepare.<dataset>.orientation")
    if orientation == "genes_in_rows":
        frame = frame.T
    names = {"obs": frame.index, "var": frame.columns}
    tables = {key: pd.DataFrame(index=index) for key, index in names.items()}
    return anndata.AnnData(frame.to_numpy("float32"), **tables)


def orientation_of(frame: "pd.DataFrame") -> str:
    """Decide from names which way a table lies; never from its shape.

    Returns
    -------
    {"samples_in_rows", "genes_in_rows", "unknown"}
    """
    share = matrices.share_of
    rows = max(share(frame.index, GENE_NAMES), share(frame.columns, SAMPLE_NAMES))
    columns = max(share(frame.columns, GENE_NAMES), share(frame.index, SAMPLE_NAMES))
    if max(rows, columns) < SHARE_OF_NAMES or rows == columns:
        return "unknown"
    return "genes_in_rows" if rows > columns else "samples_in_rows"


def _strip_versions(adata: "anndata.AnnData") -> None:
    """Move versions of Ensembl ids into a column; copies such as _PAR_Y stay apart."""
    matches = [ENSEMBL_VERSION.match(name) for name in adata.var_names.astype(str)]
    if not any(matches):
        return
    plain = [m.group(1) if m else n for m, n in zip(matches, adata.var_names, strict=True)]
    if len(set(plain)) < len(set(adata.var_names)):
        _note(adata, "ids without their versions would coincide; versions are kept")
        return
    adata.var["gene_version"] = [m.group(2) if m else "" for m in matches]
    adata.var_names = plain


def _note(adata: "anndata.AnnData", text: str) -> None:
    adata.uns["reading"] = [*adata.uns.get("reading", []), text]


def check_names(adata: "anndata.AnnData", path: Path, duplicates: str) -> "anndata.AnnData":
    """Refuse repeated ids and mangled names, or merge repeated genes when told to.

    Versions of Ensembl ids are moved to a column first.
    """
    _strip_versions(adata)
    adata.obs_names, adata.var_names = adata.obs_names.astype(str), adata.var_names.astype(str)
    mangled = [gene for gene in adata.var_names if MANGLED.match(gene)]
    if mangled:
        found = f"gene names that a spreadsheet changed: {', '.join(mangled[:5])}"
        raise Refusal(f"file {path}", found, "gene names", "export again without the spreadsheet")
    for names, kind in ((adata.obs_names, "sample"), (adata.var_names, "gene")):
        repeated = names[names.duplicated()].unique()
        if len(repeated) and (kind == "sample" or duplicates == "error"):
            found = f"{len(repeated)} {kind} ids stand there more than once, e.g. {repeated[0]!r}"
            fix = "remove or rename the copies"
            if kind == "gene":
                fix = "use stable ids, or set prepare.<dataset>.duplicates to sum or mean"
            raise Refusal(f"file {path}", found, "every id once", fix)
    if not adata.var_names.has_duplicates:
        return adata
    if adata.X is None:
        fix = "merge them before, or use stable ids"
        raise Refusal(f"file {path}", "repeated genes in a large file", "every id once", fix)
    return _merge_genes(adata, duplicates)


def _merge_genes(adata: "anndata.AnnData", how: str) -> "anndata.AnnData":
    """Sum or average genes of the same id."""
    import anndata
    import numpy as np
    import scipy.sparse

    names, column = np.unique(adata.var_names, return_inverse=True)
    entries = (np.ones(len(column)), (np.arange(len(column)), column))
    gather = scipy.sparse.csr_matrix(entries, shape=(len(column), len(names)))
    if how == "mean":
        gather = gather @ scipy.sparse.diags(1 / np.asarray(gather.sum(0)).ravel())
    if how == "sum" and "counts" not in adata.layers and not _whole(adata.X):
        found = f"{len(column) - len(names)} repeated genes, whose values are no counts"
        fix = "set duplicates: mean, or give counts"
        raise Refusal(f"file {adata.uns.get('source', '')}", found, "counts to be summed", fix)
    first = np.unique(adata.var_names, return_index=True)[1]
    merged = anndata.AnnData(adata.X @ gather, obs=adata.obs, var=adata.var.iloc[first].copy())
    merged.var_names = names
    for name, layer in adata.layers.items():
        merged.layers[name] = layer @ gather
    merged.uns["reading"] = list(adata.uns.get("reading", []))
    _note(merged, f"{len(column) - len(names)} repeated genes merged by {how}")
    if adata.raw is not None:
        _note(merged, "raw is left out, since its genes are not those of X any more")
    return merged


def _whole(values: Any) -> bool:
    """Tell whether a matrix holds whole numbers."""
    import numpy as np

    held = values.data if hasattr(values, "indptr") else np.asarray(values)
    return bool(np.array_equal(held, np.round(held)))


def describe(path: str | Path, genome: str | None = None) -> Description:
    """Tell what reading an expression file gives; see `inputs.registry.describe`.

    A table whose names do not tell genes from samples is described as it stands, with a warning.
    """
    import numpy as np

    path, warnings, orientation = Path(path), [], "auto"
    if suffix_of(path) in (".csv", ".tsv", ".txt") and path.is_file():
        with whole_file(path):
            if orientation_of(matrices.read_table(path)) == "unknown":
                orientation = "samples_in_rows"
                warnings.append(
                    "the names do not tell genes from samples: described as samples in rows; "
                    "set prepare.<dataset>.orientation"
                )
    adata = read_expression(path, orientation, genome)
    values = adata.X
    if values is None:
        values = adata.layers["counts"] if "counts" in adata.layers else adata.raw.X
    first = values[0].toarray().ravel() if hasattr(values, "indptr") else np.asarray(values)[0]
    labels = _labels(adata.obs)
    warnings += [str(note) for note in adata.uns.get("reading", [])]
    warnings += [] if labels else ["no column of obs looks like a label"]
    if adata.raw is not None and adata.raw.shape[1] != adata.shape[1]:
        warnings.append(f"raw holds {adata.raw.shape[1]} genes, X {adata.shape[1]}")
    return Description(
        modality="expression",
        format="10x folder" if path.is_dir() and not matrices.is_zarr(path) else suffix_of(path),
        version=_version(path),
        shape=list(adata.shape),
        names=adata.var_names.tolist(),
        raw_mean=np.asarray(values.mean(0)).ravel().astype(float).tolist(),
        first_row=first.astype(float).tolist(),
        sheet_row={"dataset": "mydata", "modality": "expression", "source": str(path)},
        labels=labels,
        warnings=warnings,
    )


def _labels(obs: "pd.DataFrame") -> dict[str, dict[str, int]]:
    """Count the values of the columns that look like labels."""
    import pandas as pd

    return {
        column: obs[column].astype(str).value_counts().to_dict()
        for column in obs.columns
        if obs[column].nunique() <= 50 and not pd.api.types.is_float_dtype(obs[column])
    }


def _version(path: Path) -> str | None:
    """Give the encoding version of an h5ad file, where it has one."""
    import h5py

    if suffix_of(path) != ".h5ad":
        return None
    with h5py.File(path) as file:
        return file.attrs.get("encoding-version")


def check_source(
    row: dict[str, Any], units: list[dict[str, str]], settings: dict[str, Any]
) -> None:
    """Look for mistakes in a dataset; of an h5ad file the matrix is not loaded.

    Parameters
    ----------
    row : dict
        The dataset's row of the datasets sheet.
    units : list of dict
        The rows of its samples sheet, if it has one.
    settings : dict
        The dataset's block of `prepare`.

    Raises
    ------
    Refusal
        For a file that cannot be read, whose label or group column is absent or holds one value,
        or with fewer groups than folds.
    """
    path = Path(row["source"])
    if suffix_of(path) == ".h5ad" and not units:
        with whole_file(path):
            obs = _obs_of(path)
    else:
        keys = ("orientation", "genome", "duplicates")
        adata = read_expression(path, *(settings[key] for key in keys))
        add_labels(adata, units, str(row.get("sheet", "")))
        obs = adata.obs
    for key in ("label", "group"):
        if settings[key] is not None:
            _check_column(obs, settings[key], key, row, path)
    groups = len(obs) if settings["group"] is None else obs[settings["group"]].nunique()
    if groups < settings["folds"]:
        found, fix = f"{groups} groups for {settings['folds']} folds", "lower 'folds'"
        where = f"file {path}, key 'prepare.{row['dataset']}.folds'"
        raise Refusal(where, found, f"at most {groups} folds", fix)


def _check_column(
    obs: "pd.DataFrame", column: str, key: str, row: dict[str, Any], path: Path
) -> None:
    """Refuse a column of labels or groups that is absent or holds one value."""
    where = f"file {path}, obs"
    if column not in obs:
        known = ", ".join(map(str, obs.columns)) or "none: it holds no labels"
        fix = f"set prepare.{row['dataset']}.{key}, or name a samples sheet (sample, {column})"
        raise Refusal(where, f"no column {column!r}", f"one of {known}", fix)
    values = obs[column].dropna().astype(str).str.strip()
    if values[values != ""].nunique() < 2:
        fix = f"name another column under prepare.{row['dataset']}.{key}"
        raise Refusal(where, f"column {column!r} holds one class", "two or more", fix)


def _obs_of(path: Path) -> "pd.DataFrame":
    """Read the samples' table of an h5ad file, and see that there is a matrix."""
    import h5py
    from anndata.io import read_elem

    with h5py.File(path) as file:
        if not ({"X", "raw", "raw.X"} & set(file) or "counts" in file.get("layers", {})):
            fix = "write X before saving"
            raise Refusal(f"file {path}", "it holds no matrix X", matrices.NO_MATRIX, fix)
        return read_elem(file["obs"]) if isinstance(file["obs"], h5py.Group) else _old_obs(path)


def _old_obs(path: Path) -> "pd.DataFrame":
    """Read the samples' table of a file from before AnnData 0.7."""
    import anndata

    return anndata.read_h5ad(path, backed="r").obs
