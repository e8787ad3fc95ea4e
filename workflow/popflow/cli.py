"""The command line: popflow init | check | inspect."""

import json
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from popflow.runtime.refusal import Refusal, Refusals

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Prepare, check and look at the inputs of the popflow workflow.",
)


@app.command()
def check(
    config: Annotated[Path, typer.Argument(help="The configuration.")] = Path("config/config.yaml"),
) -> None:
    """Find every mistake of a configuration and its sheets, before any job starts."""
    from popflow.inputs.config import read_yaml, resolve_config

    resolved = resolve_config(read_yaml(config), config.parent, str(config))
    problems = []
    for row in resolved.datasets.values():
        problems += _check_files(row, resolved.stages["prepare"][row["dataset"]])
    if problems:
        raise Refusals(problems)
    for name, row in resolved.datasets.items():
        fits = [fit for fit in resolved.fits if fit["dataset"] == name]
        models = sorted({fit["model"] for fit in fits})
        typer.echo(f"{name}: {row['modality']}, {len(fits)} fits of {', '.join(models) or 'none'}")
    chosen = "" if config == Path("config/config.yaml") else f" --configfile {config}"
    typer.echo(f"{config} is in order. Next: snakemake --cores 2{chosen}")


def _check_files(row: dict[str, Any], settings: dict[str, Any]) -> list[Refusal]:
    """Look at the head of every file of a dataset, and at what its settings say of it."""
    from popflow.inputs import sheets

    if row["source"] == sheets.SIMULATED:
        return []
    reader = import_module(f"popflow.inputs.{READERS[row['modality']]}")
    try:
        reader.check_source(row, sheets.read_units(row), settings)
    except Refusal as refusal:
        return [refusal]
    except Refusals as refusals:
        return refusals.refusals
    return []


READERS = {
    "cytometry": "fcs",
    "expression": "expression",
    "intracranial": "recordings",
    "placecells": "spikes",
}


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A file or a folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    all_columns: Annotated[bool, typer.Option(help="Show every column, not the first 20.")] = False,
    dataset: Annotated[
        int | None, typer.Option(help="Of an FCS file with several, from 0.")
    ] = None,
    genome: Annotated[str | None, typer.Option(help="Of a 10x file with several.")] = None,
) -> None:
    """Tell what reading a file or folder gives: format, shape, names, units, means, warnings."""
    from popflow.inputs.registry import describe

    told = describe(path, dataset=dataset, genome=genome)
    if as_json:
        typer.echo(json.dumps(told.keys(), indent=2, default=str))
        return
    for key in ("modality", "format", "version", "instrument", "shape", "rate_hz", "span_s"):
        typer.echo(f"{key:10s} {getattr(told, key)}")
    typer.echo(f"units      {told.units}\nlabels     {_shortened(told.labels)}")
    typer.echo(f"\n{'column':>6s}  {'name':30s} {'raw mean':>14s} {'first row':>14s}")
    count = len(told.names) if all_columns else min(20, len(told.names))
    for i in range(count):
        numbers = [
            f"{x[i]:14.6g}" if i < len(x) and x[i] is not None else " " * 14
            for x in (told.raw_mean, told.first_row)
        ]
        typer.echo(f"{i:6d}  {str(told.names[i])[:30]:30s} {' '.join(numbers)}")
    if count < len(told.names):
        typer.echo(f"        … {len(told.names) - count} more (--all-columns)")
    for warning in told.warnings:
        typer.echo(f"warning: {warning}")
    typer.echo(f"sheet row: {told.sheet_row}")


def _shortened(labels: Any) -> str:
    text = str(labels)
    return text if len(text) < 300 else text[:297] + "…"


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A folder of files.")],
    modality: Annotated[str, typer.Option(help="cytometry, intracranial, placecells, expression.")],
    output: Annotated[Path, typer.Option(help="Where to write the sheet.")] = Path("sheet.tsv"),
) -> None:
    """Write a sheet with one row per file of a folder; you fill in what the files do not tell.

    Of expression and place cells, where a file is a dataset, rows of datasets.tsv are written.
    """
    from popflow.inputs.registry import find_files
    from popflow.runtime.files import atomic

    if output.exists():
        fix = "give another name with --output, or remove it"
        raise Refusal(f"file {output}", "it exists already", "a new file", fix)
    if not output.parent.is_dir():
        raise Refusal(f"folder {output.parent}", "no such folder", "a folder", "make it first")
    rows, refused = _rows_of(find_files(folder, modality), folder, modality)
    if not rows:
        raise Refusals(refused)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with atomic(output) as temporary:
        lines = ["\t".join(columns)]
        lines += ["\t".join(str(row.get(column, "")) for column in columns) for row in rows]
        temporary.write_text("\n".join(lines) + "\n")
    for refusal in refused:
        typer.echo(f"left out: {refusal}", err=True)
    typer.echo(f"{output}: {len(rows)} rows, {len(refused)} files left out.")
    if "dataset" in columns:
        typer.echo("Name the datasets as you like and append the rows to config/datasets.tsv.")
        return
    if modality == "cytometry":
        _write_panel(folder / rows[0]["path"], output.parent / "panel.tsv")
    typer.echo("Fill in the empty cells, then name it in config/datasets.tsv:")
    place = f"source={folder.resolve()}  sheet={output.resolve()}"
    typer.echo(f"  dataset=mydata  modality={modality}  {place}")


def _write_panel(file: Path, output: Path) -> None:
    """Write the channels of a file as a panel, unless there is one; the user sets the classes."""
    from popflow.inputs.fcs import open_unit
    from popflow.runtime.files import atomic

    if output.exists():
        return
    channels = open_unit({"path": str(file)}, {"compensate": "off"}).channels
    lines = ["channel\tmarker\tclass"]
    for row in channels.to_dict("records"):
        other = row["name"].upper().startswith(("FSC", "SSC", "TIME", "EVENT", "WIDTH"))
        marker = row["marker"] or row["name"]
        lines.append(f"{row['name']}\t{marker}\t{'ignore' if other else 'type'}")
    with atomic(output) as temporary:
        temporary.write_text("\n".join(lines) + "\n")
    typer.echo(f"{output}: the channels of {file.name}; set class (type, state, qc, ignore) there.")


def _rows_of(
    files: list[Path], folder: Path, modality: str
) -> tuple[list[dict[str, str]], list[Refusal]]:
    """Make a row per file; the ids of files of the same name carry their folder's."""
    from popflow.inputs.registry import describe

    rows, refused = [], []
    ids: set[str] = set()
    for file in files:
        try:
            table = modality == "cytometry" and file.suffix.lower() in (".csv", ".tsv")
            row = {"sample": file.stem} if table else describe(file).sheet_row
        except Refusal as refusal:
            refused.append(refusal)
            continue
        if "\t" in str(file) or "\n" in str(file):
            where, fix = f"file {str(file)!r}", "rename the file"
            refused.append(Refusal(where, "a tab or line break in its name", "a plain name", fix))
            continue
        if modality in ("expression", "placecells"):
            name = "".join(letter for letter in file.stem if letter.isalnum()) or "data"
            while name in ids:
                name += "x"
            ids.add(name)
            rows.append({"dataset": name, "modality": modality, "source": str(file.resolve())})
            continue
        key = next(iter(row))
        if row[key] in ids:
            row[key] = f"{file.parent.name}_{row[key]}"
        ids.add(row[key])
        rows.append(row | {"path": str(file.relative_to(folder))})
    return rows, refused


def main() -> None:
    """Run the command line; a refusal is one message on standard error and exit code 1."""
    warnings.simplefilter("ignore")
    try:
        app()
    except (Refusal, Refusals) as refusal:
        sys.stderr.write(f"{refusal}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
