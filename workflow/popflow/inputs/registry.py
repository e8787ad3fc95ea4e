"""Which reader understands a file or a folder, and what it tells about it."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from popflow.inputs.calcium import is_minian
from popflow.inputs.description import Description
from popflow.inputs.matrices import is_zarr
from popflow.runtime.refusal import Refusal


@dataclass(frozen=True)
class Format:
    """A kind of file that popflow reads; docs/inputs.md is generated from these.

    Attributes
    ----------
    modality : str
    name : str
        As the field calls it.
    suffixes : tuple of str
        Lower case; a compressed file counts by the suffix before .gz.
    magic : tuple of bytes
        First bytes of files that have other names.
    told_by : str
        ``module:function`` that tells this format by its content from others of the same suffix.
    describe : str
        ``module:function`` in `popflow.inputs`; called with the path, gives a `Description`.
    versions, reads, refuses, tested : str
        For the documentation: versions of the format, what is read, what is refused, and the
        instruments or programs whose real files are tested.
    options : tuple of str
        Of `describe`: ``dataset``, ``genome``.
    """

    modality: str
    name: str
    suffixes: tuple[str, ...]
    describe: str
    versions: str
    reads: str
    refuses: str
    tested: str
    options: tuple[str, ...] = ()
    magic: tuple[bytes, ...] = ()
    told_by: str = ""


FORMATS = (
    Format(
        "cytometry",
        "FCS",
        (".fcs", ".lmd"),
        "fcs:describe",
        "2.0, 3.0, 3.1, 3.2",
        "integers of 1 to 64 bits, floats, doubles, types per channel; little, big and PDP byte "
        "order; several data sets; spillover; log amplifiers, gains, time step; any name that "
        "begins with FCS",
        "no list mode, text or bit-packed events, events that are cut off",
        "Attune, CyAn, Gallios, MoFlo Astrios, DxP10, Partec PAS, Stratedigm S1400, Eclipse, "
        "FACSCalibur, FACScan, FACSCanto II, LSR II, LSRFortessa, FACSAria III, MACSQuant, Navios, "
        "FC 500, Accuri C6 Plus, xP3, Aurora, mass cytometers",
        ("dataset",),
        (b"FCS2", b"FCS3"),
    ),
    Format(
        "expression",
        "AnnData",
        (".h5ad", ".zarr", ".zarr.zip"),
        "expression:describe",
        "0.6 to 0.12",
        "counts layer, raw or X, dense or sparse; labels of obs",
        "no matrix, overflowed row pointers, a newer encoding, repeated ids",
        "anndata 0.5 to 0.11",
    ),
    Format(
        "expression",
        "loom",
        (".loom",),
        "expression:describe",
        "2, 3",
        "matrix, row_attrs, col_attrs",
        "no matrix",
        "written in the test",
    ),
    Format(
        "expression",
        "10x HDF5",
        (".h5",),
        "expression:describe",
        "Cell Ranger 2 and later",
        "gene expression; other types are counted; one of several genomes",
        "molecule files, several genomes without a choice",
        "Cell Ranger 1.2, 3.0",
        ("genome",),
    ),
    Format(
        "expression",
        "10x folder",
        ("matrix.mtx",),
        "expression:describe",
        "genes.tsv or features.tsv",
        "plain or gzipped, any prefix, one to three columns of features",
        "a missing file, counts that do not fit",
        "Cell Ranger 1.2, 3.0",
    ),
    Format(
        "expression",
        "table",
        (".csv", ".tsv", ".txt"),
        "tables:describe_table",
        "plain or .gz",
        "ids in the first row and column; genes in rows or in columns, told by the names; a header "
        "unit, time (spikes), t, x, y or DeepLabCut's (tracking); events in a samples sheet",
        "text among the numbers, names that do not tell the orientation",
        "CEL-seq2, Drop-seq, Affymetrix, cDNA arrays",
    ),
    Format(
        "intracranial",
        "BrainVision",
        (".vhdr",),
        "recordings:describe",
        "1.0, 2.0",
        "alone or as BIDS-iEEG with its sidecars",
        "missing or empty data file",
        "BIDS grip force (STN, ECoG), BIDS motor task, a recorder at 5 kHz",
    ),
    Format(
        "intracranial",
        "EDF, BDF",
        (".edf", ".bdf"),
        "recordings:describe",
        "EDF, EDF+, BDF",
        "all channels, annotations; EDF+D without gaps",
        "a file that is cut off",
        "two EDF files of MNE's test data; BDF is not tested",
    ),
    Format(
        "intracranial",
        "FIF",
        (".fif",),
        "recordings:describe",
        "MNE",
        "raw recordings",
        "epochs and averages",
        "written in the test",
    ),
    Format(
        "intracranial",
        "EEGLAB",
        (".set",),
        "recordings:describe",
        "v5 to v7.3",
        "continuous data, .fdt beside it",
        "epoched data",
        "an EEGLAB .set with .fdt",
    ),
    Format(
        "intracranial",
        "Persyst",
        (".lay",),
        "recordings:describe",
        ".lay with .dat",
        "all channels",
        "no .dat beside it",
        "an ECoG patient",
    ),
    Format(
        "intracranial",
        "Neuralynx",
        (".ncs",),
        "recordings:describe",
        "Cheetah .ncs, one channel per file",
        "all .ncs of one folder together",
        "a file that is cut off",
        "hippocampal depth electrodes",
    ),
    Format(
        "intracranial",
        "Nihon Kohden",
        (),
        "recordings:describe",
        ".EEG with its companion files",
        "all channels, annotations of .LOG",
        "a file without its companions",
        "EEG-1100",
        magic=(b"EEG-", b"QI-4"),
    ),
    Format(
        "placecells",
        "NWB",
        (".nwb",),
        "nwb:describe",
        "2.0b to 2.9",
        "units, position, epochs and trials; or voltages with electrodes (intracranial)",
        "neither units nor voltages",
        "a phy session (2.4), a MatClust session (2.11), grip force",
    ),
    Format(
        "placecells",
        "numpy archive",
        (".npz",),
        "tables:describe_arrays",
        "numpy, without pickled objects",
        "spike_times and spike_units with position and epochs; pynapple's groups; t and position; "
        "or voltages that the sessions sheet names",
        "pickled objects, times that are not seconds",
        "nelpy, RatInABox",
    ),
    Format(
        "placecells",
        "MATLAB",
        (".mat",),
        "tables:describe_arrays",
        "5 and 7.3",
        "spikes of CellExplorer and MatClust (5 only); or voltages that the sessions sheet names",
        "objects, tables of MATLAB",
        "MatClust, Case Studies in Neural Data Analysis, CCEP trials",
    ),
    Format(
        "placecells",
        "phy, Kilosort folder",
        ("spike_times.npy",),
        "spikes:describe",
        "any",
        "good clusters of the curation, else of Kilosort; rate of params.py",
        "no rate, no clusters",
        "written in the test",
    ),
    Format(
        "placecells",
        "Neurosuite folder",
        (".res.1",),
        "spikes:describe",
        ".res, .clu, .xml",
        "clusters from 2 on, rate of the .xml",
        "no rate, .res without .clu",
        "written in the test",
    ),
    Format(
        "placecells",
        "Axona",
        (".set",),
        "spikes:describe",
        "DACQ: .set, .1 to .32, .cut or .clu.N, .pos",
        "clusters of every tetrode, without noise (0 of a .cut, 1 of a .clu); the spot of .pos "
        "that is seen in most frames, in cm where pixels_per_metre is told",
        "no tetrode with clusters, clusters that do not fit, a file that is cut off",
        "written in the test",
        told_by="axona:is_axona",
    ),
    Format(
        "placecells",
        "calcium traces",
        (".zarr", ".csv", ".tsv"),
        "spikes:describe",
        "Minian's zarr (v2), tables",
        "cells × frames; times of frames from the table, a table beside it or a rate; accepted "
        "cells of Inscopix",
        "frames without times, times that do not rise",
        "a miniscope on a track",
    ),
    Format(
        "placecells",
        "Trodes tracking",
        (".videopositiontracking",),
        "tables:describe_track",
        "any",
        "time stamps by the clock rate, first LED",
        "no header",
        "a linear track",
    ),
    Format(
        "placecells",
        "DeepLabCut tracking",
        (".h5",),
        "tables:describe_track",
        "pandas, format table or fixed",
        "body parts that are likely, averaged, as of the .csv; names without unpickling them",
        "several animals, names that are not plain text, blosc",
        "written in the test",
        told_by="deeplabcut:is_pandas_file",
    ),
)


def suffix_of(path: Path) -> str:
    """Give the suffix that tells the format, in lower case, .gz taken away."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def format_of(path: Path, modality: str | None = None) -> Format:
    """Find the format of a file by its name, or by its first bytes where they tell.

    Raises
    ------
    Refusal
        When no reader knows it.
    """
    name = path.name.lower().removesuffix(".gz")
    named = [form for form in FORMATS if name.endswith(form.suffixes)]
    named = [form for form in named if modality in (None, form.modality)]
    for known in named if path.is_file() else ():
        if known.told_by and _reader(known.told_by)(path):
            return known
    if named:
        # A file that is not told by its content belongs to the format that needs no telling.
        return min(named, key=lambda form: bool(form.told_by))
    for known in FORMATS if path.is_file() else ():
        if known.magic and _first_bytes(path).startswith(known.magic):
            return known
    suffixes = sorted({s for f in FORMATS if modality in (None, f.modality) for s in f.suffixes})
    raise Refusal(
        f"file {path}",
        f"no reader for {suffix_of(path) or 'a name without a suffix'}",
        ", ".join(suffixes) + ", a 10x folder or a BIDS folder",
        "convert it, or name a file of that kind",
    )


def _first_bytes(path: Path) -> bytes:
    """Read what tells files whose names tell nothing (.001, .EEG)."""
    with open(path, "rb") as handle:
        return handle.read(16)


def describe(path: str | Path, **options: Any) -> Description:
    """Tell what reading a file or folder gives.

    Parameters
    ----------
    path : path
    **options
        ``dataset`` (of an FCS file with several) or ``genome`` (of a 10x file).

    Returns
    -------
    Description

    Raises
    ------
    Refusal
        When it cannot be read, or an option does not apply to it.
    """
    path = Path(path)
    if not path.exists():
        raise Refusal(f"file {path}", "no such file", "a file or folder", "mend the path")
    if path.is_dir():
        return _describe_folder(path)
    if not path.is_file():
        found, fix = "neither a file nor a folder (a pipe or device)", "name a file on disk"
        raise Refusal(f"file {path}", found, "a file or folder", fix)
    form = format_of(path)
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() - set(form.options):
        accepted = ", ".join(f"--{option}" for option in form.options) or "no option"
        raise Refusal(f"option --{name}", f"{form.name} has none", accepted, "leave it out")
    if path.stat().st_size == 0:
        fix = "export or copy the file again"
        raise Refusal(f"file {path}", "the file is empty (0 bytes)", f"{form.name} data", fix)
    return _reader(form.describe)(path, **given)


def _reader(name: str) -> Callable[..., Any]:
    module, function = name.split(":")
    return getattr(import_module(f"popflow.inputs.{module}"), function)


def _describe_folder(path: Path) -> Description:
    """Describe a matrix folder, or the only readable file below a folder."""
    if is_minian(path):
        return _reader("spikes:describe")(path)
    if any(path.glob("*matrix.mtx*")) or is_zarr(path):
        return _reader("expression:describe")(path)
    if (path / "spike_times.npy").is_file() or any(path.glob("*.res.*")):
        return _reader("spikes:describe")(path)
    if any(path.glob("*.ncs")):
        return _reader("recordings:describe")(path)
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
    inside = sorted(p for p in Path(folder).rglob("*") if p.is_file())
    files = [path for path in inside if suffix_of(path) in suffixes and _is_of(path, modality)]
    if modality == "cytometry" and not files:
        # Tables of events look like any other table; they count where no FCS file is.
        files = [path for path in inside if suffix_of(path) in (".csv", ".tsv")]
    if not files:
        found = f"no file that ends in {', '.join(sorted(suffixes))}"
        raise Refusal(f"folder {folder}", found, f"files of {modality}", "name another folder")
    return files


def _is_of(path: Path, modality: str) -> bool:
    """Tell by its content whether a file whose suffix several formats share is of a modality."""
    shared = any(form.told_by and suffix_of(path) in form.suffixes for form in FORMATS)
    return not shared or format_of(path).modality == modality
