"""Expression: raw matrix -> log values, splits, statistics of each split's training rows."""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator

if TYPE_CHECKING:
    import anndata
    import pandas as pd

log = logging.getLogger(__name__)

SMALLEST_SD = 1e-3
LARGEST_LOG = 25.0


def value_state(x: Any) -> tuple[str, str]:
    """Tell what values are, from the values.

    Parameters
    ----------
    x : (N, n) array or sparse

    Returns
    -------
    state : {"counts", "normalised", "log", "scaled"}
    evidence : str
    """
    values = x.data if hasattr(x, "indptr") else np.asarray(x).ravel()
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if low < 0:
        return "scaled", f"negative values down to {low:.3g}"
    if np.allclose(values, np.round(values), atol=1e-6):
        return "counts", f"whole numbers up to {high:.0f}"
    if high < LARGEST_LOG:
        return "log", f"fractions, none above {high:.3g}"
    return "normalised", f"fractions up to {high:.3g}"


def choose_values(adata: "anndata.AnnData", wanted: str) -> tuple[Any, list[str], str, str]:
    """Choose the rawest values of a file: counts layer, then raw, then X.

    Returns
    -------
    values : (N, n) array or sparse
    genes : list of str
    state, evidence : str

    Raises
    ------
    Refusal
        When the values contradict the setting `value_state`, or are scaled already: statistics
        of all rows are in them, so no split of them is clean.
    """
    if "counts" in adata.layers:
        values, genes, part = adata.layers["counts"], adata.var_names, "layers['counts']"
    elif adata.raw is not None:
        values, genes, part = adata.raw.X, adata.raw.var_names, "raw.X"
    else:
        values, genes, part = adata.X, adata.var_names, "X"
    where = _place(adata, part)
    matrix = values if hasattr(values, "indptr") else np.asarray(values)
    data = matrix.data if hasattr(matrix, "indptr") else matrix
    if not np.isfinite(data).all():
        bad = int((~np.isfinite(data)).sum())
        found, fix = (
            f"{bad} values are NaN or infinite{_first_bad(matrix, genes)}",
            "impute or drop",
        )
        raise Refusal(where, found, "finite values", fix)
    state, evidence = value_state(matrix)
    if wanted not in ("auto", state):
        fix = f"set prepare.<dataset>.value_state to {state} or auto"
        raise Refusal(where, f"{evidence}: {state}, not {wanted}", f"{wanted} values", fix)
    if part == "X" and "log1p" in adata.uns and state == "counts" and wanted == "auto":
        raise Refusal(
            _place(adata, "uns['log1p']"),
            f"it says that X holds logarithms, but X holds {evidence}",
            "values that are what the file says",
            "write the file again, or set prepare.<dataset>.value_state: counts",
        )
    if state == "scaled" and wanted != "scaled":
        raise Refusal(
            where,
            f"{evidence}: the values were scaled over all samples",
            "counts or log values, so that scaling can use training samples only",
            "keep the counts in layers['counts'] or raw, or set value_state: scaled to go on",
        )
    return matrix, list(genes.astype(str)), state, f"{part}: {evidence}"


def _place(adata: "anndata.AnnData", part: str) -> str:
    """Name the file, where the reader told it, and a part of it."""
    source = adata.uns.get("source")
    return f"file {source}, {part}" if source else part


def _first_bad(matrix: Any, genes: Any) -> str:
    """Name the sample's row and the gene of the first value that is not finite."""
    import scipy.sparse

    if scipy.sparse.issparse(matrix):
        coo = matrix.tocoo()
        first = int(np.argmin(np.isfinite(coo.data)))
        row, column = coo.row[first], coo.col[first]
    else:
        row, column = np.argwhere(~np.isfinite(matrix))[0]
    return f" (first: row {row + 1}, gene {genes[column]})"


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
        values; obs: label, group, split_0 …; var: mean_s, sd_s, kept_s of every split s.
    report : DataFrame
        qc.tsv: item, kind, count, reason — read, dropped and kept rows and genes add up.
    """
    import anndata
    import pandas as pd

    values, genes, state, evidence = choose_values(adata, settings["value_state"])
    rows = [("samples", "read", adata.n_obs, evidence), ("genes", "read", len(genes), state)]
    labels = _labels(adata, settings["label"])
    totals = np.asarray(values.sum(1)).ravel()
    empty = (totals == 0) if state != "scaled" else np.zeros(len(totals), bool)
    unlabelled = labels == ""
    if empty.all():
        found, fix = "no sample with any expression", "look at the export"
        raise Refusal(_place(adata, "X"), found, "values above zero", fix)
    rows.append(("samples", "dropped", int(empty.sum()), "no expression at all"))
    rows.append(("samples", "kept without label", int(unlabelled[~empty].sum()), "not in probes"))
    values, labels = values[~empty], labels[~empty]
    lognorm = _log_values(values, state, settings["target_sum"])
    groups = _groups(adata, settings["group"])[~empty]
    folds = _folds(groups, labels, settings["folds"])
    obs = pd.DataFrame(index=adata.obs_names[~empty])
    obs["label"], obs["group"] = labels, groups
    var, kept_any = pd.DataFrame(index=pd.Index(genes)), np.zeros(len(genes), bool)
    for split in range(settings["folds"]):
        train = folds != split
        obs[f"split_{split}"] = np.where(train, "train", "test")
        mean, sd, kept = _statistics(values, lognorm, train, state, settings)
        var[f"mean_{split}"], var[f"sd_{split}"], var[f"kept_{split}"] = mean, sd, kept
        kept_any |= kept
    if not kept_any.any():
        found = "no gene that varies and is detected often enough"
        fix = "lower min_detected, or look at the export"
        raise Refusal(_place(adata, "X"), found, "one gene or more", fix)
    rows.append(("genes", "dropped", int((~kept_any).sum()), "rare, constant or not variable"))
    rows += [("samples", "kept", len(obs), ""), ("genes", "kept", int(kept_any.sum()), "any split")]
    rows += _class_rows(labels, settings["min_class"])
    prepared = anndata.AnnData(obs=obs, var=var[kept_any])
    prepared.layers["lognorm"] = lognorm[:, kept_any].astype(np.float32)
    prepared.uns["urlost"] = {"value_state": state, "evidence": evidence, "clip": settings["clip"]}
    prepared.X = model_input(prepared, 0, whole=True)
    return prepared, pd.DataFrame(rows, columns=["item", "kind", "count", "reason"])


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
    kept = prepared.var[f"kept_{split}"].to_numpy().astype(str) == "True"
    mean = prepared.var[f"mean_{split}"].to_numpy()
    sd = prepared.var[f"sd_{split}"].to_numpy()
    clip = float(prepared.uns["urlost"]["clip"])
    x = np.clip((prepared.layers["lognorm"] - mean) / sd, -clip, clip).astype(np.float32)
    return np.where(kept, x, np.float32(0)) if whole else np.ascontiguousarray(x[:, kept])


def kept_genes(prepared: "anndata.AnnData", split: int) -> list[str]:
    """List the genes of `model_input` for a split."""
    kept = prepared.var[f"kept_{split}"].to_numpy().astype(str) == "True"
    return prepared.var_names[kept].tolist()


def split_of_seed(prepared: "anndata.AnnData", seed: int) -> int:
    """Give the split that a fit with a seed uses: seed modulo the number of splits."""
    return seed % sum(column.startswith("split_") for column in prepared.obs.columns)


def _labels(adata: "anndata.AnnData", column: str) -> np.ndarray:
    """Give labels as text, missing ones empty."""
    if column not in adata.obs:
        known = ", ".join(adata.obs.columns) or "none"
        fix = f"set prepare.<dataset>.label, or name a samples sheet (sample, {column})"
        where = _place(adata, "obs")
        raise Refusal(where, f"no column {column!r}", f"a column of obs ({known})", fix)
    series = adata.obs[column].astype(object)
    labels = series.where(series.notna(), "").astype(str).str.strip().to_numpy()
    classes = sorted(set(labels) - {""})
    if len(classes) < 2:
        found = f"column {column!r} holds one class ({classes[0] if classes else 'all empty'})"
        fix = "name another column under prepare.<dataset>.label"
        raise Refusal(_place(adata, "obs"), found, "two classes or more", fix)
    return labels


def _groups(adata: "anndata.AnnData", column: str | None) -> np.ndarray:
    if column is None:
        return adata.obs_names.to_numpy().astype(str)
    if column not in adata.obs:
        known = ", ".join(adata.obs.columns)
        fix = "set prepare.<dataset>.group to one of them, or leave it out"
        where = _place(adata, "obs")
        raise Refusal(where, f"no column {column!r}", f"a column of obs ({known})", fix)
    missing = adata.obs[column].isna() | (adata.obs[column].astype(str).str.strip() == "")
    if missing.any():
        found = f"{int(missing.sum())} samples without a value under {column!r}"
        fix = "fill them in (the id of the sample where it stands alone)"
        raise Refusal(_place(adata, "obs"), found, "a group for every sample", fix)
    return adata.obs[column].astype(str).to_numpy()


def _log_values(values: Any, state: str, target_sum: float) -> np.ndarray:
    """Scale counts to a fixed depth and take log(1 + x); log and scaled values stay."""
    dense = values.toarray() if hasattr(values, "indptr") else np.array(values)
    dense = dense.astype(np.float64)
    if state in ("counts", "normalised"):
        dense *= target_sum / dense.sum(1, keepdims=True)
        np.log1p(dense, out=dense)
    return dense


def _statistics(values, lognorm, train, state, settings):
    """Choose genes and estimate their mean and standard deviation on training rows."""
    detected = np.asarray((values[train] > 0).sum(0)).ravel()
    enough = detected >= max(3, settings["min_detected"] * train.sum())
    if state == "scaled":
        enough[:] = True
    mean, sd = lognorm[train].mean(0), lognorm[train].std(0)
    kept = enough & (sd > SMALLEST_SD)
    if settings["n_top"] and kept.sum() > settings["n_top"]:
        kept &= _variable(values[train], lognorm[train], state, kept, settings["n_top"])
    return mean, np.maximum(sd, SMALLEST_SD), kept


def _variable(values, lognorm, state, candidates, n_top):
    """Choose the most variable genes, by the variance-stabilised method on counts (Seurat v3)."""
    score = lognorm.var(0)
    if state == "counts":
        dense = values.toarray() if hasattr(values, "indptr") else np.asarray(values)
        mean, variance = dense.mean(0), dense.var(0, ddof=1)
        used = candidates & (variance > 0)
        trend = np.polyfit(np.log10(mean[used]), np.log10(variance[used]), 2)
        expected = np.sqrt(10 ** np.polyval(trend, np.log10(np.maximum(mean, 1e-12))))
        limit = np.sqrt(len(dense))
        score = np.minimum((dense - mean) / np.maximum(expected, 1e-12), limit).var(0)
    score = np.where(candidates, score, -np.inf)
    chosen = np.zeros(len(score), bool)
    chosen[np.argsort(-score, kind="stable")[:n_top]] = True
    return chosen


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
