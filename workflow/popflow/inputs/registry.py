"""Which reader understands a file or a folder, and what it tells about it."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from popflow.inputs.description import Description
from popflow.runtime.refusal import Refusal


@dataclass(frozen=True)
class Format:
    """A kind of file that popflow reads.

    Attributes
    ----------
    modality : str
    name : str
        As the field calls it.
    suffixes : tuple of str
        Lower case; a compressed file counts by the suffix before .gz.
    describe : str
        ``module:function`` in `popflow.inputs`; called with the path, gives a `Description`.
    """

    modality: str
    name: str
    suffixes: tuple[str, ...]
    describe: str


FORMATS = (
    Format("cytometry", "FCS", (".fcs", ".lmd"), "fcs:describe"),
    Format("expression", "AnnData", (".h5ad",), "expression:describe"),
    Format("expression", "10x HDF5", (".h5",), "expression:describe"),
    Format("expression", "table", (".csv", ".tsv", ".txt"), "expression:describe"),
    Format("intracranial", "BrainVision", (".vhdr",), "recordings:describe"),
    Format("intracranial", "EDF", (".edf", ".bdf"), "recordings:describe"),
    Format("intracranial", "FIF", (".fif",), "recordings:describe"),
    Format("intracranial", "EEGLAB", (".set",), "recordings:describe"),
    Format("placecells", "NWB", (".nwb",), "spikes:describe"),
    Format("placecells", "spikes archive", (".npz",), "spikes:describe"),
)


def suffix_of(path: Path) -> str:
    """Give the suffix that tells the format, in lower case, .gz taken away."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def format_of(path: Path, modality: str | None = None) -> Format:
    """Find the format of a file by its suffix.

    Raises
    ------
    Refusal
        When no reader knows it.
    """
    for known in FORMATS:
        if suffix_of(path) in known.suffixes and modality in (None, known.modality):
            return known
    suffixes = sorted({s for f in FORMATS if modality in (None, f.modality) for s in f.suffixes})
    raise Refusal(
        f"file {path}",
        f"no reader for {suffix_of(path) or 'a name without a suffix'}",
        ", ".join(suffixes) + ", a 10x folder or a BIDS folder",
        "convert it, or name a file of that kind",
    )


def describe(path: str | Path) -> Description:
    """Tell what reading a file or folder gives.

    Parameters
    ----------
    path : path

    Returns
    -------
    Description

    Raises
    ------
    Refusal
        When it cannot be read.
    """
    path = Path(path)
    if not path.exists():
        raise Refusal(f"file {path}", "no such file", "a file or folder", "mend the path")
    if path.is_dir():
        return _describe_folder(path)
    return _reader(format_of(path).describe)(path)


def _reader(name: str) -> Callable[[Path], Description]:
    module, function = name.split(":")
    return getattr(import_module(f"popflow.inputs.{module}"), function)


def _describe_folder(path: Path) -> Description:
    """Describe a 10x folder, or the only readable file below a folder."""
    if any(path.glob("*matrix.mtx*")):
        return _reader("expression:describe")(path)
    known = {suffix for form in FORMATS for suffix in form.suffixes}
    binary = known - {".tsv", ".txt", ".csv", ".npz"}
    files = sorted(p for p in path.rglob("*") if p.is_file() and suffix_of(p) in binary)
    if not files:
        accepted = "a folder with files of one modality, a 10x folder or a BIDS folder"
        raise Refusal(f"folder {path}", "no readable file in it", accepted, "name another folder")
    described = describe(files[0])
    found = f"{len(files)} readable files in the folder; this is {files[0].relative_to(path)}"
    described.warnings.insert(0, found)
    return described


def find_files(folder: str | Path, modality: str) -> list[Path]:
    """List the files of a modality below a folder, sorted."""
    suffixes = {s for form in FORMATS if form.modality == modality for s in form.suffixes}
    if modality not in {form.modality for form in FORMATS}:
        known = ", ".join(sorted({form.modality for form in FORMATS}))
        raise Refusal("option --modality", f"found {modality!r}", f"one of {known}", "choose one")
    files = sorted(p for p in Path(folder).rglob("*") if p.is_file() and suffix_of(p) in suffixes)
    if not files:
        found = f"no file that ends in {', '.join(sorted(suffixes))}"
        raise Refusal(f"folder {folder}", found, f"files of {modality}", "name another folder")
    return files
