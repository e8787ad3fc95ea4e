"""Spikes as sorters and labs store them: phy, Neurosuite, CellExplorer, MatClust, pynapple, tables.

Each reader gives spike times in seconds by unit id, and notes on what was left out.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from popflow.inputs.description import rate_of, whole_file
from popflow.inputs.matlab import load_mat, refuse_without
from popflow.runtime.refusal import Refusal

Units = tuple[dict[str, np.ndarray], list[str]]


def is_phy(folder: Path) -> bool:
    """Tell whether a folder holds the output of Kilosort or phy."""
    return (folder / "spike_times.npy").is_file()


def read_phy(folder: Path, row: dict[str, str]) -> Units:
    """Read a phy or Kilosort folder: sample numbers, divided by the rate.

    Clusters that the curator called good are kept; without any curation, those that Kilosort calls
    good; without either, all.
    """
    rate = _rate(folder, row, _phy_rate(folder / "params.py"))
    samples = np.load(folder / "spike_times.npy", allow_pickle=False).ravel()
    notes, file = [], folder / "spike_clusters.npy"
    if not file.is_file():
        file = folder / "spike_templates.npy"
        notes.append(
            "no spike_clusters.npy (saved by curation in phy); spike_templates.npy is used"
        )
    if not file.is_file():
        accepted = "spike_clusters.npy or spike_templates.npy"
        raise Refusal(f"folder {folder}", f"no {accepted}", accepted, "export the sorting again")
    clusters = np.load(file, allow_pickle=False).ravel()
    if len(clusters) != len(samples):
        found = f"{len(samples)} spike times, {len(clusters)} clusters"
        raise Refusal(f"folder {folder}", found, "one cluster per spike", "copy the folder again")
    good = _good_clusters(folder, notes)
    names = np.unique(clusters)
    kept = [name for name in names if good is None or int(name) in good]
    if len(kept) < len(names):
        notes.append(f"{len(names) - len(kept)} clusters that are not called good are left out")
    return {str(name): samples[clusters == name] / rate for name in kept}, notes


def _phy_rate(params: Path) -> str:
    """Find sample_rate in params.py, as text; the file is never run."""
    if not params.is_file():
        return ""
    found = re.search(r"^\s*sample_rate\s*=\s*([0-9.eE+]+)", params.read_text(), re.MULTILINE)
    return found.group(1) if found else ""


def _good_clusters(folder: Path, notes: list[str]) -> set[int] | None:
    import pandas as pd

    for name, column in (("cluster_group.tsv", "group"), ("cluster_KSLabel.tsv", "KSLabel")):
        if (folder / name).is_file():
            table = pd.read_csv(folder / name, sep="\t")
            if column in table and "cluster_id" in table:
                return set(table.loc[table[column] == "good", "cluster_id"].astype(int))
            notes.append(f"{name} has no columns cluster_id and {column}; it is not used")
    return None


def _rate(place: Path, row: dict[str, str], told: str = "") -> float:
    """Give the sampling rate of the sheet, else of the folder.

    Raises
    ------
    Refusal
        Without a rate: sample numbers must not be taken for seconds.
    """
    text = row.get("rate_hz") or told
    rate = rate_of(text)
    if rate is None:
        found = f"sample numbers, and a sampling rate of {text or 'not told'!r}"
        fix = "write it under 'rate_hz' in a sheet of one row (path, rate_hz)"
        raise Refusal(f"{place}", found, "a sampling rate in Hz", fix)
    return rate


def is_neurosuite(folder: Path) -> bool:
    """Tell whether a folder holds .res and .clu files."""
    return any(folder.glob("*.res.*"))


def read_neurosuite(folder: Path, row: dict[str, str]) -> Units:
    """Read .res.N and .clu.N; clusters 0 (artefacts) and 1 (unsorted) are left out."""
    xml = sorted(folder.glob("*.xml"))
    text = xml[0].read_text() if xml else ""
    told = re.search(r"<samplingRate>\s*([0-9.]+)\s*</samplingRate>", text)
    rate = _rate(folder, row, told.group(1) if told else "")
    spikes: dict[str, np.ndarray] = {}
    left_out = 0
    for res in sorted(folder.glob("*.res.*")):
        group = res.name.rsplit(".", 1)[1]
        clu = res.with_name(res.name.replace(".res.", ".clu."))
        if not clu.is_file():
            found = f"{res.name} without {clu.name}"
            fix = "copy both files of every group"
            raise Refusal(f"folder {folder}", found, ".res and .clu of every group", fix)
        samples = np.loadtxt(res, ndmin=1)
        clusters = np.loadtxt(clu, dtype=np.int64, ndmin=1)[1:]
        if len(clusters) != len(samples):
            found = f"{res.name} has {len(samples)} spikes, {clu.name} {len(clusters)}"
            raise Refusal(f"folder {folder}", found, "one cluster per spike", "copy them again")
        left_out += int((clusters < 2).sum())
        for cluster in np.unique(clusters[clusters >= 2]):
            spikes[f"{group}-{cluster}"] = samples[clusters == cluster] / rate
    return spikes, [f"{left_out} spikes of clusters 0 and 1 are left out"] if left_out else []


def read_mat(path: Path, row: dict[str, str]) -> Units:
    """Read spikes.cellinfo.mat of CellExplorer, or spikes.mat of MatClust (day, epoch, tetrode)."""
    held = load_mat(path, ["spikes"])
    if "spikes" not in held:
        raise refuse_without(path, "spikes")
    spikes = held["spikes"]
    names = spikes.dtype.names or ()
    if "times" in names:
        times = spikes["times"].ravel()[0].ravel()
        ids = spikes["UID"].ravel()[0].ravel() if "UID" in names else np.arange(1, len(times) + 1)
        return {str(i): _seconds(t) for i, t in zip(ids.tolist(), times, strict=True)}, []
    found: dict[str, np.ndarray] = {}
    _walk(spikes, (), found)
    filled = {name: times for name, times in found.items() if len(times)}
    empty = len(found) - len(filled)
    return filled, [f"{empty} cells without spikes are left out"] if empty else []


def _seconds(times: Any) -> np.ndarray:
    return np.asarray(times, float).ravel()


def _walk(cell: Any, place: tuple[int, ...], found: dict[str, np.ndarray]) -> None:
    """Go through nested cells of MATLAB down to the structs that have a field `time` or `data`."""
    names = cell.dtype.names or ()
    field = next((name for name in ("time", "data") if name in names), None)
    if field:
        values = np.asarray(cell[field].ravel()[0], float)
        found["-".join(map(str, place[-2:]))] = values[:, 0] if values.ndim > 1 else values
    elif cell.dtype == object:
        inner = cell.ravel()
        for number, item in enumerate(inner, start=1):
            # Cells of one element are levels without a choice (day, epoch).
            if isinstance(item, np.ndarray) and item.size:
                _walk(item, place if len(inner) == 1 else (*place, number), found)


def read_pynapple(held: dict[str, np.ndarray]) -> Units:
    """Read a TsGroup saved by pynapple: times `t` and the unit of each, `index`."""
    return {str(name): held["t"][held["index"] == name] for name in np.unique(held["index"])}, []


def read_spike_table(path: Path, row: dict[str, str]) -> Units:
    """Read a table with the columns unit and time (s), or unit and sample with a rate."""
    import pandas as pd

    separator = "," if path.suffix.lower() == ".csv" else "\t"
    with whole_file(path):
        table = pd.read_csv(path, sep=separator, dtype={"unit": str})
    timed = next((column for column in ("time", "time_s", "sample") if column in table), None)
    if "unit" not in table or timed is None:
        found = f"the columns {', '.join(map(str, table.columns[:8]))}"
        accepted = "the columns unit and time (seconds), or unit and sample"
        raise Refusal(f"file {path}", found, accepted, "rename them in the header line")
    times = pd.to_numeric(table[timed], errors="coerce")
    if times.isna().any() or table["unit"].isna().any():
        line = int((times.isna() | table["unit"].isna()).to_numpy().argmax()) + 2
        found = f"line {line} has no unit or no number under {timed!r}"
        raise Refusal(f"file {path}", found, "a unit and a number in every line", "mend the line")
    seconds = times.to_numpy(float) / (_rate(path, row) if timed == "sample" else 1.0)
    return {unit: seconds[group] for unit, group in table.groupby("unit").indices.items()}, []
