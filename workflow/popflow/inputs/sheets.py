"""The tables that a user writes: datasets, samples, panels, sessions.

Read with the csv module, since the Snakefile reads them at every start.
"""

import csv
import difflib
import glob
import re
from pathlib import Path
from typing import Any

from popflow.inputs import packages
from popflow.inputs.settings import mistakes, schema
from popflow.inputs.spatial import positions_file
from popflow.runtime.refusal import Refusal, Refusals

SIMULATED = "simulated"
UNIT_COLUMNS = {"cytometry": "sample", "intracranial": "session"}
#: Columns that name files beside the unit's own, and files relative to the source.
BESIDE = ("position", "epochs", "times", "position_times", "names")
IN_SOURCE = ("cell_types", "electrodes", "channels", "events")
IDS = UNIT_COLUMNS | {"expression": "sample"}


def read_sheet(path: str | Path, name: str, unique: str | None = None) -> list[dict[str, str]]:
    """Read a tab- or comma-separated table and check it.

    Parameters
    ----------
    path : str or Path
        Separator by suffix: .csv is comma, everything else tab.
    name : str
        Schema of a row, e.g. ``"sheet-cytometry"``; its `properties` are the known columns.
    unique : str, optional
        A column whose values must differ.

    Returns
    -------
    list of dict
        One per row, text as it stands, stripped; empty cells are left out.

    Raises
    ------
    Refusals
        With every mistake of the table.
    """
    path, rules = Path(path), schema(name)
    if not path.is_file():
        fix = "write it (popflow init makes one from a folder of files) or mend the path"
        if name == "sheet-panel":
            fix = "write it: channel, marker, class (popflow init makes one beside the sheet)"
        raise Refusal(f"sheet {path}", "no such file", "a tab-separated table", fix)
    columns, numbered = _rows(path)
    _check_columns(columns, rules, name, path)
    absent = [column for column in rules.get("required", []) if column not in columns]
    if absent:
        raise Refusal(
            f"sheet {path}",
            f"no column {', '.join(absent)} (columns: {', '.join(columns) or 'none'})",
            f"the columns {', '.join(rules['required'])}, tab-separated",
            f"add {', '.join(absent)} to the header line",
        )
    found = [
        mistake
        for number, row in numbered
        for mistake in mistakes(rules, row, f"sheet {path}, row {number}")
    ]
    found += _repeated(numbered, unique, path) if unique else []
    if not numbered:
        found.append(Refusal(f"sheet {path}", "no rows", "one row or more", "add a row"))
    if found:
        raise Refusals(found)
    return [row for _, row in numbered]


def _check_columns(columns: list[str], rules: dict[str, Any], name: str, path: Path) -> None:
    """Refuse columns that are known ones misspelt, as Class for class."""
    known = {re.sub(r"[^a-z]", "", key.lower()): key for key in rules.get("properties", {})}
    for column in columns:
        if column in known.values():
            continue
        meant = known.get(re.sub(r"[^a-z]", "", column.lower()))
        near = difflib.get_close_matches(column.lower(), list(known), 1, 0.75)
        if meant is None and name == "sheet-panel" and near:
            meant = known[near[0]]
        if meant:
            found, accepted = f"unknown column {column!r}", f"the column {meant!r}"
            raise Refusal(f"sheet {path}", found, accepted, f"rename it to {meant}")


def _rows(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Read the header and (line, cells) of every row that is not blank."""
    separator = "," if path.suffix == ".csv" else "\t"
    numbered = []
    try:
        with open(path, newline="", encoding="utf-8-sig") as handle:
            reader = csv.reader(handle, delimiter=separator)
            columns = [column.strip() for column in next(reader, [])]
            for cells in reader:
                cells = [cell.strip() for cell in cells]
                if any(cells):
                    numbered.append((reader.line_num, cells))
    except (UnicodeDecodeError, csv.Error) as error:
        found = f"no text in UTF-8 ({type(error).__name__})"
        fix = "save it as tab-separated text or CSV in UTF-8, not as a workbook or Unicode text"
        raise Refusal(f"sheet {path}", found, "a tab-separated table", fix) from None
    repeated = sorted({column for column in columns if column and columns.count(column) > 1})
    if repeated:
        found = f"the column {', '.join(repeated)} stands there twice"
        raise Refusal(f"sheet {path}", found, "every column once", "rename or remove one")
    mistaken = [_misplaced(line, cells, columns, path) for line, cells in numbered]
    if any(mistaken):
        raise Refusals([mistake for mistake in mistaken if mistake])
    pairs = [(line, dict(zip(columns, cells, strict=False))) for line, cells in numbered]
    return columns, [(n, {k: v for k, v in row.items() if k and v}) for n, row in pairs]


def _misplaced(line: int, cells: list[str], columns: list[str], path: Path) -> Refusal | None:
    """Refuse cells without a column, and cells of several lines (an open quote)."""
    where = f"sheet {path}, row {line}"
    if any(cells[len(columns) :]):
        found = f"{len(cells)} cells under {len(columns)} columns"
        return Refusal(where, found, "a column above every cell", "mend the row or the header")
    if any("\n" in cell for cell in cells):
        found = "a cell of several lines, as an open quote makes it"
        return Refusal(where, found, "one line per row", "close or remove the quote")
    return None


def _repeated(numbered: list[tuple[int, dict[str, str]]], column: str, path: Path) -> list[Refusal]:
    """List the rows whose id stands in an earlier row."""
    first: dict[str, int] = {}
    found = []
    for number, row in numbered:
        value = row.get(column, "")
        if value in first:
            where = f"sheet {path}, row {number}, column '{column}'"
            message = f"the id {value!r} stands in row {first[value]} already"
            found.append(Refusal(where, message, "every id once", "rename or remove one row"))
        first.setdefault(value, number)
    return found


def read_datasets(path: str | Path) -> dict[str, dict[str, Any]]:
    """Read the datasets sheet, with sources and sheets resolved to absolute paths.

    Returns
    -------
    dict of str to dict
        By dataset id: the row, where `source` is an absolute path or ``"simulated"``, and `sheet`
        and `panel` are absolute paths or absent.
    """
    path = Path(path).resolve()
    rows = read_sheet(path, "datasets", unique="dataset")
    found: list[Refusal] = []
    datasets = {}
    for number, row in enumerate(rows, start=2):
        where = f"sheet {path}, row {number}"
        try:
            datasets[row["dataset"]] = _resolved(row, path.parent, where)
        except Refusal as refusal:
            found.append(refusal)
    if found:
        raise Refusals(found)
    return datasets


def _resolved(row: dict[str, str], folder: Path, where: str) -> dict[str, Any]:
    """Resolve the paths of a row of the datasets sheet."""
    resolved: dict[str, Any] = dict(row)
    source = row["source"]
    if source.startswith(packages.PREFIX):
        resolved["source"] = packages.locate(source)
    elif source != SIMULATED:
        resolved["source"] = folder / source
    for column in ("source", "sheet", "panel"):
        if column != "source" and column in row:
            resolved[column] = folder / row[column]
        place = resolved.get(column)
        if isinstance(place, Path) and not (place.is_file() or place.is_dir()):
            raise Refusal(
                f"{where}, column '{column}'",
                f"{resolved[column]} does not exist",
                "a file or folder, absolute or relative to the sheet",
                "mend the path or remove the row",
            )
    return resolved


def read_units(row: dict[str, Any]) -> list[dict[str, str]]:
    """Read the modality's own sheet of a dataset, with its files' paths made absolute.

    Parameters
    ----------
    row : dict
        A row of `read_datasets`, not simulated.

    Returns
    -------
    list of dict
        One per sample or session; empty when the modality needs no sheet and none is named.
    """
    modality = row["modality"]
    if "sheet" not in row:
        if modality in UNIT_COLUMNS:
            raise Refusal(
                f"dataset {row['dataset']}",
                "no sheet",
                f"a table with one row per {UNIT_COLUMNS[modality]}",
                f"popflow init {row['source']} --modality {modality}, then name it under 'sheet'",
            )
        return []
    units = read_sheet(row["sheet"], f"sheet-{modality}", unique=IDS.get(modality))
    found = []
    for number, unit in enumerate(units, start=2):
        if "path" in unit:
            place = Path(row["source"]) / unit["path"]
            unit["path"] = str(place)
            if not place.exists():
                where = f"sheet {row['sheet']}, row {number}, column 'path'"
                accepted = f"a file, absolute or relative to the source {row['source']}"
                found.append(Refusal(where, f"{place} does not exist", accepted, "mend the path"))
    found += _same_files(units, row)
    if modality == "placecells" and len(units) > 1:
        where, fix = f"sheet {row['sheet']}", "give each session a dataset of its own"
        found.append(Refusal(where, f"{len(units)} sessions", "one row", fix))
    if found:
        raise Refusals(found)
    return units


def _same_files(units: list[dict[str, str]], row: dict[str, Any]) -> list[Refusal]:
    """List rows that read what another row reads: a sample twice leaks from training to test."""
    seen: dict[tuple[str, ...], str] = {}
    found = []
    for unit in units if row["modality"] in UNIT_COLUMNS else []:
        column = UNIT_COLUMNS[row["modality"]]
        parts = ("path", "data_set", "field", "series")
        key = tuple(unit.get(part, "") for part in parts)
        if key in seen:
            where = f"sheet {row['sheet']}, {column} {unit[column]!r}"
            message = f"{unit['path']} is that of {seen[key]!r} already"
            found.append(Refusal(where, message, "every file once", "remove one of the rows"))
        seen.setdefault(key, unit[column])
    return found


def files_of(row: dict[str, Any]) -> list[str]:
    """List the files of a dataset on disk, so that a changed file reruns its preparation."""
    files = [str(row[column]) for column in ("sheet", "panel") if column in row]
    if row["modality"] == "cytometry" and "panel" not in row:
        files.append(str(Path(row["sheet"]).parent / "panel.tsv"))
    units = read_units(row)
    named = [unit["path"] for unit in units if "path" in unit]
    if named:
        return files + sorted(_expanded(units, Path(row["source"])))
    source = Path(row["source"])
    inside = [path for path in source.rglob("*") if path.is_file()]
    places = positions_file(source) if row["modality"] == "expression" else None
    found = {source} if source.is_file() else set(inside)
    if source.suffix.lower() == ".set":
        found |= {path for path in _beside(source) if path.is_file()}
    return files + sorted(str(path) for path in found | ({places} if places else set()))


def _expanded(units: list[dict[str, str]], source: Path) -> set[str]:
    """List the files of units: all of a folder, what is beside a file, what the sheet names."""
    found: set[Path] = set()
    for unit in units:
        path = Path(unit["path"])
        inside = path.rglob("*") if path.is_dir() else [path, *_beside(path)]
        named = [Path(file) for file in beside_session(path, unit).values()]
        named += [source / unit[column] for column in IN_SOURCE if column in unit]
        found |= {file for file in [*inside, *named] if file.is_file()}
    return {str(file) for file in found}


def beside_session(path: Path, unit: dict[str, str]) -> dict[str, str]:
    """Give the files that a sheet names beside a session, by column.

    They stand relative to the session's folder, which is the path itself for a folder of a sorter.
    """
    folder = path if path.is_dir() and path.suffix.lower() != ".zarr" else path.parent
    return {column: str(folder / unit[column]) for column in BESIDE if column in unit}


def _beside(path: Path) -> list[Path]:
    """List files that belong to a recording: of the same name, or sidecars of BIDS up the tree."""
    stem = glob.escape(path.stem)
    companions = [file for file in path.parent.glob(f"{stem}.*")]
    if path.suffix.lower() == ".set":
        companions += path.parent.glob(f"{stem}_[0-9]*.cut")
    if "_ieeg" not in path.name:
        return companions
    folders = [path.parent, *path.parents[1:4]]
    sidecars = [file for folder in folders for file in folder.glob("*_*.tsv")]
    return companions + sidecars + [file for folder in folders for file in folder.glob("*_*.json")]
