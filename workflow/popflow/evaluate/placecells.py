"""Place cells: held-out likelihood beside peers, and whether masks follow the task."""

import logging
from typing import Any

import numpy as np
import pandas as pd

from popflow.evaluate.association import associate
from popflow.models.infinite_gpfa import InfiniteGPFA
from popflow.models.infinite_gpfa.session import activity_of, hold_out_of, scored_of

log = logging.getLogger(__name__)

EM_TOLERANCE = 1e-5
IMPUTATIONS, ELEPHANT_IMPUTATIONS = 10, 2
SMALLEST_RATE = 1e-3


def evaluate_placecells(
    dataset: str,
    session: dict[str, np.ndarray],
    fits: list[tuple[str, int, InfiniteGPFA]],
    settings: dict[str, Any],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Score every fit and every peer on the same held-out entries; tell what factors follow.

    Parameters
    ----------
    dataset : str
    session : dict
        Of `prepare.placecells.read_prepared`.
    fits : list of (variant, seed, model)
    settings : dict
        Of ``workflow/schemas/evaluate-placecells.schema.yaml``.

    Returns
    -------
    evaluation : DataFrame
        The rows of evaluation.tsv.
    association : DataFrame
        Of `evaluate.association.associate`, with variant and seed.
    """
    rows, associations = [], []
    for variant, seed, model in fits:
        scored, table = _score_fit(session, variant, seed, model, settings)
        rows += scored
        if len(table):
            associations.append(table.assign(variant=variant, seed=seed))
    for seed in sorted({seed for _, seed, _ in fits}):
        for name, terms in peer_terms(session, seed, settings).items():
            rows += _scores(name, "", seed, session, terms)
    table = pd.DataFrame(rows)
    table.insert(0, "dataset", dataset)
    empty = pd.DataFrame(columns=["factor", "target", "value", "p", "fdr", "variant", "seed"])
    return table, pd.concat(associations) if associations else empty


def _score_fit(
    session: dict[str, np.ndarray],
    variant: str,
    seed: int,
    model: InfiniteGPFA,
    settings: dict[str, Any],
) -> tuple[list[dict[str, Any]], pd.DataFrame]:
    """Score one fit; give its rows, and its association with the phases when it has masks."""
    method, bins = "infinite_gpfa", len(session["t"])
    held = scored_of(session, seed)
    activity = activity_of(session, seed)
    terms = model.log_predictive(activity, held, session["exposure"], settings["draws"])
    rows = _scores(method, variant, seed, session, terms)
    count = model.n_effective_
    rows.append(_row(method, variant, seed, "factors", "effective number", count, bins))
    if not model.settings["masks"]:
        return rows, pd.DataFrame()
    table = associate(session, model, settings, seed)
    for target, own in table.groupby("target", sort=False) if len(table) else ():
        best, score = own.loc[own["value"].idxmax()], own["score"].iloc[0]
        metric = f"best mask {score}" if score == "AUC" else f"best factor {score}"
        told = {metric: best["value"], f"p of the {metric}": best["p_best"]}
        for name, value in told.items():
            rows.append(_row(method, variant, seed, target, name, value, bins))
        null = best["null_best"]
        rows.append(_row("rotated labels", "", seed, target, metric, null, bins))
    return rows, table


def _row(method, variant, seed, task, metric, value, n) -> dict[str, Any]:
    return {
        "method": method,
        "variant": variant,
        "seed": seed,
        "fold": "",
        "task": task,
        "metric": metric,
        "value": float(value),
        "n": int(n),
    }


def _scores(method, variant, seed, session, terms) -> list[dict[str, Any]]:
    """Turn log-likelihoods of held-out entries into nats per entry, and bits per spike."""
    held = scored_of(session, seed)
    task, n = "held-out entries", held.sum()
    rows = [_row(method, variant, seed, task, "log-likelihood per entry", terms.mean(), n)]
    if session["kind"] == "spikes":
        base = constant_terms(session, seed)
        bits = (terms.sum() - base.sum()) / (session["counts"][held].sum() * np.log(2))
        rows.append(_row(method, variant, seed, task, "bits per spike", bits, n))
    return rows


def mean_rates(session: dict[str, np.ndarray], held: np.ndarray) -> np.ndarray:
    """Give each unit's rate in spikes per second from entries that are not held out."""
    seen = ~held & session["used"][:, None]
    seconds = (seen * session["exposure"][:, None] * session["bin_s"]).sum(0)
    return np.maximum((session["counts"] * seen).sum(0) / seconds, SMALLEST_RATE)


def constant_terms(session: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Give log-likelihoods of the scored entries under each unit's mean rate, or mean and sd."""
    activity, scored = activity_of(session, seed), scored_of(session, seed)
    if session["kind"] == "traces":
        return _normal_terms(activity, np.zeros(activity.shape), np.ones(activity.shape), scored)
    rate = mean_rates(session, hold_out_of(session, seed)) * session["bin_s"]
    rate = rate * session["exposure"][:, None]
    return _poisson_terms(activity[scored], rate[scored])


def _poisson_terms(counts: np.ndarray, expected: np.ndarray) -> np.ndarray:
    from scipy.stats import poisson

    return poisson.logpmf(counts, np.maximum(expected, 1e-9))


def _normal_terms(values, mean, variance, scored) -> np.ndarray:
    from scipy.stats import norm

    return norm.logpdf(values[scored], mean[scored], np.sqrt(np.maximum(variance[scored], 1e-9)))


def peer_terms(
    session: dict[str, np.ndarray], seed: int, settings: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Give log-likelihoods of the scored entries under every peer, by its name.

    Elephant's GPFA, factor analysis and PCA are fitted to square roots of counts (to traces as they
    are). They know no missing entries: these start at the unit's mean and are replaced by the
    method's own prediction, a few times. A predicted square root x with variance s² gives the rate
    x² + s² of a Poisson count.
    """
    activity, scored = activity_of(session, seed).astype(float), scored_of(session, seed)
    held = hold_out_of(session, seed) | ~session["used"][:, None]
    spikes = session["kind"] == "spikes"
    root = np.sqrt(activity) if spikes else activity
    found = {"mean rate": constant_terms(session, seed)}
    for name, (predict, rounds) in _peers(session, settings).items():
        predicted, variance = impute(root, held, predict, rounds, spikes)
        if spikes:
            found[name] = _poisson_terms(activity[scored], (predicted**2 + variance)[scored])
        else:
            found[name] = _normal_terms(activity, predicted, variance, scored)
    return found


def impute(
    values: np.ndarray, held: np.ndarray, predict: Any, rounds: int, positive: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a method that knows no missing entries, filling them with its own prediction.

    Parameters
    ----------
    values : (T, N) array
    held : (T, N) bool array
        Entries that are not looked at.
    predict : callable
        Of a full array; gives mean and variance of every entry.
    rounds : int
    positive : bool
        Whether predictions are cut at 0.
    """
    seen = np.where(held, np.nan, values)
    filled = np.where(held, np.nan_to_num(np.nanmean(seen, 0)), values)
    for _ in range(rounds):
        predicted, variance = predict(filled)
        predicted = np.maximum(predicted, 0.0) if positive else predicted
        filled = np.where(held, predicted, values)
    return predicted, variance


def _peers(session: dict[str, np.ndarray], settings: dict[str, Any]) -> dict[str, tuple[Any, int]]:
    """Give every peer's way to predict, and how often it is fitted."""
    factors = min(settings["peer_factors"], session["counts"].shape[1] - 1)
    length = max(2, int(settings["peer_trial_s"] / session["bin_s"]))
    peers: dict[str, tuple[Any, int]] = {}
    if factors > 0:
        peers["PCA"] = (lambda x: _linear(x, factors, "pca"), IMPUTATIONS)
        peers["factor analysis"] = (lambda x: _linear(x, factors, "fa"), IMPUTATIONS)
    if settings["elephant"]:
        peers["elephant_gpfa"] = (
            lambda x: _elephant(x, length, session["bin_s"], settings),
            ELEPHANT_IMPUTATIONS,
        )
    return peers


def _linear(x: np.ndarray, factors: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Predict every entry from the others of its bin by PCA or factor analysis."""
    from sklearn.decomposition import PCA, FactorAnalysis

    model = PCA(factors) if kind == "pca" else FactorAnalysis(factors, max_iter=200)
    latent = model.fit_transform(x)
    predicted = latent @ model.components_ + x.mean(0)
    return predicted, np.broadcast_to(((x - predicted) ** 2).mean(0), x.shape)


def _elephant(
    root: np.ndarray, length: int, bin_s: float, settings
) -> tuple[np.ndarray, np.ndarray]:
    """Fit Elephant's GPFA; give the predicted square roots and their variance, (T, N) each."""
    factors = min(settings["peer_factors"], root.shape[1])
    return fit_elephant(root, length, bin_s, factors, settings["peer_iterations"])


def fit_elephant(
    root: np.ndarray, length: int, bin_s: float, factors: int, iterations: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fit Elephant's GPFA to pieces of a session, and predict every entry.

    Parameters
    ----------
    root : (T, N) array
    length : int
        Bins per piece.
    bin_s : float
    factors, iterations : int

    Returns
    -------
    predicted, variance : (T, N) array
    """
    from elephant.gpfa import gpfa_core

    starts = [s for s in range(0, len(root), length) if len(root) - s >= 2]
    pieces = [root[s : s + length].T for s in starts]
    sequences = np.array(
        [(piece.shape[1], piece) for piece in pieces], dtype=[("T", int), ("y", object)]
    ).view(np.recarray)
    parameters, _ = gpfa_core.fit(
        sequences,
        x_dim=factors,
        bin_width=bin_s * 1000,
        em_tol=EM_TOLERANCE,
        em_max_iters=iterations,
        tau_init=5 * bin_s * 1000,
    )
    found, _ = gpfa_core.exact_inference_with_ll(sequences, parameters, get_ll=False)
    loadings, offset, noise = parameters["C"], parameters["d"].ravel(), parameters["R"]
    predicted = np.tile(offset, (len(root), 1))
    variance = np.tile(np.diag(noise), (len(root), 1))
    for start, sequence in zip(starts, found, strict=True):
        latent, spread = sequence["latent_variable"], sequence["Vsm"]
        stop = start + latent.shape[1]
        predicted[start:stop] = (loadings @ latent).T + offset
        variance[start:stop] += np.einsum("nd,dkt,nk->tn", loadings, spread, loadings)
    return predicted, variance


def rate_maps(
    session: dict[str, np.ndarray], values: np.ndarray, bins: int = 20, sigma: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Average values over places, divided by the time spent there.

    Parameters
    ----------
    session : dict
    values : (T, K) array
        Counts, or E[z f].
    bins : int
        Per side of the arena.
    sigma : float
        Smoothing of sums and of occupancy alike, in bins.

    Returns
    -------
    maps : (K, bins, bins) array
        NaN where the animal never was.
    occupancy : (bins, bins) array
        Seconds.
    """
    from scipy.ndimage import gaussian_filter

    xy = session["position"]
    if xy.shape[1] == 1:
        # A linear track is an arena of one row.
        xy = np.column_stack([xy, np.zeros(len(xy))])
    known = np.isfinite(xy).all(1)
    low, high = xy[known].min(0), xy[known].max(0)
    index = np.clip(((xy[known] - low) / (high - low + 1e-12) * bins).astype(int), 0, bins - 1)
    flat = np.ravel_multi_index(index.T, (bins, bins))
    visits = np.bincount(flat, minlength=bins**2).reshape(bins, bins).astype(float)
    smooth = gaussian_filter(visits, sigma)
    maps = np.full((values.shape[1], bins, bins), np.nan)
    for k in range(values.shape[1]):
        sums = np.bincount(flat, weights=values[known, k], minlength=bins**2).reshape(bins, bins)
        maps[k] = gaussian_filter(sums, sigma) / np.maximum(smooth, 1e-12)
        maps[k][visits == 0] = np.nan
    return maps, visits * session["bin_s"]


def spatial_information(maps: np.ndarray, occupancy: np.ndarray) -> np.ndarray:
    """Bits per spike that the place tells, Σ p (λ/λ̄) log2(λ/λ̄) (Skaggs et al. 1993)."""
    share = occupancy / occupancy.sum()
    rate = np.nan_to_num(maps)
    mean = (share * rate).sum((1, 2), keepdims=True)
    ratio = rate / np.maximum(mean, 1e-12)
    return (share * ratio * np.log2(np.maximum(ratio, 1e-12))).sum((1, 2))


def explained_by_place(maps: np.ndarray, occupancy: np.ndarray) -> np.ndarray:
    """Variance of a map over the time spent there, for values of variance 1 over time.

    Parameters
    ----------
    maps : (K, bins, bins) array
        Of standardised traces.
    occupancy : (bins, bins) array

    Returns
    -------
    (K,) array
        The share of a trace's variance that its place tells.
    """
    share, values = occupancy / occupancy.sum(), np.nan_to_num(maps)
    mean = (share * values).sum((1, 2), keepdims=True)
    return (share * (values - mean) ** 2).sum((1, 2))
