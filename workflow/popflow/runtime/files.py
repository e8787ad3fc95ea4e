"""Reading and writing of the plain containers; every write is atomic.

A file appears under its name only when it is whole: it is written beside it under a temporary name
and renamed, so that a killed job leaves nothing half-written behind.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import anndata
    import pandas as pd


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Give a temporary path in the folder of `path`; rename it to `path` on success.

    Parameters
    ----------
    path : str or Path
        The final name. Its folder is created. The temporary name keeps the suffix, since many
        writers choose the format by it.

    Yields
    ------
    Path
        Where to write. Removed when the block raises.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.stem}.", suffix="".join(path.suffixes)
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_tsv(frame: "pd.DataFrame", path: str | Path) -> None:
    """Write a table, tab-separated, without its index; missing values are empty cells."""
    with atomic(path) as temporary:
        frame.to_csv(temporary, sep="\t", index=False, float_format="%.10g", lineterminator="\n")


def read_tsv(path: str | Path, **options: Any) -> "pd.DataFrame":
    """Read a tab-separated table; only an empty cell is missing (a label "NA" stays a label)."""
    import pandas as pd

    return pd.read_csv(path, sep="\t", keep_default_na=False, na_values=[""], **options)


def write_json(content: Any, path: str | Path) -> None:
    """Write JSON with sorted keys and an indent, so that two equal contents are equal bytes."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, sort_keys=True, default=_plain) + "\n")


def read_json(path: str | Path) -> Any:
    """Read JSON."""
    return json.loads(Path(path).read_text())


def _plain(value: Any) -> Any:
    """Turn numpy scalars, arrays and paths into what JSON holds."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def write_h5ad(adata: "anndata.AnnData", path: str | Path) -> None:
    """Write an AnnData file; label columns become text first.

    Mixed, boolean or nullable columns cannot be written by every AnnData version nor read by every
    other tool; missing labels are written as the empty text.
    """
    import pandas as pd

    for frame in (adata.obs, adata.var):
        frame.index = frame.index.astype(str)
        for column in frame.columns:
            if not pd.api.types.is_numeric_dtype(frame[column]) or frame[column].dtype == bool:
                text = frame[column].astype(object)
                frame[column] = text.where(text.notna(), "").astype(str).astype(object)
    with atomic(path) as temporary:
        adata.write_h5ad(temporary)
