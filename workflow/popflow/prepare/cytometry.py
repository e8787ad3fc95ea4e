"""From FCS files to one transformed set of cells per sample, with every dropped event counted.

Steps of a sample: linear values, compensation, panel, non-finite, margin and gated events out,
``arcsinh(x / cofactor)``. One sample is in memory at a time.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.inputs import fcs, panels, sheets, spillover
from popflow.runtime.files import read_tsv, write_h5ad, write_tsv
from popflow.runtime.progress import Progress
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

log = logging.getLogger(__name__)

#: Linear counts of a whole sample reach far above; arcsinh and log values never do.
LARGEST_TRANSFORMED = 15.0
NOT_LABELS = ("sample", "path", "subject", "batch", "split", "cell_types", "data_set", "cells")


@dataclass
class Sample:
    """A prepared sample in memory.

    Attributes
    ----------
    cells : (cells, markers) float32 array
        Transformed.
    event : (cells,) int64 array
        Row of each cell in the file.
    cell_type : list of str or None
    dropped : dict of str to int
        Events by the reason for which they were dropped, in the order of the steps.
    steps : list of str
        What was done, in words.
    spillover : (names, matrix) or None
        As applied.
    """

    cells: "np.ndarray"
    event: "np.ndarray"
    cell_type: list[str] | None
    dropped: dict[str, int]
    steps: list[str]
    spillover: "tuple[list[str], np.ndarray] | None" = None

    def check_events(self, read: int) -> None:
        """Hold kept + dropped against the events of the file."""
        if len(self.cells) + sum(self.dropped.values()) != read:
            raise AssertionError(f"{read} events were read, {len(self.cells)} + {self.dropped}")


def prepare_cytometry(
    source: dict[str, Any], settings: dict[str, Any], folder: str | Path
) -> "pd.DataFrame":
    """Prepare all samples of a dataset.

    Parameters
    ----------
    source : dict
        `sheet` (samples), `source` (folder of the files) and `panel` (default: ``panel.tsv``
        beside the sheet).
    settings : dict
        As `prepare-cytometry.schema.yaml` describes.
    folder : path
        Gets ``samples/<sample>.h5ad``, ``cohort.tsv``, ``panel.tsv``, ``qc.tsv``, ``splits.tsv``.

    Returns
    -------
    DataFrame
        The cohort table: a row per sample that was kept.

    Raises
    ------
    Refusal, Refusals
        For every mistake in sheets and files.
    """
    import pandas as pd

    folder = Path(folder)
    units = sheets.read_units(dict(source, modality="cytometry"))
    panel_path = source.get("panel") or Path(source["sheet"]).parent / "panel.tsv"
    panel = [row for row in panels.read_panel(panel_path, settings["cofactor"])]
    panel = [row for row in panel if row.role != "ignore"]
    splits = assign_splits(units, settings["held_out"], settings["seed"])
    statistics = _Statistics(sum(row.modelled for row in panel))
    counts, kept, progress = [], [], Progress("prepare cytometry", len(units))
    for unit in units:
        sample = prepare_sample(unit, panel, settings, source["source"])
        enough = len(sample.cells) >= settings["min_cells"]
        status = "included" if enough else f"excluded: fewer than {settings['min_cells']} cells"
        counts += _outcomes(unit, sample, status)
        if enough:
            _write_sample(sample, unit, panel, folder / "samples" / f"{unit['sample']}.h5ad")
            kept.append(_label_row(unit) | {"cells": len(sample.cells)})
            if splits[unit["sample"]] == "train":
                statistics.add(sample.cells)
        else:
            log.warning("sample %s: %s", unit["sample"], status)
        progress.update()
    progress.close()
    if not statistics.samples:
        _refuse_empty(source["sheet"], settings["min_cells"])
    cohort = pd.DataFrame(kept)
    split = cohort[["sample", "subject"]].assign(split=cohort["sample"].map(splits))
    write_tsv(split, folder / "splits.tsv")
    write_tsv(pd.DataFrame(counts), folder / "qc.tsv")
    write_tsv(_marker_table(panel, statistics), folder / "panel.tsv")
    write_tsv(cohort, folder / "cohort.tsv")
    return cohort


def prepare_sample(
    unit: dict[str, str],
    panel: list[panels.PanelRow],
    settings: dict[str, Any],
    folder: str | Path = ".",
) -> Sample:
    """Prepare one sample.

    Parameters
    ----------
    unit : dict
        A row of the samples sheet.
    panel : list of PanelRow
        Without rows of class ignore.
    settings : dict
        As `prepare-cytometry.schema.yaml` describes.
    folder : path
        What `cell_types` is relative to.

    Raises
    ------
    Refusal
        When file, panel and settings do not go together.
    """
    import numpy as np

    file = fcs.open_unit(unit, settings)
    where = f"file {file.path}"
    columns = panels.match_panel(panel, file.channels, where)
    x = file.read()
    steps = ["linear values of the channels", *file.warnings]
    at_margin = _at_margin(x[:, columns], panel, file.limits[columns], settings["margin"], where)
    applied = _compensate(x, file, settings, steps)
    x = x[:, columns]
    keep, dropped = _quality(x, panel, at_margin)
    modelled = [i for i, row in enumerate(panel) if row.modelled]
    markers = [panel[i] for i in modelled]
    cells = _transform(x[np.ix_(keep, modelled)], markers, settings, where, steps)
    types = _cell_types(unit, folder, file.events)
    kept_types = None if types is None else [types[i] for i in keep]
    sample = Sample(cells, keep.astype(np.int64), kept_types, dropped, steps, applied)
    sample.check_events(file.events)
    return sample


def _compensate(x, file, settings, steps):
    """Compensate in place if the file asks for it; say what was done."""
    import numpy as np

    if settings["compensate"] == "off":
        steps.append("not compensated: switched off")
    elif file.spillover is None:
        steps.append("not compensated: the file carries no spillover matrix")
    elif file.compensated:
        steps.append("not compensated: the channel names say that the file is compensated")
    elif np.array_equal(file.spillover[1], np.eye(len(file.spillover[0]))):
        steps.append("not compensated: the spillover matrix is the identity")
    else:
        names = file.channels["name"].tolist()
        spillover.compensate(x, names, file.spillover, f"file {file.path}")
        steps.append(f"compensated by the file's matrix of {len(file.spillover[0])} channels")
        return file.spillover
    return None


def _at_margin(x, panel, limits, wanted, where):
    """Mark the events at the end of a marker's range; before compensation, which moves them."""
    import numpy as np

    if not wanted:
        return np.zeros(len(x), bool)
    modelled = np.array([row.modelled for row in panel])
    high = x >= np.where(modelled, limits, np.inf)
    marked = high.any(axis=1)
    if len(x) and marked.mean() > 0.5:
        worst = panel[int(np.argmax(high.mean(axis=0)))]
        raise Refusal(
            f"{where}, channel {worst.channel!r}",
            f"{marked.mean():.0%} of the events lie at the end of the range ($PnR) or above",
            "a range that the values stay below",
            "set margin: false under prepare, or mend $PnR",
        )
    return marked


def _quality(x, panel, at_margin):
    """Give the rows to keep, and how many went for which reason."""
    import numpy as np

    keep = np.isfinite(x).all(axis=1)
    dropped = {"non-finite": int((~keep).sum()), "at the margin": int((keep & at_margin).sum())}
    keep &= ~at_margin
    for column, row in enumerate(panel):
        if row.gated:
            low = -np.inf if row.low is None else row.low
            high = np.inf if row.high is None else row.high
            bad = keep & ((x[:, column] < low) | (x[:, column] > high))
            dropped[f"outside the gate on {row.marker}"] = int(bad.sum())
            keep &= ~bad
    return np.flatnonzero(keep), dropped


def _transform(x, markers, settings, where, steps):
    """Apply arcsinh(x / cofactor), once."""
    import numpy as np

    if settings["transformed"]:
        steps.append("not transformed: the files hold transformed values")
        return x.astype(np.float32)
    if len(x) and x.max() < LARGEST_TRANSFORMED:
        raise Refusal(
            where,
            f"the largest marker value is {x.max():.3g}: the values seem transformed already",
            f"linear values, some of them above {LARGEST_TRANSFORMED:g}",
            "set transformed: true under prepare, so that they are not transformed twice",
        )
    cofactors = np.array([row.cofactor for row in markers])
    steps.append("arcsinh(x / cofactor)")
    return np.arcsinh(x / cofactors).astype(np.float32)


def _cell_types(unit, folder, events):
    """Read the gated type of each event; None without a table."""
    if "cell_types" not in unit:
        return None
    return fcs.read_cell_types(Path(folder) / unit["cell_types"], events, unit["path"])


def _outcomes(unit, sample, status):
    """Give the rows of qc.tsv for a sample."""
    head = {"sample": unit["sample"], "batch": unit.get("batch", ""), "status": status}
    cells = len(sample.cells)
    counts = {"kept": cells} if status == "included" else {"of an excluded sample": cells}
    counts |= sample.dropped
    total = max(sum(counts.values()), 1)
    return [
        head | {"outcome": outcome, "events": number, "share": number / total}
        for outcome, number in counts.items()
    ]


def _label_row(unit):
    """Give a sample's row of cohort.tsv: ids first, then its labels."""
    labels = {key: value for key, value in unit.items() if key not in NOT_LABELS}
    head = {"sample": unit["sample"], "subject": unit.get("subject", unit["sample"])}
    return head | {"batch": unit.get("batch", "")} | labels


def _write_sample(sample, unit, panel, path):
    """Write a sample; X is left uncompressed, so that rows are read from disk one by one."""
    import anndata
    import pandas as pd

    markers = [row for row in panel if row.modelled]
    obs = pd.DataFrame({"event": sample.event})
    if sample.cell_type is not None:
        obs["cell_type"] = sample.cell_type
    var = pd.DataFrame(
        {
            "channel": [row.channel for row in markers],
            "class": [row.role for row in markers],
            "cofactor": [row.cofactor for row in markers],
        },
        index=pd.Index([row.marker for row in markers], name="marker"),
    )
    adata = anndata.AnnData(sample.cells, obs=obs.set_index(obs.index.astype(str)), var=var)
    adata.uns = {"sample": unit["sample"], "file": Path(unit["path"]).name, "steps": sample.steps}
    if sample.spillover is not None:
        adata.uns["spillover_channels"], adata.uns["spillover"] = sample.spillover
    write_h5ad(adata, path)


class _Statistics:
    """Mean and standard deviation per marker; every training sample counts alike."""

    def __init__(self, markers: int):
        import numpy as np

        self.samples, self.first, self.second = 0, np.zeros(markers), np.zeros(markers)

    def add(self, cells: "np.ndarray") -> None:
        self.samples += 1
        self.first += cells.mean(axis=0, dtype=float)
        self.second += (cells.astype(float) ** 2).mean(axis=0)

    def values(self) -> "tuple[np.ndarray, np.ndarray]":
        import numpy as np

        mean = self.first / self.samples
        spread = np.sqrt(np.maximum(self.second / self.samples - mean**2, 0.0))
        # A constant marker is left at its mean, not blown up.
        return mean, np.where(spread > 1e-6, spread, 1.0)


def _marker_table(panel, statistics):
    import pandas as pd

    mean, spread = statistics.values()
    markers = [row for row in panel if row.modelled]
    rows = [
        {"marker": row.marker, "channel": row.channel, "class": row.role, "cofactor": row.cofactor}
        for row in markers
    ]
    return pd.DataFrame(rows).assign(mean=mean, sd=spread)


def _refuse_empty(sheet, least):
    raise Refusal(
        f"sheet {sheet}",
        f"no training sample has {least} cells or more",
        "one sample or more to learn from",
        "lower min_cells under prepare, or look at qc.tsv",
    )


def assign_splits(units: list[dict[str, str]], held_out: float, seed: int) -> dict[str, str]:
    """Split by subject: the sheet's own `split` where given, else by chance.

    Parameters
    ----------
    units : list of dict
        Rows of the samples sheet.
    held_out : float
        Share of the subjects for ``"test"``.
    seed : int

    Returns
    -------
    dict of str to {"train", "test"}
        By sample.

    Raises
    ------
    Refusal
        When one subject stands in both splits.
    """
    subjects = {unit["sample"]: unit.get("subject", unit["sample"]) for unit in units}
    names = sorted(set(subjects.values()))
    number = round(held_out * len(names))
    drawn = set(generator(seed, "held_out").permutation(names)[:number])
    split = {name: "test" if name in drawn else "train" for name in names}
    told: dict[str, str] = {}
    for row, unit in enumerate(units, start=2):
        if (
            "split" in unit
            and told.setdefault(subjects[unit["sample"]], unit["split"]) != unit["split"]
        ):
            raise Refusal(
                f"samples sheet, row {row}, column 'split'",
                f"subject {subjects[unit['sample']]!r} stands in train and in test",
                "one split per subject",
                "give all samples of a subject the same split",
            )
    split |= told
    return {sample: split[subject] for sample, subject in subjects.items()}


@dataclass
class Cohort:
    """A prepared cohort; cells are read from disk when asked for.

    Attributes
    ----------
    folder : Path
    samples : DataFrame
        sample, subject, batch, labels, cells, split.
    markers : DataFrame
        marker, channel, class, cofactor, and mean and sd of the training samples.
    """

    folder: Path
    samples: "pd.DataFrame"
    markers: "pd.DataFrame"

    def cells(self, sample: str) -> "np.ndarray":
        """Map the cells of a sample, (cells, markers) float32; rows are read when indexed."""
        import h5py
        import numpy as np

        path = self._path(sample)
        with h5py.File(path, "r") as handle:
            stored = handle["X"]
            offset = stored.id.get_offset()
            if offset is None or stored.dtype != np.float32:
                return stored[...].astype(np.float32)
            shape = stored.shape
        return np.memmap(path, np.float32, "r", offset, shape)

    def cell_types(self, sample: str) -> "np.ndarray | None":
        """Give the gated type of every cell, or None."""
        import anndata
        import h5py

        with h5py.File(self._path(sample), "r") as handle:
            if "cell_type" not in handle["obs"]:
                return None
            return anndata.io.read_elem(handle["obs"]["cell_type"]).astype(str)

    @property
    def labels(self) -> list[str]:
        """The columns of `samples` that are labels."""
        return [column for column in self.samples if column not in NOT_LABELS]

    def _path(self, sample: str) -> Path:
        return self.folder / "samples" / f"{sample}.h5ad"


def read_cohort(folder: str | Path) -> Cohort:
    """Open what `prepare_cytometry` wrote."""
    folder = Path(folder)
    text = {"sample": str, "subject": str, "batch": str}
    samples = read_tsv(folder / "cohort.tsv", dtype=text)
    splits = read_tsv(folder / "splits.tsv", dtype=text).set_index("sample")["split"]
    samples["split"] = samples["sample"].map(splits)
    return Cohort(folder, samples, read_tsv(folder / "panel.tsv"))
