"""Spikes as sorters and labs store them: phy, Neurosuite, CellExplorer, MatClust, pynapple, tables.

Each reader gives spike times in seconds by unit id, and notes on what was left out.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from popflow.inputs.delimited import read_delimited
from popflow.inputs.description import rate_of
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
        spikes = len(clusters) - int(np.isin(clusters, kept).sum())
        told = f"{len(names) - len(kept)} clusters ({spikes} spikes) that are not called good"
        notes.append(f"{told} are left out")
    return {str(name): samples[clusters == name] / rate for name in kept}, notes


def _phy_rate(params: Path) -> str:
    """Find sample_rate in params.py, as text; the file is never run."""
    if not params.is_file():
        return ""
    text = params.read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^\s*sample_rate\s*=\s*([^#\n]*)", text, re.MULTILINE)
    return found.group(1).strip().replace("_", "") if found else ""


def _good_clusters(folder: Path, notes: list[str]) -> set[int] | None:
    import pandas as pd

    for name, column in (("cluster_group.tsv", "group"), ("cluster_KSLabel.tsv", "KSLabel")):
        if (folder / name).is_file():
            table = pd.read_csv(folder / name, sep="\t")
            if column in table and "cluster_id" in table:
                good = table[column].astype(str).str.strip().str.lower() == "good"
                return set(table.loc[good, "cluster_id"].astype(int)) if len(table) else None
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
    return bool(_groups(folder))


def _groups(folder: Path) -> list[Path]:
    """List the .res files of a folder; copies such as .res.1~ are none."""
    return sorted(p for p in folder.glob("*.res.*") if re.search(r"\.res\.\d+$", p.name))


def _neurosuite_rate(folder: Path, session: str) -> str:
    """Find the rate of the acquisition system in the session's .xml, as text."""
    xml = folder / f"{session}.xml"
    files = [xml] if xml.is_file() else sorted(folder.glob("*.xml"))
    text = files[0].read_text(encoding="utf-8", errors="replace") if files else ""
    rates = r"<samplingRate>\s*([0-9.]+)\s*</samplingRate>"
    system = re.search(rf"<acquisitionSystem>.*?{rates}.*?</acquisitionSystem>", text, re.DOTALL)
    found = {system.group(1)} if system else set(re.findall(rates, text))
    return " or ".join(sorted(found))


def read_neurosuite(folder: Path, row: dict[str, str]) -> Units:
    """Read .res.N and .clu.N; clusters 0 (artefacts) and 1 (unsorted) are left out."""
    sessions = sorted({res.name.rsplit(".res.", 1)[0] for res in _groups(folder)})
    if len(sessions) > 1:
        found, fix = (
            f"{len(sessions)} sessions: {', '.join(sessions)}",
            "put each into its own folder",
        )
        raise Refusal(f"folder {folder}", found, "the groups of one session", fix)
    rate = _rate(folder, row, _neurosuite_rate(folder, sessions[0]))
    spikes: dict[str, np.ndarray] = {}
    left_out = 0
    for res in _groups(folder):
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
        names, notes = numbered([str(i) for i in ids.tolist()])
        return {i: _seconds(t) for i, t in zip(names, times, strict=True)}, notes
    found: dict[tuple[int, ...], np.ndarray] = {}
    _walk(spikes, (), found)
    return _joined(found)


def _joined(found: dict[tuple[int, ...], np.ndarray]) -> Units:
    """Join the epochs of each cell: the last two levels are tetrode and cell, on one clock."""
    parts: dict[tuple[int, ...], list[np.ndarray]] = {}
    for place, times in found.items():
        parts.setdefault(place[-2:], []).append(times)
    # A level on which nothing differs says nothing.
    levels = [k for k in range(2) if len({place[-2:][k] for place in parts if len(place) > k}) > 1]
    notes, spikes = [], {}
    for place, times in sorted(parts.items()):
        if sum(map(len, times)):
            name = "-".join(str(place[k]) for k in levels or range(len(place)))
            spikes[name] = np.concatenate(times)
    several = max(map(len, parts.values()), default=1)
    if several > 1:
        notes.append(f"{several} epochs or days are joined, cell by cell, on the file's clock")
    if len(spikes) < len(parts):
        notes.append(f"{len(parts) - len(spikes)} cells without spikes are left out")
    return spikes, notes


def numbered(names: list[str]) -> tuple[list[str], list[str]]:
    """Number ids that stand there more than once, and tell so."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    again = [name for name, count in seen.items() if count > 1]
    return found, [f"unit ids {', '.join(again)} repeat; copies are numbered"] if again else []


def _seconds(times: Any) -> np.ndarray:
    return np.asarray(times, float).ravel()


def _walk(cell: Any, place: tuple[int, ...], found: dict[tuple[int, ...], np.ndarray]) -> None:
    """Go through nested cells of MATLAB down to the structs that have a field `time` or `data`."""
    names = cell.dtype.names or ()
    field = next((name for name in ("time", "data") if name in names), None)
    if field:
        values = np.asarray(cell[field].ravel()[0], float)
        found[place] = values[:, 0] if values.ndim > 1 else values.ravel()
    elif cell.dtype == object:
        for number, item in enumerate(cell.ravel(), start=1):
            if isinstance(item, np.ndarray) and item.size:
                _walk(item, (*place, number), found)


def read_pynapple(held: dict[str, np.ndarray]) -> Units:
    """Read a TsGroup saved by pynapple: times `t` and the unit of each, `index`."""
    return {str(name): held["t"][held["index"] == name] for name in np.unique(held["index"])}, []


def read_spike_table(path: Path, row: dict[str, str]) -> Units:
    """Read a table with the columns unit and time (s), or unit and sample with a rate."""
    import pandas as pd

    table = read_delimited(path, dtype={"unit": str})
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
