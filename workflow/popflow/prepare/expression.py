"""Expression: raw matrix -> log values, splits, statistics of each split's training rows."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from popflow.inputs.expression import add_labels, check_names, read_expression
from popflow.inputs.spatial import PLACES
from popflow.prepare.rows import (
    LARGEST_IN_MEMORY,
    Rows,
    entries_of,
    head_of,
    rows_of,
    rows_on_disk,
)
from popflow.runtime.files import atomic, write_h5ad
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator

if TYPE_CHECKING:
    import anndata
    import pandas as pd

log = logging.getLogger(__name__)

SMALLEST_SD = 1e-3
SAME_TOTAL = 1e-3
LARGEST_LOG = 25.0


@dataclass
class Scan:
    """What one pass over the values tells.

    Attributes
    ----------
    totals : (N,) array
        Sum of each row.
    low, high : float
    whole : bool
        Whether all values are whole numbers.
    """

    totals: np.ndarray
    low: float
    high: float
    whole: bool


def value_state(low: float, high: float, whole: bool, constant: bool = False) -> tuple[str, str]:
    """Tell what values are, from the values.

    Parameters
    ----------
    low, high : float
        Smallest and largest.
    whole : bool
        Whether all are whole numbers.
    constant : bool
        Whether all rows have the same sum.

    Returns
    -------
    state : {"counts", "normalised", "log", "scaled"}
    evidence : str
    """
    if low < 0:
        return "scaled", f"negative values down to {low:.3g}"
    if whole:
        return "counts", f"whole numbers up to {high:.0f}"
    if constant:
        return "normalised", "fractions whose rows have one sum"
    if high < LARGEST_LOG:
        return "log", f"fractions, none above {high:.3g}"
    return "normalised", f"fractions up to {high:.3g}"


def scan(rows: Rows) -> Scan:
    """Look at all values once.

    Raises
    ------
    Refusal
        For values that are not finite, with the first row and gene.
    """
    found, bad, first = Scan(np.zeros(len(rows)), np.inf, -np.inf, True), 0, ""
    for place, block in rows.blocks():
        odd = ~np.isfinite(block)
        if odd.any():
            row, column = np.argwhere(odd)[0]
            first = first or f"row {place.start + row + 1}, gene {rows.genes[column]}"
            bad += int(odd.sum())
            continue
        found.totals[place] = block.sum(1)
        found.low, found.high = min(found.low, block.min()), max(found.high, block.max())
        found.whole = found.whole and bool(np.abs(block - np.round(block)).max() <= 1e-6)
    if bad:
        told = f"{bad} values are NaN or infinite (first: {first})"
        raise Refusal(rows.place, told, "finite values", "impute or drop them")
    return found


def state_of(rows: Rows, scanned: Scan, wanted: str) -> tuple[str, str]:
    """Decide what the values are.

    Returns
    -------
    state, evidence : str

    Raises
    ------
    Refusal
        When the values contradict the setting `value_state` or the file's own word, or are scaled
        already: statistics of all rows are in them, so no split of them is clean.
    """
    totals = scanned.totals[scanned.totals > 0]
    constant = len(totals) > 1 and np.ptp(totals) < SAME_TOTAL * totals.mean()
    state, evidence = value_state(scanned.low, scanned.high, scanned.whole, bool(constant))
    if wanted == "pseudo" and state in ("counts", "log", "normalised"):
        return "counts", f"{evidence}, counts by value_state: pseudo"
    if {wanted, state} == {"log", "normalised"}:
        # Fractions may be either; who says so knows better than their size.
        return wanted, f"{evidence}, {wanted} by value_state"
    if wanted not in ("auto", state):
        fix = f"set prepare.<dataset>.value_state to {state} or auto"
        raise Refusal(rows.place, f"{evidence}: {state}, not {wanted}", f"{wanted} values", fix)
    if rows.part == "X" and "log1p" in rows.uns and state == "counts" and wanted == "auto":
        raise Refusal(
            rows.at("uns['log1p']"),
            f"it says that X holds logarithms, but X holds {evidence}",
            "values that are what the file says",
            "write the file again, or set prepare.<dataset>.value_state: counts",
        )
    if state == "scaled" and wanted != "scaled":
        raise Refusal(
            rows.place,
            f"{evidence}: the values were scaled over all samples",
            "counts or log values, so that scaling can use training samples only",
            "keep the counts in layers['counts'] or raw, or set value_state: scaled to go on",
        )
    if state != "scaled" and not scanned.totals.any():
        found, fix = "no sample with any expression", "look at the export"
        raise Refusal(rows.place, found, "values above zero", fix)
    return state, evidence


@dataclass
class Plan:
    """What is decided before values are written.

    Attributes
    ----------
    state : str
    keep : (N,) bool array
        Samples with any expression.
    totals : (N,) array
    obs : DataFrame
        Of the kept samples: label, group, split_0 …
    folds : (kept samples,) array
    var : DataFrame
        Of all genes: mean_s, sd_s, kept_s of every split.
    kept : (genes,) bool array
        Genes that a split keeps.
    report : DataFrame
    evidence : str
    """

    state: str
    keep: np.ndarray
    totals: np.ndarray
    obs: "pd.DataFrame"
    folds: np.ndarray
    var: "pd.DataFrame"
    kept: np.ndarray
    report: "pd.DataFrame"
    evidence: str


def plan(rows: Rows, settings: dict[str, Any]) -> Plan:
    """Choose samples, splits and genes, and estimate the statistics of every split."""
    import pandas as pd

    scanned = scan(rows)
    state, evidence = state_of(rows, scanned, settings["value_state"])
    told = [("samples", "read", len(rows), f"{rows.part}: {evidence}")]
    told.append(("genes", "read", len(rows.genes), state))
    labels = _labels(rows, settings["label"])
    empty = (scanned.totals == 0) if state != "scaled" else np.zeros(len(rows), bool)
    keep = ~empty
    unlabelled = int((labels[keep] == "").sum())
    told.append(("samples", "dropped", int(empty.sum()), "no expression at all"))
    told.append(("samples", "kept without label", unlabelled, "not in probes"))
    obs = pd.DataFrame(index=rows.obs.index[keep])
    obs["label"], obs["group"] = labels[keep], _groups(rows, settings["group"])[keep]
    places = [column for column in PLACES if column in rows.obs]
    obs[places] = rows.obs.loc[keep, places]
    folds = _folds(obs["group"].to_numpy(), obs["label"].to_numpy(), settings["folds"])
    for split in range(settings["folds"]):
        obs[f"split_{split}"] = np.where(folds != split, "train", "test")
    var, kept = _statistics(rows, state, keep, scanned.totals, folds, settings)
    if not kept.any():
        found, fix = "no gene that varies and is detected often enough", "lower min_detected"
        raise Refusal(rows.place, found, "one gene or more", fix)
    told.append(("genes", "dropped", int((~kept).sum()), "rare, constant or not variable"))
    told += [("samples", "kept", len(obs), ""), ("genes", "kept", int(kept.sum()), "any split")]
    told += _class_rows(labels[keep], settings["min_class"])
    report = pd.DataFrame(told, columns=["item", "kind", "count", "reason"])
    evidence = f"{rows.part}: {evidence}"
    return Plan(state, keep, scanned.totals, obs, folds, var, kept, report, evidence)


def _log_blocks(rows: Rows, state: str, keep: np.ndarray, totals: np.ndarray, target: float):
    """Give (kept rows, raw values, log values) block by block; log and scaled values stay."""
    done = 0
    for place, block in rows.blocks():
        block = block[keep[place]]
        logs = block
        if state in ("counts", "normalised"):
            logs = np.log1p(block * (target / totals[place][keep[place]])[:, None])
        yield slice(done, done + len(block)), block, logs
        done += len(block)


def prepare_expression(
    adata: "anndata.AnnData", settings: dict[str, Any]
) -> "tuple[anndata.AnnData, pd.DataFrame]":
    """Prepare a matrix for URLOST.

    Parameters
    ----------
    adata : AnnData
        As `inputs.expression.read_expression` gives it.
    settings : dict
        Of ``workflow/schemas/prepare-expression.schema.yaml``.

    Returns
    -------
    prepared : AnnData
        X: model input of split 0 (float32, scaled by its training rows); layers["lognorm"]: log
        values; obs: label, group, places of spots, split_0 …; var: mean_s, sd_s, kept_s of every
        split s.
    report : DataFrame
        qc.tsv: item, kind, count, reason — read, dropped and kept rows and genes add up.
    """
    import anndata

    rows = rows_of(adata)
    made = plan(rows, settings)
    prepared = anndata.AnnData(obs=made.obs, var=made.var[made.kept])
    lognorm = np.empty(prepared.shape, np.float32)
    for place, _, logs in _log_blocks(
        rows, made.state, made.keep, made.totals, settings["target_sum"]
    ):
        lognorm[place] = logs[:, made.kept]
    prepared.layers["lognorm"] = lognorm
    prepared.uns["urlost"] = _about(made, settings)
    prepared.X = model_input(prepared, 0, whole=True)
    return prepared, made.report


def prepare_file(
    path: str | Path,
    settings: dict[str, Any],
    out: str | Path,
    units: list[dict[str, str]] | None = None,
    sheet: str = "",
) -> "pd.DataFrame":
    """Prepare a file: in memory, or from disk when its matrix has over two billion entries.

    Parameters
    ----------
    path : path
        Any that `inputs.expression.read_expression` reads.
    settings : dict
    out : path
        The prepared h5ad file.
    units : list of dict, optional
        Rows of the samples sheet, whose labels are joined to `obs`.
    sheet : str
        Its path, for messages.

    Returns
    -------
    DataFrame
        qc.tsv.
    """
    if str(path).endswith(".h5ad") and entries_of(path) > LARGEST_IN_MEMORY:
        rows = rows_on_disk(path)
        head = head_of(rows)
        rows.genes = check_names(head, Path(path), settings["duplicates"]).var_names.tolist()
        add_labels(head, units or [], sheet)
        rows.obs = head.obs
        return prepare_on_disk(rows, settings, out)
    keys = ("orientation", "genome", "duplicates")
    adata = read_expression(path, *(settings[key] for key in keys))
    add_labels(adata, units or [], sheet)
    prepared, report = prepare_expression(adata, settings)
    write_h5ad(prepared, out)
    return report


def _about(made: Plan, settings: dict[str, Any]) -> dict[str, Any]:
    return {"value_state": made.state, "evidence": made.evidence, "clip": settings["clip"]}


def prepare_on_disk(rows: Rows, settings: dict[str, Any], out: str | Path) -> "pd.DataFrame":
    """Prepare a matrix that does not fit into memory, as `prepare_expression` does one that fits.

    Parameters
    ----------
    rows : Rows
        Of `prepare.rows.rows_on_disk`.
    settings : dict
    out : path
        The prepared h5ad file, written block by block.

    Returns
    -------
    DataFrame
        qc.tsv.
    """
    import anndata
    import h5py

    made = plan(rows, settings)
    frame = anndata.AnnData(obs=made.obs, var=made.var[made.kept])
    frame.uns["urlost"] = _about(made, settings)
    shape, dense = frame.shape, {"encoding-type": "array", "encoding-version": "0.2.0"}
    with atomic(out) as temporary:
        write_h5ad(frame, temporary)
        with h5py.File(temporary, "a") as file:
            if "X" in file:
                del file["X"]
            stores = [
                file.create_dataset(name, shape, "f4", chunks=(min(256, shape[0]), shape[1]))
                for name in ("layers/lognorm", "X")
            ]
            for store in stores:
                store.attrs.update(dense)
            blocks = _log_blocks(rows, made.state, made.keep, made.totals, settings["target_sum"])
            for place, _, logs in blocks:
                block = logs[:, made.kept].astype(np.float32)
                stores[0][place] = block
                stores[1][place] = _scaled(block, frame, 0, whole=True)
    return made.report


def model_input(prepared: "anndata.AnnData", split: int, whole: bool = False) -> np.ndarray:
    """Scale log values by the mean and standard deviation of a split's training rows.

    Parameters
    ----------
    prepared : AnnData
        Of `prepare_expression`.
    split : int
    whole : bool
        Keep the genes that this split leaves out (as zeros).

    Returns
    -------
    (N, genes kept in the split) float32, clipped
    """
    return _scaled(prepared.layers["lognorm"], prepared, split, whole)


def _scaled(lognorm: np.ndarray, prepared: "anndata.AnnData", split: int, whole: bool):
    """Scale rows of log values by the statistics of a split."""
    kept = prepared.var[f"kept_{split}"].to_numpy().astype(str) == "True"
    mean = prepared.var[f"mean_{split}"].to_numpy()
    sd = prepared.var[f"sd_{split}"].to_numpy()
    clip = float(prepared.uns["urlost"]["clip"])
    x = np.clip((lognorm - mean) / sd, -clip, clip).astype(np.float32)
    return np.where(kept, x, np.float32(0)) if whole else np.ascontiguousarray(x[:, kept])


def kept_genes(prepared: "anndata.AnnData", split: int) -> list[str]:
    """List the genes of `model_input` for a split."""
    kept = prepared.var[f"kept_{split}"].to_numpy().astype(str) == "True"
    return prepared.var_names[kept].tolist()


def split_of_seed(prepared: "anndata.AnnData", seed: int) -> int:
    """Give the split that a fit with a seed uses: seed modulo the number of splits."""
    return seed % sum(column.startswith("split_") for column in prepared.obs.columns)


def _labels(rows: Rows, column: str) -> np.ndarray:
    """Give labels as text, missing ones empty."""
    if column not in rows.obs:
        known = ", ".join(map(str, rows.obs.columns)) or "none"
        fix = f"set prepare.<dataset>.label, or name a samples sheet (sample, {column})"
        where = rows.at("obs")
        raise Refusal(where, f"no column {column!r}", f"a column of obs ({known})", fix)
    series = rows.obs[column].astype(object)
    labels = series.where(series.notna(), "").astype(str).str.strip().to_numpy()
    classes = sorted(set(labels) - {""})
    if len(classes) < 2:
        found = f"column {column!r} holds one class ({classes[0] if classes else 'all empty'})"
        fix = "name another column under prepare.<dataset>.label"
        raise Refusal(rows.at("obs"), found, "two classes or more", fix)
    return labels


def _groups(rows: Rows, column: str | None) -> np.ndarray:
    """Give the group of each sample as text; each is its own without a column."""
    if column is None:
        return rows.obs.index.to_numpy().astype(str)
    if column not in rows.obs:
        known = ", ".join(map(str, rows.obs.columns))
        fix = "set prepare.<dataset>.group to one of them, or leave it out"
        where = rows.at("obs")
        raise Refusal(where, f"no column {column!r}", f"a column of obs ({known})", fix)
    missing = rows.obs[column].isna() | (rows.obs[column].astype(str).str.strip() == "")
    if missing.any():
        found = f"{int(missing.sum())} samples without a value under {column!r}"
        fix = "fill them in (the id of the sample where it stands alone)"
        raise Refusal(rows.at("obs"), found, "a group for every sample", fix)
    return rows.obs[column].astype(str).to_numpy()


class _Moments:
    """Sums per fold and gene, from which the mean and variance of any training part follow."""

    def __init__(self, folds: int, genes: int):
        self.count = np.zeros(folds)
        self.total, self.square = np.zeros((folds, genes)), np.zeros((folds, genes))

    def add(self, block: np.ndarray, folds: np.ndarray) -> None:
        for fold in np.unique(folds):
            rows = block[folds == fold]
            self.count[fold] += len(rows)
            self.total[fold] += rows.sum(0)
            self.square[fold] += np.einsum("ij,ij->j", rows, rows)

    def without(self, split: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Give mean, variance (divided by n) and n of all folds but one."""
        chosen = np.arange(len(self.count)) != split
        n = self.count[chosen].sum()
        mean = self.total[chosen].sum(0) / n
        return mean, np.maximum(self.square[chosen].sum(0) / n - mean**2, 0.0), n


def _statistics(rows, state, keep, totals, folds, settings):
    """Choose genes and estimate their mean and standard deviation, on training rows of each split.

    Returns
    -------
    var : DataFrame
        mean_s, sd_s, kept_s of every split s, for all genes.
    kept : (genes,) bool array
        Of any split.
    """
    import pandas as pd

    splits, genes = settings["folds"], len(rows.genes)
    logs, raw = _Moments(splits, genes), _Moments(splits, genes)
    detected = np.zeros((splits, genes))
    for place, block, log_block in _log_blocks(rows, state, keep, totals, settings["target_sum"]):
        logs.add(log_block, folds[place])
        if settings["n_top"] and state == "counts":
            raw.add(block, folds[place])
        for fold in np.unique(folds[place]):
            detected[fold] += (block[folds[place] == fold] > 0).sum(0)
    found, means, deviations = [], [], []
    for split in range(splits):
        mean, variance, n = logs.without(split)
        seen = detected[np.arange(splits) != split].sum(0)
        enough = seen >= max(3, settings["min_detected"] * n)
        found.append((enough | (state == "scaled")) & (np.sqrt(variance) > SMALLEST_SD))
        means.append(mean)
        deviations.append(np.sqrt(variance))
    if settings["n_top"] and max(chosen.sum() for chosen in found) > settings["n_top"]:
        scores = [deviation**2 for deviation in deviations]
        if state == "counts":
            scores = _clipped_variances(rows, keep, folds, raw, found)
        found = [_top(c, s, settings["n_top"]) for c, s in zip(found, scores, strict=True)]
    var, kept = pd.DataFrame(index=pd.Index(rows.genes)), np.zeros(genes, bool)
    for split, chosen in enumerate(found):
        var[f"mean_{split}"] = means[split]
        var[f"sd_{split}"] = np.maximum(deviations[split], SMALLEST_SD)
        var[f"kept_{split}"] = chosen
        kept |= chosen
    return var, kept


def _clipped_variances(rows, keep, folds, raw, found) -> list[np.ndarray]:
    """Score genes by the variance of standardised, clipped counts (Seurat v3), per split."""
    limits = []
    for split, chosen in enumerate(found):
        mean, variance, n = raw.without(split)
        variance = variance * n / max(n - 1, 1)
        used = chosen & (variance > 0)
        trend = np.polyfit(np.log10(mean[used]), np.log10(variance[used]), 2)
        expected = np.sqrt(10 ** np.polyval(trend, np.log10(np.maximum(mean, 1e-12))))
        limits.append((mean, np.maximum(expected, 1e-12), np.sqrt(n)))
    sums = [np.zeros((2, len(rows.genes))) for _ in found]
    counts, done = np.zeros(len(found)), 0
    for place, block in rows.blocks():
        block = block[keep[place]]
        fold, done = folds[done : done + len(block)], done + len(block)
        for split, (mean, expected, limit) in enumerate(limits):
            clipped = np.minimum((block[fold != split] - mean) / expected, limit)
            counts[split] += len(clipped)
            sums[split] += clipped.sum(0), np.einsum("ij,ij->j", clipped, clipped)
    return [square / n - (total / n) ** 2 for (total, square), n in zip(sums, counts, strict=True)]


def _top(candidates: np.ndarray, score: np.ndarray, n_top: int) -> np.ndarray:
    """Choose the candidates of the highest scores."""
    if candidates.sum() <= n_top:
        return candidates
    score = np.where(candidates, score, -np.inf)
    chosen = np.zeros(len(score), bool)
    chosen[np.argsort(-score, kind="stable")[:n_top]] = True
    return chosen & candidates


def _folds(groups: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """Deal groups into folds, classes spread evenly."""
    names, index = np.unique(groups, return_inverse=True)
    if len(names) < k:
        fix = "lower prepare.<dataset>.folds or name another group column"
        raise Refusal("groups", f"{len(names)} groups for {k} folds", f"at least {k} groups", fix)
    order = generator(0, "expression folds").permutation(len(names))
    first = {name: row for row, name in reversed(list(enumerate(groups)))}
    by_class = sorted(order, key=lambda group: labels[first[names[group]]])
    fold = np.empty(len(names), int)
    fold[by_class] = np.arange(len(names)) % k
    return fold[index]


def _class_rows(labels: np.ndarray, min_class: int) -> list[tuple[str, str, int, str]]:
    names, counts = np.unique(labels[labels != ""], return_counts=True)
    return [
        (f"class {name}", "kept" if count >= min_class else "left out of the probe", int(count), "")
        for name, count in zip(names, counts, strict=True)
    ]
