"""Infinite GPFA in the habits of scikit-learn: from arrays of counts, without Snakemake."""

import logging
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from popflow.inputs.config import preset as read_preset
from popflow.inputs.settings import resolve
from popflow.models.infinite_gpfa.checks import check, looks_like_counts
from popflow.models.infinite_gpfa.engines import choose_engine, make_engine
from popflow.models.infinite_gpfa.inference import Ascent, State
from popflow.models.infinite_gpfa.likelihoods import Bernoulli, Gaussian, NegativeBinomial
from popflow.models.infinite_gpfa.moves import improve
from popflow.models.infinite_gpfa.poisson import LognormalPoisson, MomentPoisson, Poisson
from popflow.runtime.artefacts import load_model, save_model
from popflow.runtime.checkpoints import Checkpoints
from popflow.runtime.progress import Progress
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import torch_generator
from popflow.runtime.training import terminate_gently

log = logging.getLogger(__name__)

FEW_COUNTS = 2.0
LARGEST_LOG_HZ = 6.9
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
    likelihood : {"poisson", "negative_binomial", "bernoulli", "gaussian"}, optional
    kernel : str, optional
        ``rbf``, ``matern12``, ``matern32``, ``matern52``, ``periodic``, or several joined by +.
    engine : {"auto", "sparse", "dense", "statespace"}, optional
        ``dense`` is exact for few bins, ``statespace`` exact and linear in time for one Matérn
        kernel; ``auto`` chooses.
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
    parameters_ : dict of str to (N,) array
        Noise variances (gaussian) or sizes (negative binomial).
    excluded_ : (N,) bool array
        Units without any change in the observed entries; their loadings are 0.

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
            found = self._climb(ascent, restart, folder, f"{title}, start {restart + 1}")
            elbos.append(found[0].trace[-1]["elbo"])
            if best is None or elbos[-1] > best[0].trace[-1]["elbo"]:
                best = found
        if checkpoints:
            for restart in range(self.settings["restarts"]):
                Checkpoints(Path(checkpoints) / f"restart-{restart}").clear()
        self.bin_width, self.restart_elbos_ = bin_width, elbos
        self._publish(*best)
        self._warn()
        return self

    def _prepare(self, counts, bin_width, observed, exposure, times):
        """Check the arrays, lay trials one after the other, and build engine and likelihood."""
        trials = [np.asarray(c) for c in (counts if isinstance(counts, list) else [counts])]
        seen = observed if isinstance(observed, list) else [observed] * len(trials)
        share = exposure if isinstance(exposure, list) else [exposure] * len(trials)
        seen = [
            np.ones(c.shape, bool) if o is None else np.asarray(o) > 0
            for c, o in zip(trials, seen, strict=True)
        ]
        share = [
            np.ones(len(c)) if e is None else np.asarray(e, float)
            for c, e in zip(trials, share, strict=True)
        ]
        s = self.settings
        check(trials, seen, share, s, bin_width)
        y, used = np.concatenate(trials).astype(float), np.concatenate(seen)
        recorded = np.concatenate(share) * bin_width
        used &= (recorded > 0)[:, None]
        y[~used] = 0.0
        self._exclude(y, used, float(recorded.sum()))
        kept = ~self.excluded_
        if times is None:
            times = [np.arange(len(c)) * bin_width for c in trials]
        grid = [torch.from_numpy(np.asarray(t, float)) for t in times]
        s["engine"] = choose_engine(s["engine"], s["kernel"], len(y))
        log.info("engine: %s (%d bins, kernel %s)", s["engine"], len(y), s["kernel"])
        engine = make_engine(s["engine"], grid, s["kernel"], s["inducing"], s["period_s"])
        model = _likelihood(s)(
            torch.from_numpy(y[:, kept]),
            torch.from_numpy(used[:, kept]),
            torch.from_numpy(np.maximum(recorded, 1e-12)),
            s["chunk"],
        )
        mean = y.sum() / max(used.sum(), 1)
        if s["likelihood"] == "gaussian" and looks_like_counts(y) and mean < FEW_COUNTS:
            log.warning("counts of mean %.2f under a Gaussian model: use poisson", mean)
        self._duration = sum(len(t) for t in times) * bin_width
        return Ascent(engine, model, s, bin_width), [len(c) for c in trials]

    def _exclude(self, y: np.ndarray, used: np.ndarray, seconds: float) -> None:
        """Leave units out that do not change in the observed entries; keep what describes them."""
        count = np.maximum(used.sum(0), 1)
        mean = y.sum(0) / count
        self.excluded_ = _spread(y, used) <= 0
        if self.excluded_.all():
            found = f"none of {len(mean)} units changes over the observed bins"
            raise Refusal("counts", found, "one unit or more that does", "check the binning")
        if self.excluded_.any():
            log.warning("%d units that do not change are left out", int(self.excluded_.sum()))
        self._constant = mean
        if self.settings["likelihood"] in ("poisson", "negative_binomial"):
            rate = np.maximum(mean * count, 0.5) / np.maximum(seconds * count / len(y), 1e-12)
            self._constant = np.log(rate)
        elif self.settings["likelihood"] == "bernoulli":
            share = np.clip(mean, 0.5 / count, 1 - 0.5 / count)
            self._constant = np.log(share / (1 - share))

    def _climb(self, ascent: Ascent, restart: int, folder: Path | None, title: str):
        """Iterate to convergence from one start; go on from a checkpoint when there is one."""
        s = self.settings
        state = ascent.start(self.seed * 1000 + restart, restart)
        store = Checkpoints(folder) if folder else None
        with store.lock() if store else nullcontext(), terminate_gently() as terminated:
            moved = False
            if store and (saved := store.latest()):
                moved = _restore(state, ascent, saved)
            progress = Progress(title, s["iterations"], len(state.trace))
            while len(state.trace) < s["iterations"]:
                if self._converged(state.trace):
                    if moved or not s["moves"]:
                        break
                    state, moved = improve(ascent, state), True
                    continue
                elbo = ascent.iterate(state, len(state.trace))
                progress.update(elbo=elbo)
                due = len(state.trace) % s["checkpoint_every"] == 0 or terminated.is_set()
                if store and due:
                    store.save(len(state.trace), _saved(state, ascent, moved))
                if terminated.is_set():
                    raise SystemExit(143)
            if store:
                store.save(len(state.trace), _saved(state, ascent, moved))
            progress.close()
        parameters = {name: p.clone() for name, p in ascent.likelihood.parameters().items()}
        return state, parameters

    def _converged(self, trace: list[dict[str, float]]) -> bool:
        """Tell whether the bound gained less than the tolerance for five iterations."""
        if len(trace) <= PATIENCE + max(self.settings["burn_in"], self.settings["temper"]):
            return False
        last = [row["elbo"] for row in trace[-PATIENCE - 1 :]]
        return all(
            b - a < self.settings["tolerance"] * abs(a)
            for a, b in zip(last, last[1:], strict=False)
        )

    def _publish(self, state: State, parameters: dict[str, torch.Tensor]) -> None:
        """Bring the factors into canonical form: by energy, the largest loading positive."""
        kept = ~self.excluded_
        energy = state.loadings.norm(dim=0) * (state.tau * (state.m**2 + state.v)).mean(1).sqrt()
        order = torch.argsort(-energy, stable=True)
        sign = torch.sign(state.loadings[state.loadings.abs().argmax(0), torch.arange(len(energy))])
        sign = torch.where(sign == 0, torch.ones_like(sign), sign)[order]
        self.loadings_ = np.zeros((len(kept), len(order)))
        self.loadings_[kept] = (state.loadings[:, order] * sign).numpy()
        self.offset_ = self._constant.copy()
        self.offset_[kept] = state.offset.numpy()
        self.parameters_ = {}
        for name, values in parameters.items():
            self.parameters_[name] = np.full(len(kept), float(values.median()))
            self.parameters_[name][kept] = values.numpy()
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

    def _warn(self) -> None:
        """Tell what makes a fit doubtful: coarse inducing points, too few factors, wild rates."""
        s, shortest = self.settings, float(self.lengthscales_.min())
        if s["engine"] == "sparse" and s["inducing"] < self._duration / (2 * shortest):
            log.warning(
                "%d inducing points do not resolve a length-scale of %.3g s over %.0f s: use %d, "
                "or a Matern kernel (engine statespace)",
                s["inducing"],
                shortest,
                self._duration,
                int(np.ceil(self._duration / (2 * shortest))),
            )
        if self.n_effective_ == s["n_factors"] and s["n_factors"] > 1:
            log.warning("all %d factors are used: raise n_factors", s["n_factors"])
        if s["likelihood"] in ("poisson", "negative_binomial"):
            rows = np.linspace(0, len(self.gated_mean_) - 1, 1000).astype(int)
            log_rate = self.gated_mean_[rows] @ self.loadings_.T + self.offset_
            if log_rate.max() > LARGEST_LOG_HZ:
                log.warning("expected rates reach %.3g per second", float(np.exp(log_rate.max())))

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
        parameters = {k: torch.from_numpy(v) for k, v in self.parameters_.items()}
        return partial(_likelihood(self.settings).log_density, **parameters)

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
        tensors |= {f"parameter_{k}": torch.from_numpy(v) for k, v in self.parameters_.items()}
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
        model._lengths = described["trial_lengths"]
        model.parameters_ = {
            name.removeprefix("parameter_"): tensor.numpy()
            for name, tensor in tensors.items()
            if name.startswith("parameter_")
        }
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
    "excluded",
)


def _constant_rate(counts, entries, mean_rate, bin_width, exposure) -> float:
    """Log-likelihood of held-out entries under each unit's mean rate."""
    from scipy.stats import poisson

    share = np.ones(len(counts)) if exposure is None else np.asarray(exposure, float)
    expected = np.maximum(share[:, None] * bin_width * np.asarray(mean_rate), 1e-12)
    return float(poisson.logpmf(counts, expected)[np.asarray(entries, bool)].sum())


def _likelihood(settings: dict[str, Any]) -> type:
    """Give the class of an observation model."""
    if settings["likelihood"] == "poisson":
        return POISSONS[settings["poisson_expectation"]]
    return LIKELIHOODS[settings["likelihood"]]


def _spread(y: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Tell for every unit how far its observed entries lie apart, unit by unit."""
    found = np.zeros(y.shape[1])
    for n in range(y.shape[1]):
        values = y[used[:, n], n]
        found[n] = np.ptp(values) if values.size else 0.0
    return found


def _saved(state: State, ascent: Ascent, moved: bool) -> dict[str, Any]:
    """Give what a checkpoint holds."""
    masks = state.masks
    return {name: getattr(state, name) for name in KEPT} | {
        "a": masks.a,
        "b": masks.b,
        "h": [masks.h1, masks.h2],
        "trace": state.trace,
        "moved": moved,
        "parameters": ascent.likelihood.parameters(),
    }


def _restore(state: State, ascent: Ascent, saved: dict[str, Any]) -> bool:
    """Bring a state to that of a checkpoint; tell whether moves were tried already."""
    for name in KEPT:
        setattr(state, name, saved[name])
    masks = state.masks
    masks.a, masks.b = saved["a"], saved["b"]
    masks.h1, masks.h2 = saved["h"]
    state.trace = saved["trace"]
    for name, values in saved["parameters"].items():
        setattr(ascent.likelihood, name, values)
    ascent.refresh(state)
    return saved["moved"]


KEPT = (
    "loadings",
    "offset",
    "tau",
    "m",
    "v",
    "w",
    "linear",
    "kl",
    "lengthscales",
    "variance",
)
LIKELIHOODS = {
    "negative_binomial": NegativeBinomial,
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
}
POISSONS = {"exact": Poisson, "taylor2": MomentPoisson, "lognormal": LognormalPoisson}
