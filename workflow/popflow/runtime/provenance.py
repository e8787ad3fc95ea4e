"""What was run, on what, with which versions and settings; and what it cost."""

import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.runtime.files import read_tsv
from popflow.runtime.fingerprints import PACKAGE, file_fingerprint, sources_of

if TYPE_CHECKING:
    import pandas as pd

HEADROOM = 1.5
LEAST_MB = 700


def provenance(settings: dict[str, Any], results: list[str], inputs: list[str]) -> dict[str, Any]:
    """Describe a finished run.

    Parameters
    ----------
    settings : dict
        The resolved configuration.
    results : list of str
        Files whose content is hashed.
    inputs : list of str
        The lab's files, hashed too; their names are kept without their folders.

    Returns
    -------
    dict
        versions of Python and all installed distributions, settings, hashes of inputs, of results
        and of the library's source files. Nothing in it tells the time or the machine, so that
        equal runs give equal files.
    """
    installed = {
        distribution.metadata["Name"]: distribution.version
        for distribution in metadata.distributions()
        if distribution.metadata["Name"]
    }
    modules = [path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()]
    return {
        "python": platform.python_version(),
        "versions": installed,
        "settings": settings,
        "inputs": {Path(path).name: file_fingerprint(path) for path in inputs},
        "results": {path: file_fingerprint(path) for path in results},
        "code": {
            str(path.relative_to(PACKAGE)): file_fingerprint(path)
            for path in sources_of(*sorted(modules))
        },
    }


def gather_benchmarks(folder: str | Path) -> "pd.DataFrame":
    """Gather Snakemake's benchmark files into time and memory per rule.

    Returns
    -------
    DataFrame
        rule, jobs, seconds (median), seconds_max, peak_mb (largest resident memory), mem_mb (what
        to ask for: half as much again).
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for rule in sorted(path for path in Path(folder).glob("*") if path.is_dir()):
        tables = [read_tsv(path) for path in sorted(rule.rglob("*.tsv"))]
        if not tables:
            continue
        table = pd.concat(tables)
        seconds = pd.to_numeric(table["s"], errors="coerce")
        memory = pd.to_numeric(table["max_rss"], errors="coerce").max()
        wanted = max(LEAST_MB, round(HEADROOM * memory, -2)) if memory == memory else LEAST_MB
        rows.append(
            {
                "rule": rule.name,
                "jobs": len(table),
                "seconds": seconds.median(),
                "seconds_max": seconds.max(),
                "peak_mb": memory,
                "mem_mb": int(wanted),
            }
        )
    columns = ["rule", "jobs", "seconds", "seconds_max", "peak_mb", "mem_mb"]
    return pd.DataFrame(rows, columns=columns)
