"""Short hashes of code, settings and files.

Snakemake reruns a rule when its params change, not when an imported module changes. So each rule
carries the fingerprint of the library modules that its script uses.
"""

import ast
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]


def _short(digest: "hashlib._Hash") -> str:
    return digest.hexdigest()[:12]


@cache
def _sources(module: str) -> tuple[Path, ...]:
    """List the source files of a module or package of popflow, e.g. ``models.maestro``."""
    place = PACKAGE.joinpath(*module.split("."))
    if place.is_dir():
        return tuple(sorted(place.rglob("*.py")))
    if place.with_suffix(".py").is_file():
        return (place.with_suffix(".py"),)
    raise ValueError(f"popflow has no module {module!r}")


@cache
def _imports(source: Path) -> frozenset[Path]:
    """List the popflow source files that a source file imports, at any depth of its functions."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("popflow."):
                place = PACKAGE.joinpath(*name.split(".")[1:])
                for file in (place.with_suffix(".py"), place / "__init__.py"):
                    if file.is_file():
                        found.add(file)
    return frozenset(found)


def sources_of(*modules: str) -> list[Path]:
    """List the source files that modules of popflow consist of and import, directly or not.

    Parameters
    ----------
    *modules : str
        Dotted names inside popflow, e.g. ``"models.maestro"``.
    """
    todo = [file for module in modules for file in _sources(module)]
    seen: set[Path] = set()
    while todo:
        file = todo.pop()
        if file not in seen:
            seen.add(file)
            todo.extend(_imports(file))
    return sorted(seen)


def code_fingerprint(*modules: str) -> str:
    """Hash the sources of popflow modules and of all popflow modules that they import.

    Parameters
    ----------
    *modules : str
        Dotted names inside popflow.

    Returns
    -------
    str
        Twelve hexadecimal digits; changes when one of the sources changes.
    """
    digest = hashlib.sha256()
    for file in sources_of(*modules):
        digest.update(str(file.relative_to(PACKAGE)).encode())
        digest.update(file.read_bytes())
    return _short(digest)


def settings_fingerprint(settings: Any) -> str:
    """Hash nested settings (whatever JSON holds), independent of the order of keys."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return _short(hashlib.sha256(text.encode()))


def file_fingerprint(path: str | Path) -> str:
    """Hash the content of a file, read in chunks."""
    with open(path, "rb") as handle:
        return _short(hashlib.file_digest(handle, "sha256"))


def inputs_fingerprint(paths: Iterable[str | Path]) -> str:
    """Hash the input of a job: the content of files, and of folders the names and sizes inside.

    Checkpoints are kept apart by it: a fit must not go on from the state of other data.
    """
    digest = hashlib.sha256()
    for path in sorted(map(Path, paths)):
        if path.is_dir():
            held = sorted(file for file in path.rglob("*") if file.is_file())
            listed = [f"{file.relative_to(path)} {file.stat().st_size}" for file in held]
            digest.update("\n".join(listed).encode())
        else:
            digest.update(file_fingerprint(path).encode())
    return _short(digest)
