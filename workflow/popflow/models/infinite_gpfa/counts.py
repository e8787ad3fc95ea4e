"""Loops over (bins, units) of the Poisson model: one exponential per entry, nothing in between.

All change or fill arrays in place. Shapes: rate, y (T, N); c, offset (N,); tau, m, v (T,), or
(T, D) where all factors are meant; loadings (N, D). `limit` bounds every exponent.
"""

import numba
import numpy as np

#: Units that one thread handles together: a cache line of doubles.
BLOCK = 8
LOOSE = {"contract", "reassoc"}
#: Entries below which waking a second thread takes longer than it saves.
LEAST_PARALLEL = 500_000


def use_threads(entries: int, threads: int) -> None:
    """Let the loops use as many threads as torch may, and one for a small array."""
    allowed = threads if entries >= LEAST_PARALLEL else 1
    numba.set_num_threads(max(1, min(allowed, numba.config.NUMBA_NUM_THREADS)))


@numba.njit(parallel=True, cache=True, fastmath=LOOSE)
def expect(rate, observed, offset, log_exposure, loadings, tau, m, v, limit):
    """Fill in exposure · exp(b) Π_d (1 - τ + τ exp(C m + C² v / 2)), 0 where unobserved."""
    for t in numba.prange(len(rate)):
        for n in range(rate.shape[1]):
            if not observed[t, n]:
                rate[t, n] = 0.0
                continue
            total = np.exp(min(offset[n] + log_exposure[t], limit))
            for d in range(loadings.shape[1]):
                c = loadings[n, d]
                eta = c * m[t, d] + 0.5 * c * c * v[t, d]
                tilt = np.exp(min(max(eta, -limit), limit))
                total *= (1 - tau[t, d]) + tau[t, d] * tilt
            rate[t, n] = total


@numba.njit(parallel=True, cache=True, fastmath=LOOSE)
def take_out(rate, y, c, tau, m, v, limit, linear, rest, tilted, first, second):
    """Divide a factor out, and sum over units what acts on it.

    linear = Σ y C, rest = Σ λ, tilted = Σ λ e^η, first = Σ λ e^η C, second = Σ λ e^η C², with λ
    the expected counts without the factor.
    """
    for t in numba.prange(len(rate)):
        sums = np.zeros(5)
        for n in range(len(c)):
            eta = c[n] * m[t] + 0.5 * c[n] * c[n] * v[t]
            tilt = np.exp(min(max(eta, -limit), limit))
            alone = rate[t, n] / ((1 - tau[t]) + tau[t] * tilt)
            rate[t, n] = alone
            pull = alone * tilt
            sums[0] += y[t, n] * c[n]
            sums[1] += alone
            sums[2] += pull
            sums[3] += pull * c[n]
            sums[4] += pull * c[n] * c[n]
        linear[t], rest[t], tilted[t], first[t], second[t] = sums


@numba.njit(parallel=True, cache=True, fastmath=LOOSE)
def tilt_sums(rate, c, m, v, limit, tilted):
    """Σ λ e^η over units, for other moments of a factor that is taken out."""
    for t in numba.prange(len(rate)):
        total = 0.0
        for n in range(len(c)):
            eta = c[n] * m[t] + 0.5 * c[n] * c[n] * v[t]
            total += rate[t, n] * np.exp(min(max(eta, -limit), limit))
        tilted[t] = total


@numba.njit(parallel=True, cache=True, fastmath=LOOSE)
def put_back(rate, c, tau, m, v, limit):
    """Multiply a factor in again."""
    for t in numba.prange(len(rate)):
        for n in range(len(c)):
            eta = c[n] * m[t] + 0.5 * c[n] * c[n] * v[t]
            tilt = np.exp(min(max(eta, -limit), limit))
            rate[t, n] *= (1 - tau[t]) + tau[t] * tilt


@numba.njit(parallel=True, cache=True, fastmath=LOOSE)
def newton(rate, y, loadings, tau, m, v, limit, gradient, hessian):
    """Gradient (N, D+1) and lower half of the negative Hessian (N, D+1, D+1) in (C_n, b_n)."""
    bins, units = rate.shape
    d = loadings.shape[1]
    for block in numba.prange((units + BLOCK - 1) // BLOCK):
        slope = np.zeros(d)
        for t in range(bins):
            for n in range(block * BLOCK, min((block + 1) * BLOCK, units)):
                counts = rate[t, n]
                gradient[n, d] += y[t, n] - counts
                hessian[n, d, d] += counts
                for i in range(d):
                    c, on = loadings[n, i], tau[t, i]
                    eta = c * m[t, i] + 0.5 * c * c * v[t, i]
                    tilt = on * np.exp(min(max(eta, -limit), limit))
                    share = tilt / ((1 - on) + tilt)
                    shifted = m[t, i] + c * v[t, i]
                    slope[i] = share * shifted
                    gradient[n, i] += y[t, n] * on * m[t, i] - counts * slope[i]
                    hessian[n, d, i] += counts * slope[i]
                    extra = slope[i] * shifted + share * v[t, i] - slope[i] * slope[i]
                    hessian[n, i, i] += counts * extra
                    for k in range(i + 1):
                        hessian[n, i, k] += counts * slope[i] * slope[k]
