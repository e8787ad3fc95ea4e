"""Cut the graph of dimensions into clusters by density-adjusted spectral clustering.

Yun et al. 2025: minimise tr(Y P^½ L P^½ Yᵀ) subject to Y Yᵀ = I, with p(i) = q(i)^α n(i)^-β.
"""

import logging
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh

from popflow.models.urlost.affinity import Affinity, connect, neighbour_graph, sample_rows
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator

log = logging.getLogger(__name__)

DENSE_LIMIT = 4000
LARGEST_RESIDUAL = 1e-4


@dataclass
class Clusters:
    """Clusters of dimensions and how they came about.

    Attributes
    ----------
    labels : (n,) int array
        Cluster of each dimension, 0 … M-1, in order of first appearance.
    graph : (n, n) sparse array
        The weighted neighbour graph that was cut.
    eigenvalues : (M + 1,) float array
        The smallest eigenvalues of the adjusted Laplacian.
    diagnostics : dict
        components, normalised_cut, eigengap, sizes, padding_waste, residual.
    """

    labels: np.ndarray
    graph: sp.csr_matrix
    eigenvalues: np.ndarray
    diagnostics: dict[str, Any] = field(default_factory=dict)


def cluster_dimensions(
    x: np.ndarray,
    n_clusters: int | None = 32,
    affinity: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    q: np.ndarray | None = None,
) -> Clusters:
    """Cluster the dimensions of a matrix.

    Parameters
    ----------
    x : (N, n) float array
        Training samples times dimensions; constant dimensions must be left out before.
    n_clusters : int or None
        None takes n/16, within 16 and 256.
    affinity, options : dict, optional
        The blocks `affinity` and `clusters` of the preset (defaults where absent).
    q : (n,) float array, optional
        Prior density of each dimension, used with α ≠ 0.

    Raises
    ------
    Refusal
        For fewer dimensions than clusters, constant or non-finite dimensions.

    Examples
    --------
    >>> import numpy as np
    >>> from popflow.models.urlost import cluster_dimensions
    >>> draw = np.random.default_rng(0)
    >>> x = np.repeat(draw.normal(size=(200, 4)), 6, axis=1) + 0.5 * draw.normal(size=(200, 24))
    >>> cluster_dimensions(x, 4).diagnostics["sizes"]
    [6, 6, 6, 6]
    """
    from popflow.inputs.settings import resolve

    given = {"affinity": affinity or {}, "clusters": dict(options or {}, number=n_clusters)}
    settings = resolve("preset-urlost", given, "cluster_dimensions")
    a, c = settings["affinity"], settings["clusters"]
    x = np.asarray(x.toarray() if hasattr(x, "toarray") else x)
    if x.ndim != 2 or not np.issubdtype(x.dtype, np.number):
        found = f"an array of shape {x.shape} and type {x.dtype}"
        raise Refusal("data", found, "numbers, (samples, dimensions)", "give a table of numbers")
    count = c["number"] or int(np.clip(x.shape[1] // 16, 16, 256))
    _check(x, count)
    rows = sample_rows(len(x), a["max_rows"], c["seed"])
    estimate = Affinity(x[rows], a["estimator"], a["correlation"], a["bins"])
    graph = neighbour_graph(estimate, a["neighbours"], a["block"])
    graph, components = connect(graph, estimate, a["block"])
    result = spectral_clusters(graph, count, c, q)
    result.diagnostics["components"] = components
    if c["assignment"] == "random":
        result.labels = generator(c["seed"], "mae_rand").permutation(result.labels)
    return result


def _check(x: np.ndarray, count: int) -> None:
    """Refuse what cannot be clustered."""
    where = f"clusters of {x.shape[1]} dimensions"
    if x.shape[1] <= count:
        fix = "lower clusters.number in the preset"
        raise Refusal(where, f"{count} clusters asked for", f"at most {x.shape[1] - 1}", fix)
    if len(x) < 3:
        raise Refusal(where, f"{len(x)} samples", "three or more", "give more samples")
    if not np.isfinite(x).all():
        bad = int((~np.isfinite(x)).any(0).sum())
        fix = "impute or drop them before"
        raise Refusal(where, f"{bad} dimensions hold NaN or infinity", "finite values", fix)
    constant = np.flatnonzero(np.ptp(x, axis=0) == 0)
    if len(constant):
        found = f"{len(constant)} constant dimensions (the first: column {constant[0]})"
        raise Refusal(where, found, "dimensions that vary", "drop them before")


def spectral_clusters(
    graph: sp.csr_matrix, count: int, options: dict[str, Any], q: np.ndarray | None = None
) -> Clusters:
    """Cut a connected graph into clusters (Yun et al. 2025, section on density adjustment).

    With degree g = W1 and s(i) = q(i)^(α/2) g(i)^(-β/2), the adjusted Laplacian is
    diag(s) (diag(g) - W) diag(s); α = 0 and β = 1 give the normalised cut. Its first eigenvectors,
    scaled by s, are discretised.

    Parameters
    ----------
    graph : (n, n) sparse, symmetric, connected
    count : int
        Number of clusters M; fewer come out when the discretiser leaves some empty.
    options : dict
        The block `clusters` of the preset, complete.
    """
    degree = np.asarray(graph.sum(1)).ravel()
    prior = np.ones(graph.shape[0]) if q is None else np.asarray(q, float)
    scale = prior ** (options["alpha"] / 2) * degree ** (-options["beta"] / 2)
    laplacian = sp.diags(scale) @ (sp.diags(degree) - graph) @ sp.diags(scale)
    values, vectors, residual = _smallest(laplacian.tocsr(), count + 1)
    used = vectors[:, 1 : count + 1] if options["drop_first"] else vectors[:, :count]
    embedding = scale[:, None] * used
    labels = _discretise(embedding, graph, degree, options)
    sizes = np.bincount(labels)
    diagnostics = {
        "normalised_cut": normalised_cut(graph, labels),
        "eigengap": float(values[count] - values[count - 1]),
        "residual": residual,
        "sizes": sizes.tolist(),
        "padding_waste": float(1 - len(labels) / (len(sizes) * sizes.max())),
    }
    return Clusters(labels, graph, values, diagnostics)


def _smallest(matrix: sp.csr_matrix, count: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Find the smallest eigenpairs, with signs fixed and residuals checked."""
    n = matrix.shape[0]
    count = min(count, n)
    if n <= DENSE_LIMIT:
        values, vectors = np.linalg.eigh(matrix.toarray())
        values, vectors = values[:count], vectors[:, :count]
    else:
        # Lanczos is fast at the large end of a spectrum, so the matrix is mirrored at its bound.
        bound = float(abs(matrix).sum(1).max())
        mirrored = bound * sp.identity(n) - matrix
        start = generator(0, "lanczos").normal(size=n)
        width = min(n - 1, max(2 * count + 20, int(2.5 * count)))
        values, vectors = eigsh(mirrored, count, which="LA", v0=start, ncv=width, tol=1e-6)
        order = np.argsort(-values, kind="stable")
        values, vectors = bound - values[order], vectors[:, order]
    residual = float(np.abs(matrix @ vectors - vectors * values).max())
    if residual > LARGEST_RESIDUAL * max(1.0, float(abs(matrix).max())):
        log.warning("eigenvectors are off by up to %.1e; clusters may be poor", residual)
    largest = np.abs(vectors).argmax(0)
    vectors = vectors * np.sign(vectors[largest, np.arange(vectors.shape[1])])
    return values, vectors, residual


def _discretise(
    embedding: np.ndarray, graph: sp.csr_matrix, degree: np.ndarray, options: dict[str, Any]
) -> np.ndarray:
    """Turn the embedding into labels; of several restarts keep the lowest normalised cut."""
    norms = np.linalg.norm(embedding, axis=1)
    embedding[norms == 0] = 1e-12
    best, lowest = None, np.inf
    for restart in range(options["restarts"]):
        labels = _first_appearance(_one_discretisation(embedding, options, restart))
        cut = normalised_cut(graph, labels)
        if cut < lowest:
            best, lowest = labels, cut
        if options["discretiser"] == "cluster_qr":
            break
    return best


def _one_discretisation(embedding: np.ndarray, options: dict[str, Any], restart: int) -> np.ndarray:
    """Run the chosen discretiser once; Yu & Shi's falls back on a pivoted QR when it fails."""
    from sklearn.cluster import KMeans
    from sklearn.cluster._spectral import cluster_qr, discretize

    seed = options["seed"] + restart
    if options["discretiser"] == "yu_shi":
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                return discretize(embedding, random_state=seed)
        except (np.linalg.LinAlgError, RuntimeWarning) as error:
            log.warning("Yu-Shi discretisation failed (%s); pivoted QR instead", error)
            return cluster_qr(embedding)
    if options["discretiser"] == "cluster_qr":
        return cluster_qr(embedding)
    rows = embedding / np.linalg.norm(embedding, axis=1, keepdims=True)
    return KMeans(embedding.shape[1], n_init=1, random_state=seed).fit_predict(rows)


def _first_appearance(labels: np.ndarray) -> np.ndarray:
    """Number clusters in the order in which dimensions meet them, without empty ones."""
    _, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), int)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[codes]


def normalised_cut(graph: sp.csr_matrix, labels: np.ndarray) -> float:
    """Sum over clusters of the weight that leaves a cluster over the weight that touches it."""
    member = sp.csr_matrix((np.ones(len(labels)), (np.arange(len(labels)), labels)))
    inside = (member.T @ graph @ member).diagonal()
    touching = np.asarray(member.T @ graph.sum(1)).ravel()
    return float(np.sum(1 - inside / np.maximum(touching, 1e-300)))
