"""A matrix of samples by genes in blocks of rows: from memory, or from an h5ad file on disk."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from popflow.inputs.expression import check_names
from popflow.inputs.matrices import check_pointers
from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import anndata
    import pandas as pd

#: Entries of a block; eight bytes each while it is worked on.
BLOCK_ENTRIES = 10_000_000
#: Matrices with more entries stay on disk.
LARGEST_IN_MEMORY = 2_000_000_000


@dataclass
class Rows:
    """The rawest values of a dataset and the tables of its samples.

    Attributes
    ----------
    obs : DataFrame
        Indexed by sample id.
    genes : list of str
    slice : callable
        ``slice(start, stop)`` gives these rows, dense or sparse.
    part : str
        Where the values stand: ``layers['counts']``, ``raw.X`` or ``X``.
    source : str
        The file; empty for data from memory.
    uns : dict
    """

    obs: "pd.DataFrame"
    genes: list[str]
    slice: Callable[[int, int], Any]
    part: str
    source: str = ""
    uns: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.obs)

    @property
    def place(self) -> str:
        """Name file and part, for messages."""
        return self.at(self.part)

    def at(self, part: str) -> str:
        """Name the file and a part of it, for messages."""
        return f"file {self.source}, {part}" if self.source else part

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Give (rows, their values as a dense float64 array), in order."""
        height = max(1, BLOCK_ENTRIES // max(len(self.genes), 1))
        for start in range(0, len(self), height):
            rows = slice(start, min(start + height, len(self)))
            block = self.slice(rows.start, rows.stop)
            dense = block.toarray() if hasattr(block, "toarray") else np.asarray(block)
            yield rows, dense.astype(np.float64)


def rows_of(adata: "anndata.AnnData") -> Rows:
    """Choose the rawest values of an object: counts layer, then raw, then X.

    Names of genes in raw are checked as those of X were when the file was read.
    """
    import anndata

    if "counts" in adata.layers:
        values, names, part = adata.layers["counts"], adata.var_names, "layers['counts']"
    elif adata.raw is not None:
        values, part = adata.raw.X, "raw.X"
        head = anndata.AnnData(obs=adata.obs, var=adata.raw.var)
        head.uns["source"] = adata.uns.get("source", "")
        names = check_names(head, Path(head.uns["source"] or "raw"), "error").var_names
    else:
        values, names, part = adata.X, adata.var_names, "X"
    matrix = values.tocsr() if hasattr(values, "tocsr") else np.asarray(values)
    source, uns = str(adata.uns.get("source", "")), dict(adata.uns)
    genes = list(names.astype(str))
    return Rows(adata.obs, genes, lambda a, b: matrix[a:b], part, source, uns)


def entries_of(path: str | Path) -> int:
    """Tell how many entries the matrix of an h5ad file has, without reading it."""
    import h5py

    with h5py.File(path) as file:
        held = file.get("X")
        if held is None:
            return 0
        shape = held.attrs.get("shape", held.attrs.get("h5sparse_shape"))
        shape = held.shape if isinstance(held, h5py.Dataset) else shape
        return int(np.prod([int(extent) for extent in shape]))


def rows_on_disk(path: str | Path) -> Rows:
    """Open an h5ad file whose matrix does not fit into memory; the file stays open.

    Raises
    ------
    Refusal
        When its values lie by columns: rows cannot be read from them one after the other.
    """
    import h5py
    from anndata.io import read_elem, sparse_dataset

    file = h5py.File(path)
    check_pointers(file, Path(path))
    part = next(name for name in ("layers/counts", "raw/X", "X") if name in file)
    held = file[part]
    var = file["raw/var"] if part == "raw/X" else file["var"]
    if isinstance(held, h5py.Group):
        if str(held.attrs["encoding-type"]) != "csr_matrix":
            found, fix = "a large matrix stored by columns", "write it as CSR (adata.X.tocsr())"
            raise Refusal(f"file {path}, {part}", found, "a matrix stored by rows", fix)
        held = sparse_dataset(held)
    names = {"layers/counts": "layers['counts']", "raw/X": "raw.X", "X": "X"}
    uns = {"log1p": {}} if "log1p" in file.get("uns", {}) else {}
    genes = list(read_elem(var).index.astype(str))
    obs = read_elem(file["obs"])
    obs.index = obs.index.astype(str)
    return Rows(obs, genes, lambda a, b: held[a:b], names[part], str(path), uns)


def head_of(rows: Rows) -> "anndata.AnnData":
    """Give the tables of a matrix without its values, for checks of names."""
    import anndata
    import pandas as pd

    return anndata.AnnData(obs=rows.obs, var=pd.DataFrame(index=rows.genes))
