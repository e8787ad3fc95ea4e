"""Files of expression matrices: h5ad, zarr, loom, 10x HDF5, 10x folders, text tables.

Each reader gives samples in rows, text ids, what the file says of genes in `var`, and what was odd
in ``uns["reading"]``.
"""

import csv
import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import anndata
    import h5py
    import numpy as np
    import pandas as pd

GENE_EXPRESSION = "Gene Expression"
PIECE = 10_000_000
NO_MATRIX = "an h5ad with X, raw.X or layers['counts']"


def read_h5ad(path: Path) -> "anndata.AnnData":
    """Read h5ad of any version since AnnData 0.6."""
    import anndata
    import h5py

    with h5py.File(path) as file:
        check_pointers(file, path)
        version = file.attrs.get("encoding-version", "none")
    try:
        adata = anndata.read_h5ad(path)
    except Exception as error:
        found = f"cannot be read (encoding version {version}; {' '.join(str(error).split())[:200]})"
        accepted = f"a whole file that anndata {anndata.__version__} reads"
        fix = "copy it again if it was cut off; if a newer anndata wrote it, write it with this one"
        raise Refusal(f"file {path}", found, accepted, fix) from error
    return with_matrix(adata, path)


def with_matrix(adata: "anndata.AnnData", path: Path) -> "anndata.AnnData":
    """Refuse an object without any matrix."""
    if adata.X is None and adata.raw is None and "counts" not in adata.layers:
        fix = "write X before saving"
        raise Refusal(f"file {path}", "it holds no matrix X", NO_MATRIX, fix)
    return adata


def check_pointers(file: "h5py.Group", path: Path) -> None:
    """Refuse sparse matrices of an h5ad file whose pointers or indices lead outside.

    Row pointers that overflowed 32 bits read back as zeros, and an index outside of the matrix can
    end the whole process.
    """
    import h5py

    layers = [f"layers/{name}" for name in file.get("layers", {})]
    for name in ("X", "raw/X", "raw.X", *layers):
        group = file.get(name)
        if isinstance(group, h5py.Group) and "indptr" in group:
            shape = group.attrs.get("shape", group.attrs.get("h5sparse_shape"))
            kind = group.attrs.get("encoding-type", group.attrs.get("h5sparse_format", "csr"))
            by_rows = "csr" in str(kind)
            _check_group(group, int(shape[1] if by_rows else shape[0]), name, path)


def _check_group(group: "h5py.Group", minor: int, name: str, path: Path) -> None:
    """Check pointers and, piece by piece, indices of one sparse matrix."""
    pointers, indices, count = group["indptr"][:], group["indices"], len(group["data"])
    falls = (pointers[1:] < pointers[:-1]).any() or pointers[0] != 0
    if falls or pointers[-1] != count or len(indices) != count:
        found = f"{name}/indptr falls or ends at {pointers[-1]} of {count}"
        fix = "write the file again with 64-bit row pointers"
        raise Refusal(f"file {path}", found, "row pointers that rise to the end", fix)
    for start in range(0, count, PIECE):
        piece = indices[start : start + PIECE]
        if piece.min() < 0 or piece.max() >= minor:
            found = f"{name}/indices hold {piece.max()} (smallest {piece.min()}) of {minor}"
            fix = "copy the file again; it is damaged"
            raise Refusal(f"file {path}", found, f"indices from 0 to {minor - 1}", fix)


def read_zarr(path: Path) -> "anndata.AnnData":
    """Read a zarr folder or a .zarr.zip."""
    import anndata
    import scipy.sparse
    from zarr.storage import ZipStore

    if path.is_dir():
        adata = anndata.read_zarr(path)
    else:
        store = ZipStore(path, mode="r")
        try:
            adata = anndata.read_zarr(store)
        finally:
            store.close()
    for values in (adata.X, *adata.layers.values()):
        if scipy.sparse.issparse(values):
            values.check_format(full_check=True)
    return with_matrix(adata, path)


def is_zarr(path: Path) -> bool:
    """Tell whether a folder is a zarr group."""
    return any((path / name).exists() for name in (".zgroup", ".zattrs", "zarr.json"))


def read_loom(path: Path) -> "anndata.AnnData":
    """Read loom: genes in rows of ``matrix``, their attributes in row_attrs, cells in col_attrs."""
    import anndata
    import h5py
    import scipy.sparse

    with h5py.File(path) as file:
        if "matrix" not in file:
            found = f"no dataset 'matrix' (found {', '.join(file)})"
            raise Refusal(f"file {path}", found, "a loom file", "mend the path")
        matrix = file["matrix"]
        blocks = [
            scipy.sparse.csr_matrix(matrix[start : start + 1000])
            for start in range(0, matrix.shape[0], 1000)
        ]
        var = _attributes(file.get("row_attrs"), ("Accession", "Gene", "gene", "var_names"))
        obs = _attributes(file.get("col_attrs"), ("CellID", "obs_names", "cell"))
    x = scipy.sparse.vstack(blocks).T.tocsr()
    return by_gene_id(anndata.AnnData(x, obs=obs, var=var), "Gene", "Accession")


def _attributes(group: Any, ids: tuple[str, ...]) -> "pd.DataFrame":
    """Turn one-dimensional attributes into a table, indexed by the first id that is there."""
    import pandas as pd

    held = {name: group[name][:] for name in (group or {}) if group[name].ndim == 1}
    columns = {
        name: [v.decode() if isinstance(v, bytes) else v for v in values.tolist()]
        for name, values in held.items()
    }
    table = pd.DataFrame(columns)
    known = [name for name in ids if name in table]
    table.index = table[known[0]].astype(str) if known else table.index.astype(str)
    table.index.name = None
    return table


def read_10x_h5(path: Path, genome: str | None) -> "anndata.AnnData":
    """Read a filtered or raw matrix of Cell Ranger 2 (a group per genome) or later."""
    import h5py
    import scanpy

    with h5py.File(path) as file:
        whole = {"barcodes", "data", "indices", "indptr", "shape"}
        genomes = [
            name
            for name, group in file.items()
            if isinstance(group, h5py.Group) and whole <= set(group)
        ]
        for name in genomes:
            features = int(file[name]["shape"][0])
            _check_group(file[name], features, name, path)
        top = ", ".join(file)
        if genomes == ["matrix"] and "features/genome" in file["matrix"]:
            held = {value.decode() for value in file["matrix/features/genome"][:]}
            held = sorted(held - {""})
        else:
            held = genomes
    if not genomes:
        kind = "a molecule file of Cell Ranger" if "barcode_idx" in top else f"groups {top}"
        accepted = "filtered_feature_bc_matrix.h5 or raw_feature_bc_matrix.h5"
        raise Refusal(f"file {path}", f"no 10x matrix ({kind})", accepted, "name the matrix file")
    if genome is None and len(held) > 1:
        fix = "set prepare.<dataset>.genome (popflow inspect: --genome)"
        raise Refusal(f"file {path}", f"{len(held)} genomes", f"one of {', '.join(held)}", fix)
    if genome is not None and genome not in held:
        fix = "mend prepare.<dataset>.genome"
        raise Refusal(f"file {path}", f"no genome {genome!r}", f"one of {', '.join(held)}", fix)
    adata = scanpy.read_10x_h5(path, genome=genome, gex_only=False)
    return expression_only(by_gene_id(adata, None, "gene_ids"))


def read_10x_folder(path: Path) -> "anndata.AnnData":
    """Read matrix.mtx with barcodes and features (or genes), plain or gzipped, with any prefix."""
    import anndata
    import pandas as pd
    import scipy.io
    import scipy.sparse

    matrix, prefix = _part(path, "matrix.mtx")
    barcodes, _ = _part(path, "barcodes.tsv", prefix)
    features = _find(path, "features.tsv", prefix) or _part(path, "genes.tsv", prefix)[0]
    table = pd.read_csv(features, sep="\t", header=None, dtype=str, keep_default_na=False)
    cells = pd.read_csv(barcodes, sep="\t", header=None, dtype=str, keep_default_na=False)[0]
    x = scipy.sparse.csr_matrix(scipy.io.mmread(str(matrix)).T)
    if x.shape != (len(cells), len(table)):
        found = f"{x.shape[1]} × {x.shape[0]} values, {len(table)} features, {len(cells)} barcodes"
        raise Refusal(f"folder {path}", found, "one row per feature", "copy the folder again")
    var = pd.DataFrame(index=table[0].tolist())
    notes = []
    for number, name in ((1, "gene_symbol"), (2, "feature_types")):
        if number in table:
            var[name] = table[number].to_numpy()
        else:
            notes.append(f"{features.name} has no column {number + 1} ({name})")
    adata = anndata.AnnData(x.astype("float32"), obs=pd.DataFrame(index=cells.tolist()), var=var)
    adata.uns["reading"] = notes
    return expression_only(by_gene_id(adata, "gene_symbol", None))


def _find(folder: Path, name: str, prefix: str = "*") -> Path | None:
    found = sorted([*folder.glob(f"{prefix}{name}"), *folder.glob(f"{prefix}{name}.gz")])
    samples = {file.name[: file.name.index(name)] for file in found}
    if len(samples) > 1:
        several = f"{len(samples)} samples: {', '.join(sorted(samples))}"
        fix = "put the three files of each into a folder of its own"
        raise Refusal(f"folder {folder}", several, "one sample", fix)
    return found[0] if found else None


def _part(folder: Path, name: str, prefix: str = "*") -> tuple[Path, str]:
    """Find one of the three files of a 10x folder, and the prefix of its name."""
    found = _find(folder, name, prefix)
    if found is None:
        accepted = "matrix.mtx, barcodes.tsv and features.tsv (or genes.tsv), plain or .gz"
        fix = "name the folder that holds all three"
        raise Refusal(f"folder {folder}", f"no {name}", accepted, fix)
    return found, found.name[: found.name.index(name)]


def by_gene_id(adata: "anndata.AnnData", symbol: str | None, ids: str | None) -> "anndata.AnnData":
    """Index genes by their stable id; symbols stay as ``var["gene_symbol"]``.

    Parameters
    ----------
    symbol, ids : str or None
        Columns of `var`; None: the index.
    """
    symbols = adata.var[symbol] if symbol in adata.var else adata.var_names
    adata.var["gene_symbol"] = symbols.astype(str).to_numpy()
    if ids in adata.var:
        adata.var_names = adata.var[ids].astype(str).to_numpy()
    return adata


def expression_only(adata: "anndata.AnnData") -> "anndata.AnnData":
    """Keep features of gene expression; count the others in the notes."""
    notes = list(adata.uns.get("reading", []))
    if "feature_types" in adata.var:
        kinds = adata.var["feature_types"].astype(str)
        others = kinds[kinds != GENE_EXPRESSION].value_counts()
        notes += [f"{count} features of type {kind} left out" for kind, count in others.items()]
        adata = adata[:, (kinds == GENE_EXPRESSION).to_numpy()].copy()
    adata.uns["reading"] = notes
    return adata


def read_table(path: Path) -> "pd.DataFrame":
    """Read a table of numbers as it stands; ids in the first column and the header are text."""
    import pandas as pd

    name = path.name.lower().removesuffix(".gz")
    separator = "," if name.endswith(".csv") else "\t"
    header, first = _first_rows(path, separator)
    if len(header) < 2 and len(first) < 2:
        found = f"no {'comma' if separator == ',' else 'tab'} in its first lines"
        accepted = "a .csv with commas, a .tsv or .txt with tabs"
        raise Refusal(f"file {path}", found, accepted, "export it again, or mend its name")
    if len(first) == len(header) + 1 and not first[-1].strip():
        found = "lines end with a separator that the header lacks"
        raise Refusal(f"file {path}", found, "one name per column", "export it again")
    # R writes no name above the ids; pandas numbers copies of names, which must be seen.
    names = header[1:] if len(header) == len(first) else header
    if len(names) + 1 != len(first):
        found = f"{len(header)} names above {len(first)} columns"
        raise Refusal(f"file {path}", found, "one name per column", "mend the header line")
    columns = ["\0id", *range(len(names))]
    frame = pd.read_csv(
        path,
        sep=separator,
        header=None,
        skiprows=1,
        names=columns,
        dtype={"\0id": str},
        low_memory=False,
        index_col=False,
    )
    if frame.shape[1] < 2 or frame.empty:
        found = f"{frame.shape[0]} rows and {frame.shape[1]} columns"
        fix = "export the whole table"
        raise Refusal(f"file {path}", found, "ids and at least one column of numbers", fix)
    if frame.iloc[:, 0].isna().any():
        row = int(frame.iloc[:, 0].isna().to_numpy().argmax()) + 2
        found = f"line {row} has no id in its first column"
        raise Refusal(f"file {path}", found, "an id in every line", "fill it in")
    if frame.iloc[:, 0].str.contains("\n").any():
        found = "a quotation mark that is closed lines later"
        raise Refusal(f"file {path}", found, "ids in one line each", "remove the quotation mark")
    frame = frame.set_index("\0id").rename_axis(None)
    frame.columns = names
    if all(_is_fraction(value) for value in frame.index[:20]):
        found = f"its first column holds numbers ({frame.index[0]}), not ids"
        raise Refusal(f"file {path}", found, "ids in the first column", "add a column of ids")
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    if not all(numeric):
        column = numeric.index(False)
        cells = frame.iloc[:, column]
        bad = cells.map(lambda value: isinstance(value, str))
        example = cells[bad].iloc[0] if bad.any() else "nothing"
        found = f"column {frame.columns[column]!r} holds text ({example!r})"
        fix = "move labels into a table of their own; write numbers with a point"
        raise Refusal(f"file {path}", found, "numbers after the first column", fix)
    return frame


def _first_rows(path: Path, separator: str) -> tuple[list[str], list[str]]:
    """Read the cells of the header and of the first line."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=separator)
        header, first = next(rows, []), next(rows, [])
    return [name.strip() for name in header], first


def _is_fraction(text: str) -> bool:
    try:
        return not float(text).is_integer()
    except ValueError:
        return False


def share_of(names: "np.ndarray | pd.Index", pattern: Any) -> float:
    """Tell which share of names a pattern matches."""
    return sum(bool(pattern.match(str(name))) for name in names) / max(len(names), 1)
