"""Infinite GPFA in the habits of scikit-learn: from arrays of counts, without Snakemake."""

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from popflow.inputs.config import preset as read_preset
from popflow.inputs.settings import resolve
from popflow.models.infinite_gpfa.engines import ENGINES
from popflow.models.infinite_gpfa.inference import Ascent, State
from popflow.models.infinite_gpfa.likelihoods import LIKELIHOODS
from popflow.models.infinite_gpfa.masks import MaskPosterior
from popflow.runtime.artefacts import load_model, save_model
from popflow.runtime.checkpoints import Checkpoints
from popflow.runtime.progress import Progress
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import torch_generator

log = logging.getLogger(__name__)

FEW_COUNTS = 2.0
ENERGY_SHARE, LEAST_MASK = 0.05, 0.01
PATIENCE = 5


class InfiniteGPFA:
    """Gaussian-process factor analysis whose factors are switched on and off in time.

    h_nt = b_n + Σ_d C_nd z_dt f_d(t), with f_d ~ GP(0, k_d), z_dt ~ Bernoulli(π_d) and
    π_d ~ Beta(α/D, 1), the finite form of an Indian buffet process
    (Yu, Sahani & Lengyel, ICLR 2025).

    Parameters
    ----------
    n_factors : int, optional
        Truncation D: the most factors the fit may use.
    likelihood : {"poisson", "gaussian"}, optional
    kernel : {"rbf", "matern12", "matern32", "matern52"}, optional
    engine : {"sparse", "dense"}, optional
        ``dense`` is the exact oracle for few bins.
    masks : bool, optional
        False gives variational GPFA without masks, from the same code.
    seed : int
    preset, variant : str
        In config/presets/infinite_gpfa.yaml; the arguments above override it.
    settings : dict, optional
        A complete preset, instead.

    Attributes
    ----------
    elbo_trace_ : list of dict
        Per iteration the bound and every component, in nats.
    loadings_ : (N, D) array
    offset_ : (N,) array
    mask_probability_ : (T, D) array
        q(z = 1).
    gated_mean_ : (T, D) array
        E[z f], the quantity to plot and compare.
    lengthscales_ : (D,) array, seconds
    n_effective_ : int
        Factors with over 5 % of the energy and a mean mask over 1 %.
    restart_elbos_ : list of float

    Examples
    --------
    >>> import numpy as np
    >>> from popflow.models.infinite_gpfa import InfiniteGPFA
    >>> counts = np.random.default_rng(0).poisson(2.0, size=(80, 6))
    >>> model = InfiniteGPFA(n_factors=2, seed=0).fit(counts, bin_width=0.1)
    >>> model.gated_mean_.shape
    (80, 2)
    """

    def __init__(
        self,
        n_factors: int | None = None,
        likelihood: str | None = None,
        kernel: str | None = None,
        engine: str | None = None,
        masks: bool | None = None,
        seed: int = 0,
        preset: str = "small",
        variant: str = "default",
        settings: dict[str, Any] | None = None,
    ):
        self.settings = dict(settings or read_preset("infinite_gpfa", preset, variant))
        given = {
            "n_factors": n_factors,
            "likelihood": likelihood,
            "kernel": kernel,
            "engine": engine,
            "masks": masks,
        }
        self.settings |= {key: value for key, value in given.items() if value is not None}
        self.settings = resolve("preset-infinite_gpfa", self.settings, "settings of InfiniteGPFA")
        if self.settings["likelihood"] == "auto":
            self.settings["likelihood"] = "poisson"
        self.seed = seed

    def fit(
        self,
        counts: np.ndarray | list[np.ndarray],
        bin_width: float,
        observed: np.ndarray | list[np.ndarray] | None = None,
        exposure: np.ndarray | list[np.ndarray] | None = None,
        times: list[np.ndarray] | None = None,
        checkpoints: str | Path | None = None,
        title: str = "infinite GPFA",
    ) -> "InfiniteGPFA":
        """Fit to counts.

        Parameters
        ----------
        counts : (T, N) array, or list of them
            Trials are independent and may differ in length.
        bin_width : float
            Seconds.
        observed : like counts, optional
            1 where an entry is used, 0 where it is held out.
        exposure : (T,) array or list, optional
            Share of each bin that was recorded; 1 when absent.
        times : list of (T_r,) arrays, optional
            Bin centres of each trial in seconds, for bins that are not contiguous.
        checkpoints : path, optional
            An interrupted fit goes on from here, to the same numbers.

        Raises
        ------
        Refusal
            For counts that cannot be fitted (negative, NaN, fractions under Poisson, no units).
        """
        torch.manual_seed(self.seed)
        ascent, self._lengths = self._prepare(counts, bin_width, observed, exposure, times)
        best, elbos = None, []
        for restart in range(self.settings["restarts"]):
            folder = Path(checkpoints) / f"restart-{restart}" if checkpoints else None
            seed = self.seed * 1000 + restart
            state, noise = self._climb(ascent, seed, folder, f"{title}, start {restart + 1}")
            elbos.append(state.trace[-1]["elbo"])
            if best is None or elbos[-1] > best[0].trace[-1]["elbo"]:
                best = (state, noise)
        if checkpoints:
            for restart in range(self.settings["restarts"]):
                Checkpoints(Path(checkpoints) / f"restart-{restart}").clear()
        self.bin_width, self.restart_elbos_ = bin_width, elbos
        self._noise = best[1]
        self._publish(best[0])
        return self

    def _prepare(self, counts, bin_width, observed, exposure, times):
        """Check the arrays, lay trials one after the other, and build engine and likelihood."""
        trials = [np.asarray(c) for c in (counts if isinstance(counts, list) else [counts])]
        seen = observed if isinstance(observed, list) else [observed] * len(trials)
        share = exposure if isinstance(exposure, list) else [exposure] * len(trials)
        seen = [
            np.ones(c.shape) if o is None else np.asarray(o)
            for c, o in zip(trials, seen, strict=True)
        ]
        share = [
            np.ones(len(c)) if e is None else np.asarray(e)
            for c, e in zip(trials, share, strict=True)
        ]
        _check(trials, seen, self.settings["likelihood"], bin_width)
        y = np.concatenate(trials).astype(float)
        used = np.concatenate(seen).astype(float)
        used[~np.isfinite(y)] = 0.0
        y = np.where(used > 0, y, 0.0)
        recorded = np.concatenate(share).astype(float) * bin_width
        used[recorded <= 0] = 0.0
        if times is None:
            times = [np.arange(len(c)) * bin_width for c in trials]
        s = self.settings
        grid = [torch.from_numpy(np.asarray(t, float)) for t in times]
        engine = ENGINES[s["engine"]](grid, s["kernel"], s["inducing"])
        likelihood = LIKELIHOODS[s["likelihood"]](
            torch.from_numpy(y),
            torch.from_numpy(used),
            torch.from_numpy(np.maximum(recorded, 1e-12)),
            s["chunk"],
        )
        if s["likelihood"] == "gaussian" and _looks_like_counts(y) and y.mean() < FEW_COUNTS:
            log.warning("counts of mean %.2f under a Gaussian model: use poisson", y.mean())
        return Ascent(engine, likelihood, s, bin_width), [len(c) for c in trials]

    def _climb(self, ascent: Ascent, seed: int, folder: Path | None, title: str):
        """Iterate to convergence from one start; go on from a checkpoint when there is one."""
        s = self.settings
        state = ascent.start(seed)
        store = Checkpoints(folder) if folder else None
        with store.lock() if store else nullcontext():
            if store and (saved := store.latest()):
                _restore(state, ascent, saved)
            progress = Progress(title, s["iterations"], len(state.trace))
            while len(state.trace) < s["iterations"] and not self._converged(state.trace):
                elbo = ascent.iterate(state, len(state.trace))
                progress.update(elbo=elbo)
                if store and len(state.trace) % s["checkpoint_every"] == 0:
                    store.save(len(state.trace), _saved(state, ascent))
            if store:
                store.save(len(state.trace), _saved(state, ascent))
            progress.close()
        noise = getattr(ascent.likelihood, "noise", torch.zeros(0)).clone()
        return state, noise

    def _converged(self, trace: list[dict[str, float]]) -> bool:
        """Tell whether the bound gained less than the tolerance for five iterations."""
        if len(trace) <= PATIENCE + self.settings["burn_in"]:
            return False
        last = [row["elbo"] for row in trace[-PATIENCE - 1 :]]
        return all(
            b - a < self.settings["tolerance"] * abs(a)
            for a, b in zip(last, last[1:], strict=False)
        )

    def _publish(self, state: State) -> None:
        """Bring the factors into canonical form: by energy, the largest loading positive."""
        energy = state.loadings.norm(dim=0) * (state.tau * (state.m**2 + state.v)).mean(1).sqrt()
        order = torch.argsort(-energy, stable=True)
        sign = torch.sign(state.loadings[state.loadings.abs().argmax(0), torch.arange(len(energy))])
        sign = torch.where(sign == 0, torch.ones_like(sign), sign)[order]
        self.loadings_ = (state.loadings[:, order] * sign).numpy()
        self.offset_ = state.offset.numpy().copy()
        self.factor_mean_ = (state.m[order] * sign[:, None]).T.numpy().copy()
        self.factor_variance_ = state.v[order].T.numpy().copy()
        self.mask_probability_ = state.tau[order].T.numpy().copy()
        self.gated_mean_ = self.mask_probability_ * self.factor_mean_
        self.lengthscales_ = state.lengthscales[order].numpy().copy()
        share = energy[order] ** 2 / (energy**2).sum().clamp(min=1e-300)
        self.energy_share_ = share.numpy().copy()
        masks = state.masks
        self.activation_ = (masks.a / (masks.a + masks.b))[order].numpy().copy()
        self.alpha_ = masks.mean_alpha
        used = (self.energy_share_ > ENERGY_SHARE) & (self.mask_probability_.mean(0) > LEAST_MASK)
        self.n_effective_ = int(used.sum())
        self.elbo_trace_ = state.trace

    def sample(self, draws: int, rows: np.ndarray | None = None, seed: int = 0) -> np.ndarray:
        """Draw h = b + C (z f) from the posterior's marginals at bins.

        Parameters
        ----------
        draws : int
        rows : (K,) int array, optional
            Bins (trials one after the other); all of them when absent.

        Returns
        -------
        (draws, K, N) array
        """
        rows = np.arange(len(self.mask_probability_)) if rows is None else np.asarray(rows)
        draw = torch_generator(self.seed, "sample", seed)
        shape = (draws, len(rows), self.loadings_.shape[1])
        mean, variance = self.factor_mean_[rows], self.factor_variance_[rows]
        f = (
            mean
            + np.sqrt(variance) * torch.randn(shape, generator=draw, dtype=torch.float64).numpy()
        )
        uniform = torch.rand(shape, generator=draw, dtype=torch.float64).numpy()
        z = uniform < self.mask_probability_[rows]
        return (z * f) @ self.loadings_.T + self.offset_

    def log_predictive(
        self,
        counts: np.ndarray,
        entries: np.ndarray,
        exposure: np.ndarray | None = None,
        draws: int = 256,
        chunk: int = 512,
    ) -> np.ndarray:
        """Give log mean_s p(y | h_s) of chosen entries, over samples of masks and factors.

        Parameters
        ----------
        counts : (T, N) array
            Of the fitted bins.
        entries : (T, N) bool array
            The held-out ones.
        exposure : (T,) array, optional
            Share of each bin that was recorded.

        Returns
        -------
        (number of entries,) array, nats
        """
        y, entries = np.asarray(counts, float), np.asarray(entries, bool)
        shape = (len(self.mask_probability_), len(self.loadings_))
        if y.shape != shape or entries.shape != shape:
            found = f"counts of shape {y.shape}, entries of {entries.shape}"
            raise Refusal("counts", found, f"{shape}, those of the fit", "give the fitted bins")
        share = np.ones(len(y)) if exposure is None else np.asarray(exposure, float)
        density = self._density()
        found = np.empty(entries.sum())
        rows, place = np.flatnonzero(entries.any(1)), 0
        for start in range(0, len(rows), chunk):
            part = rows[start : start + chunk]
            h = torch.from_numpy(self.sample(draws, part, seed=start))
            seconds = torch.from_numpy(np.maximum(share[part] * self.bin_width, 1e-12))[:, None]
            terms = density(torch.from_numpy(y[part]), h, seconds)
            value = torch.logsumexp(terms, 0) - np.log(draws)
            picked = value.numpy()[entries[part]]
            found[place : place + len(picked)] = picked
            place += len(picked)
        return found

    def _density(self):
        likelihood = LIKELIHOODS[self.settings["likelihood"]]
        holder = likelihood.__new__(likelihood)
        holder.noise = self._noise
        return holder.log_density

    def score(self, counts, entries, exposure=None, draws: int = 256) -> float:
        """Give the held-out log-likelihood per entry, in nats (see `log_predictive`)."""
        return float(self.log_predictive(counts, entries, exposure, draws).mean())

    def bits_per_spike(self, counts, entries, mean_rate, exposure=None, draws: int = 256) -> float:
        """Give (LL of the model - LL of the mean rate) / (spikes · ln 2) on held-out entries.

        Parameters
        ----------
        mean_rate : (N,) array
            Spikes per second of each unit, from fitted entries only.
        """
        model = self.log_predictive(counts, entries, exposure, draws).sum()
        return float(
            (model - _constant_rate(counts, entries, mean_rate, self.bin_width, exposure))
            / (np.asarray(counts)[np.asarray(entries, bool)].sum() * np.log(2))
        )

    def history(self) -> pd.DataFrame:
        """Give the bound and its components per iteration."""
        frame = pd.DataFrame(self.elbo_trace_)
        frame.insert(0, "iteration", np.arange(1, len(frame) + 1))
        return frame

    def save(self, folder: str | Path, **description: Any) -> None:
        """Write parameters and posterior, without pickle."""
        arrays = {name: getattr(self, f"{name}_") for name in ARRAYS}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
        tensors["noise"] = self._noise
        described = {
            "model": "infinite_gpfa",
            "settings": self.settings,
            "seed": self.seed,
            "bin_width": self.bin_width,
            "alpha": self.alpha_,
            "n_effective": self.n_effective_,
            "restart_elbos": self.restart_elbos_,
            "trial_lengths": self._lengths,
            "elbo_trace": self.elbo_trace_,
        }
        save_model(folder, tensors, described | description)

    @classmethod
    def load(cls, folder: str | Path) -> "InfiniteGPFA":
        """Read what `save` wrote."""
        tensors, described = load_model(folder)
        model = cls(settings=described["settings"], seed=described["seed"])
        for name in ARRAYS:
            setattr(model, f"{name}_", tensors[name].numpy())
        model._noise, model._lengths = tensors["noise"], described["trial_lengths"]
        model.bin_width, model.alpha_ = described["bin_width"], described["alpha"]
        model.n_effective_ = described["n_effective"]
        model.restart_elbos_ = described["restart_elbos"]
        model.elbo_trace_ = described["elbo_trace"]
        return model


ARRAYS = (
    "loadings",
    "offset",
    "factor_mean",
    "factor_variance",
    "mask_probability",
    "gated_mean",
    "lengthscales",
    "energy_share",
    "activation",
)


def _constant_rate(counts, entries, mean_rate, bin_width, exposure) -> float:
    """Log-likelihood of held-out entries under each unit's mean rate."""
    from scipy.stats import poisson

    share = np.ones(len(counts)) if exposure is None else np.asarray(exposure, float)
    expected = np.maximum(share[:, None] * bin_width * np.asarray(mean_rate), 1e-12)
    return float(poisson.logpmf(counts, expected)[np.asarray(entries, bool)].sum())


def _looks_like_counts(y: np.ndarray) -> bool:
    return bool((y >= 0).all() and np.array_equal(y, np.round(y)))


def _check(trials, seen, likelihood: str, bin_width: float) -> None:
    """Refuse arrays that cannot be fitted."""
    where = "counts"
    for number, (y, used) in enumerate(zip(trials, seen, strict=True)):
        place = f"{where}, trial {number}"
        if y.ndim != 2 or 0 in y.shape:
            found = f"an array of shape {y.shape}"
            raise Refusal(place, found, "(bins, units), none of them zero", "check the binning")
        if used.shape != y.shape:
            found = f"observed has shape {used.shape}, counts {y.shape}"
            raise Refusal(place, found, "equal shapes", "give one flag per entry")
        values = y[used > 0]
        if values.size == 0:
            raise Refusal(place, "no observed entry", "some observed entries", "check the mask")
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).sum())
            fix = "mark them in observed, or drop them"
            raise Refusal(place, f"{bad} observed entries are NaN or infinite", "numbers", fix)
        if likelihood == "poisson" and not _looks_like_counts(values):
            fix = "give spike counts, or use likelihood='gaussian'"
            raise Refusal(place, "negative or fractional values", "whole counts", fix)
    if not bin_width > 0:
        raise Refusal("bin_width", f"found {bin_width}", "seconds, more than 0", "give the bin")


def _saved(state: State, ascent: Ascent) -> dict[str, Any]:
    """Give what a checkpoint holds."""
    names = ("loadings", "offset", "tau", "m", "v", "w", "linear", "kl", "lengthscales")
    masks = state.masks
    return {name: getattr(state, name) for name in names} | {
        "a": masks.a,
        "b": masks.b,
        "h": [masks.h1, masks.h2],
        "trace": state.trace,
        "noise": getattr(ascent.likelihood, "noise", torch.zeros(0)),
    }


def _restore(state: State, ascent: Ascent, saved: dict[str, Any]) -> None:
    for name in ("loadings", "offset", "tau", "m", "v", "w", "linear", "kl", "lengthscales"):
        setattr(state, name, saved[name])
    masks: MaskPosterior = state.masks
    masks.a, masks.b = saved["a"], saved["b"]
    masks.h1, masks.h2 = saved["h"]
    state.trace = saved["trace"]
    if hasattr(ascent.likelihood, "noise"):
        ascent.likelihood.noise = saved["noise"]
