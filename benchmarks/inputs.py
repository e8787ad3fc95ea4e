"""Peak memory and time of preparing large inputs: python benchmarks/inputs.py [cytometry ...]

Synthetic files are made in a temporary folder; every preparation runs in a process of its own,
whose peak resident memory is held against the bound of 2 GiB.
"""

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

BOUND_GIB = 2.0


def make_cytometry(folder: Path) -> None:
    """Two million events of 20 channels."""
    from array import array

    import flowio

    draw = np.random.default_rng(0)
    names = [f"C{n}" for n in range(20)]
    with open(folder / "large.fcs", "wb") as handle:
        values = draw.gamma(2.0, 200.0, 2_000_000 * 20).astype(np.float32)
        flowio.create_fcs(handle, array("f", values.tobytes()), names)
    (folder / "panel.tsv").write_text("channel\n" + "\n".join(names) + "\n")
    (folder / "samples.tsv").write_text("sample\tpath\ns\tlarge.fcs\n")


def prepare_cytometry(folder: Path) -> None:
    from popflow.inputs.settings import resolve
    from popflow.prepare.cytometry import prepare_cytometry as prepare

    row = {"dataset": "d", "modality": "cytometry", "source": str(folder)}
    row |= {"sheet": str(folder / "samples.tsv"), "panel": str(folder / "panel.tsv")}
    settings = resolve("prepare-cytometry", {"held_out": 0.0}, "benchmark")
    prepare(row, settings, folder / "prepared")


def make_expression(folder: Path) -> None:
    """200,000 cells × 20,000 genes, 500 counts a cell, written by blocks."""
    import h5py
    import pandas as pd
    from anndata.io import write_elem

    draw, cells, genes, each = np.random.default_rng(0), 200_000, 20_000, 500
    with h5py.File(folder / "large.h5ad", "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        labels = pd.Categorical(np.array(list("abcd"))[np.arange(cells) % 4])
        obs = pd.DataFrame({"label": labels}, index=[f"c{i}" for i in range(cells)])
        write_elem(file, "obs", obs)
        write_elem(file, "var", pd.DataFrame(index=[f"ENSG{i:011d}" for i in range(genes)]))
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0"})
        group.attrs["shape"] = np.array([cells, genes])
        group["indptr"] = np.arange(cells + 1, dtype=np.int64) * each
        total = cells * each
        data = group.create_dataset("data", (total,), "f4", chunks=(1_000_000,))
        indices = group.create_dataset("indices", (total,), "i4", chunks=(1_000_000,))
        weights = 1 / np.arange(1, genes + 1) ** 0.5
        weights /= weights.sum()
        for start in range(0, cells, 2000):
            rows = [
                np.sort(draw.choice(genes, each, replace=False, p=weights)) for _ in range(2000)
            ]
            place = slice(start * each, (start + 2000) * each)
            indices[place] = np.concatenate(rows)
            data[place] = draw.poisson(1.5, 2000 * each) + 1


def prepare_expression(folder: Path) -> None:
    from popflow.inputs.settings import resolve
    from popflow.prepare.expression import prepare_file

    settings = resolve("prepare-expression", {}, "benchmark")
    prepare_file(folder / "large.h5ad", settings, folder / "prepared.h5ad")


def make_intracranial(folder: Path) -> None:
    """Two hours of 200 channels at 1 kHz, BrainVision float32, in blocks."""
    draw, rate, channels = np.random.default_rng(0), 1000, 200
    with open(folder / "large.eeg", "wb") as file:
        for _ in range(120):
            file.write(draw.normal(0, 30, (60 * rate, channels)).astype("<f4").tobytes())
    lines = ["Brain Vision Data Exchange Header File Version 1.0", "[Common Infos]"]
    lines += ["DataFile=large.eeg", "DataFormat=BINARY", "DataOrientation=MULTIPLEXED"]
    lines += [f"NumberOfChannels={channels}", "SamplingInterval=1000", "[Binary Infos]"]
    lines += ["BinaryFormat=IEEE_FLOAT_32", "[Channel Infos]"]
    lines += [f"Ch{i}=A{i},,1,µV" for i in range(1, channels + 1)]
    (folder / "large.vhdr").write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = ["name\tx\ty\tz"] + [f"A{i}\t{i / 4:.2f}\t{i % 20}\t{i % 7}" for i in range(1, 201)]
    (folder / "electrodes.tsv").write_text("\n".join(table) + "\n")
    columns = "session\tpath\telectrodes\tframe\tcoordinate_units\tline_frequency\n"
    (folder / "sessions.tsv").write_text(columns + "s\tlarge.vhdr\telectrodes.tsv\tMNI\tmm\t50\n")


def prepare_intracranial(folder: Path) -> None:
    from popflow.inputs.recordings import read_recording, session_row
    from popflow.inputs.settings import resolve
    from popflow.prepare.intracranial import prepare_session

    row = {"dataset": "d", "modality": "intracranial", "source": str(folder)}
    row["sheet"] = str(folder / "sessions.tsv")
    settings = resolve("prepare-intracranial", {"reference": "car"}, "benchmark")
    session = session_row(row, "s")
    prepare_session(read_recording(session), session, settings, folder / "prepared")


CASES: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "cytometry": (make_cytometry, prepare_cytometry),
    "expression": (make_expression, prepare_expression),
    "intracranial": (make_intracranial, prepare_intracranial),
}


def _run(step: Callable[[Path], None], folder: Path, queue: multiprocessing.Queue) -> None:
    start = time.monotonic()
    step(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    queue.put((time.monotonic() - start, peak))


def measure(step: Callable[[Path], None], folder: Path) -> tuple[float, float]:
    """Run a step in a fresh process; give seconds and peak resident memory in GiB."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_run, args=(step, folder, queue))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{step.__name__} ended with {process.exitcode}")
    return queue.get()


def main() -> None:
    """Print a line per case, and fail when one exceeds the bound."""
    worst = 0.0
    print("case\tfile_gib\tseconds\tpeak_gib")
    for name in sys.argv[1:] or CASES:
        make, prepare = CASES[name]
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            measure(make, folder)
            size = sum(file.stat().st_size for file in folder.iterdir()) / 2**30
            seconds, peak = measure(prepare, folder)
        worst = max(worst, peak)
        print(f"{name}\t{size:.2f}\t{seconds:.0f}\t{peak:.2f}", flush=True)
    if worst > BOUND_GIB:
        raise SystemExit(f"the peak of {worst:.2f} GiB exceeds {BOUND_GIB} GiB")


if __name__ == "__main__":
    main()
