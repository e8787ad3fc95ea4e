"""How much two dimensions share, computed block by block; only the strongest pairs are kept."""

import logging

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.stats import rankdata

from popflow.runtime.seeds import generator

log = logging.getLogger(__name__)

#: Largest squared correlation, so that the mutual information of copies stays finite.
LARGEST_R2 = 1 - 1e-4
LARGEST_BIAS = 0.05


class Affinity:
    """The affinity between all dimensions of a matrix, one block of pairs at a time.

    Parameters
    ----------
    x : (N, n) float array
        Samples times dimensions, without constant dimensions.
    estimator : {"mi_gauss", "mi_hist", "mi_zero", "abs_corr"}
        ``mi_gauss`` is -½ log(1 - r²) in nats, the mutual information under a Gaussian copula;
        ``abs_corr`` is |r|; ``mi_hist`` is the plug-in mutual information of quantile bins less its
        bias (b-1)²/(2N) (Miller & Madow); ``mi_zero`` is that of detection, being above the
        smallest value of the column.
    correlation : {"pearson", "spearman"}
    bins : int
        Of ``mi_hist``.
    """

    def __init__(self, x: np.ndarray, estimator: str, correlation: str, bins: int):
        self.estimator, self.rows, self.size = estimator, x.shape[0], x.shape[1]
        self.bins = 2 if estimator == "mi_zero" else bins
        if estimator in ("mi_gauss", "abs_corr"):
            values = rankdata(x, axis=0) if correlation == "spearman" else np.asarray(x, float)
            values = values - values.mean(0)
            self._x = (values / np.linalg.norm(values, axis=0)).astype(np.float32)
        elif estimator == "mi_zero":
            # Absence is the smallest value of a column: scaling has moved it away from zero.
            self._codes = (np.asarray(x) > np.min(x, axis=0)).astype(np.int8)
        else:
            self._codes = _quantile_codes(x, bins)
            bias = (bins - 1) ** 2 / (2 * self.rows)
            if bias > LARGEST_BIAS:
                log.warning(
                    "mi_hist: %d bins on %d samples bias the mutual information by %.2f nats; "
                    "use fewer bins or mi_gauss",
                    bins,
                    self.rows,
                    bias,
                )

    def block(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Give the affinity between two lists of dimensions, (len(left), len(right)) float32."""
        if self.estimator in ("mi_gauss", "abs_corr"):
            r = self._x[:, left].T @ self._x[:, right]
            if self.estimator == "abs_corr":
                return np.abs(r)
            return -0.5 * np.log1p(-np.minimum(r * r, np.float32(LARGEST_R2)))
        return self._plug_in(left, right)

    def _plug_in(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Sum p log(p / (p_i p_j)) over the cells of all joint histograms, one product per cell."""
        total = np.zeros((len(left), len(right)), np.float32)
        for a in range(self.bins):
            one = (self._codes[:, left] == a).astype(np.float32)
            for b in range(self.bins):
                other = (self._codes[:, right] == b).astype(np.float32)
                joint = one.T @ other / self.rows
                expected = np.outer(one.mean(0), other.mean(0))
                ratio = np.divide(joint, expected, out=np.ones_like(joint), where=joint > 0)
                total += joint * np.log(ratio)
        return np.maximum(total - np.float32((self.bins - 1) ** 2 / (2 * self.rows)), 0)


def _quantile_codes(x: np.ndarray, bins: int) -> np.ndarray:
    """Code each column by quantile bins, ties kept together."""
    ranks = rankdata(x, axis=0, method="average")
    return np.minimum((ranks - 0.5) / len(x) * bins, bins - 1).astype(np.int8)


def sample_rows(rows: int, most: int, seed: int) -> np.ndarray:
    """Draw the rows on which affinities are estimated; all of them when there are few."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(generator(seed, "affinity rows").choice(rows, most, replace=False))


def neighbour_graph(affinity: Affinity, neighbours: int, block: int) -> sp.csr_matrix:
    """Keep each dimension's strongest affinities and symmetrise by the larger of the two.

    Parameters
    ----------
    affinity : Affinity
    neighbours : int
        Kept per dimension, itself excluded.
    block : int
        Dimensions per block: memory is O(block² + n · neighbours), never n².

    Returns
    -------
    (n, n) sparse float64, symmetric, non-negative, empty diagonal
        Ties are resolved by the lower index.
    """
    n = affinity.size
    neighbours = min(neighbours, n - 1)
    blocks = [np.arange(start, min(start + block, n)) for start in range(0, n, block)]
    columns, weights = [], []
    for left in blocks:
        best_w = np.full((len(left), 0), -1.0, np.float32)
        best_c = np.zeros((len(left), 0), np.int64)
        for right in blocks:
            w = affinity.block(left, right)
            w[left[:, None] == right[None, :]] = -1.0
            best_w = np.hstack([best_w, w])
            best_c = np.hstack([best_c, np.broadcast_to(right, w.shape)])
            best_w, best_c = _strongest(best_w, best_c, neighbours)
        columns.append(best_c)
        weights.append(best_w)
    c, w = np.vstack(columns), np.vstack(weights).astype(float)
    rows = np.repeat(np.arange(n), c.shape[1])
    graph = sp.csr_matrix((np.maximum(w, 0).ravel(), (rows, c.ravel())), shape=(n, n))
    graph = graph.maximum(graph.T).tocsr()
    graph.eliminate_zeros()
    return graph


def _strongest(w: np.ndarray, c: np.ndarray, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """Keep the largest entries of each row; of equal ones those with the lower column."""
    if w.shape[1] <= keep:
        return w, c
    # Columns grow from left to right, so a stable sort keeps the lower index of equal weights.
    order = np.argsort(-w, axis=1, kind="stable")[:, :keep]
    order.sort(axis=1)
    return np.take_along_axis(w, order, 1), np.take_along_axis(c, order, 1)


def connect(graph: sp.csr_matrix, affinity: Affinity, block: int) -> tuple[sp.csr_matrix, int]:
    """Join the components of a graph by their strongest edges outwards.

    With several components the smallest eigenvalue is repeated and the spectral embedding is
    arbitrary; one weak edge per component makes it well defined.

    Returns
    -------
    graph : (n, n) sparse
        Connected.
    components : int
        Number of components before.
    """
    before, labels = connected_components(graph, directed=False)
    components = before
    graph = graph.tolil()
    while components > 1:
        sizes = np.bincount(labels)
        for component in np.argsort(sizes, kind="stable")[:-1]:
            i, j, weight = _edge_out(affinity, np.flatnonzero(labels == component), block)
            weight = max(weight, 1e-6)
            graph[i, j] = graph[j, i] = weight
        components, labels = connected_components(graph.tocsr(), directed=False)
    return graph.tocsr(), before


def _edge_out(affinity: Affinity, inside: np.ndarray, block: int) -> tuple[int, int, float]:
    """Find the strongest affinity between a set of dimensions and all others."""
    outside = np.setdiff1d(np.arange(affinity.size), inside)
    best = (int(inside[0]), int(outside[0]), -1.0)
    for start in range(0, len(inside), block):
        left = inside[start : start + block]
        for place in range(0, len(outside), block):
            right = outside[place : place + block]
            w = affinity.block(left, right)
            i, j = np.unravel_index(int(np.argmax(w)), w.shape)
            if w[i, j] > best[2]:
                best = (int(left[i]), int(right[j]), float(w[i, j]))
    return best
