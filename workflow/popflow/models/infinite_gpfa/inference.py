"""Variational coordinate ascent: sites and q(f), masks, q(π), loadings; every step is kept only if
the bound does not fall."""

import copy
import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popflow.models.infinite_gpfa.engines import Posterior
from popflow.models.infinite_gpfa.masks import PRIORS, MaskPosterior
from popflow.models.infinite_gpfa.start import initial_loadings
from popflow.runtime.seeds import generator

log = logging.getLogger(__name__)

SMALLEST_STEP = 0.05
TAU_EDGE = 1e-12
#: Shape and scale of the inverse Gamma prior that keeps learned variances of loadings from zero.
ARD_PRIOR = (1.0, 0.01)


@dataclass
class State:
    """Everything that coordinate ascent changes.

    Attributes
    ----------
    loadings : (N, D) tensor
    offset : (N,) tensor
    tau, m, v : (D, T) tensor
    w, linear : (D, T) tensor
        Sites of the factors.
    kl : (D,) tensor
        KL of q(f_d) from its prior.
    lengthscales : (D,) tensor
        Seconds.
    variance : (D,) tensor
        Of the prior of the loadings.
    masks : MaskPosterior
    trace : list of dict
        Per iteration the bound and its components, in nats.
    """

    loadings: Tensor
    offset: Tensor
    tau: Tensor
    m: Tensor
    v: Tensor
    w: Tensor
    linear: Tensor
    kl: Tensor
    lengthscales: Tensor
    variance: Tensor
    masks: MaskPosterior
    trace: list[dict[str, float]] = field(default_factory=list)

    def clone(self) -> "State":
        """Copy all tensors; the trace stays as it is up to now."""
        copied = {k: v.clone() if isinstance(v, Tensor) else v for k, v in vars(self).items()}
        return State(**copied | {"masks": copy.copy(self.masks), "trace": list(self.trace)})

    def forget(self, d: int, tau: float) -> None:
        """Set a factor back to its prior."""
        self.m[d], self.v[d], self.kl[d] = 0.0, 1.0, 0.0
        self.w[d], self.linear[d], self.tau[d] = 0.0, 0.0, tau


class Ascent:
    """Coordinate ascent for one model.

    Parameters
    ----------
    engine : SparseEngine
    likelihood : object
        Of `likelihoods`.
    settings : dict
        The preset.
    masks : bool
        False keeps τ = 1: variational GPFA without masks.
    bin_width : float
        Seconds.
    """

    def __init__(self, engine: Any, likelihood: Any, settings: dict[str, Any], bin_width: float):
        self.engine, self.likelihood, self.settings = engine, likelihood, settings
        self.gated, self.bin_width = settings["masks"], bin_width
        # Masks of bins without any observation follow their prior and must not teach it.
        self.seen = likelihood.observed.any(1)

    def start(self, seed: int, restart: int = 0) -> State:
        """Start from the leading directions of smoothed, transformed data; see `start`."""
        s, t = self.settings, len(self.seen)
        d = s["n_factors"]
        loadings, offset = initial_loadings(self.likelihood, s["likelihood"], d, seed, restart)
        low, high = 5 * self.bin_width, max(10 * self.bin_width, t * self.bin_width / 20)
        scales = torch.logspace(*np.log10([low, high]), d, dtype=torch.float64)
        if s["lengthscale_s"]:
            scales = torch.full((d,), float(s["lengthscale_s"]), dtype=torch.float64)
        tau = torch.ones(d, t, dtype=torch.float64)
        if self.gated:
            noise = generator(seed, "tau").normal(0, 0.02, (d, t))
            tau = torch.from_numpy(np.clip(s["tau_start"] + noise, 0.05, 0.99))
        ones = torch.ones(d, dtype=torch.float64)
        fixed = None if s["learn_alpha"] else s["alpha"]
        prior = (s["alpha_shape"], s["alpha_rate"])
        masks = PRIORS[s["mask_prior"]](ones.clone(), ones.clone(), fixed, prior=prior)
        masks.update(tau[:, self.seen])
        zero = torch.zeros(d, t, dtype=torch.float64)
        state = State(
            loadings,
            offset,
            tau,
            zero,
            torch.ones_like(zero),
            zero.clone(),
            zero.clone(),
            torch.zeros_like(ones),
            scales,
            s["loading_variance"] * ones,
            masks,
        )
        self.refresh(state)
        return state

    def refresh(self, state: State) -> None:
        """Bring what the likelihood keeps per entry up to date with a state."""
        self.likelihood.start(state.loadings, state.offset, state.tau, state.m, state.v)

    def iterate(self, state: State, iteration: int) -> float:
        """Do one round of updates; give the bound. The likelihood must be fresh, and is left so."""
        for d in range(len(state.m)):
            self._update_factor(state, d)
        if self.gated and iteration >= self.settings["burn_in"]:
            weight = min(1.0, (iteration + 1) / max(self.settings["temper"], 1))
            for _ in range(2):
                for d in range(len(state.m)):
                    self._update_mask(state, d, weight)
        if self.gated:
            state.masks.update(state.tau[:, self.seen])
        state.loadings, state.offset = self.likelihood.maximise(
            state.loadings, state.offset, state.tau, state.m, state.v, state.variance
        )
        if self.settings["ard"]:
            shape, scale = ARD_PRIOR
            scale = scale * len(state.offset) / 2
            squares = 0.5 * (state.loadings**2).sum(0)
            state.variance = (squares + scale) / (len(state.offset) / 2 + shape + 1)
        every = self.settings["lengthscale_every"]
        if every and iteration % every == every - 1:
            self.refresh(state)
            self._update_lengthscales(state)
        components = self.bound(state)
        state.trace.append(components)
        return components["elbo"]

    def _update_factor(self, state: State, d: int) -> None:
        """Move a factor's sites towards their optimum; shorten the step until the bound rises."""
        c, tau, rest = state.loadings[:, d], state.tau[d], self.likelihood
        acts = rest.take_out(c, tau, state.m[d], state.v[d])
        scale, before = float(state.lengthscales[d]), acts.bound - float(state.kl[d])
        step = 1.0 if rest.exact_sites else self.settings["site_step"]
        while step >= SMALLEST_STEP:
            w = (1 - step) * state.w[d] + step * acts.w
            linear = (1 - step) * state.linear[d] + step * acts.linear
            q = self.engine.solve(scale, w, linear)
            if rest.exact_sites:
                _store(state, d, q, w, linear)
                break
            after = rest.factor_bound(c, tau, q.m, q.v)[0] - q.kl
            if after >= before - 1e-9 * abs(before):
                _store(state, d, q, w, linear)
                break
            step /= 2
        rest.put_back(c, tau, state.m[d], state.v[d])

    def _update_mask(self, state: State, d: int, weight: float = 1.0) -> None:
        """Set τ_d to its optimum; the bound is linear in each τ, so one pass is exact.

        A `weight` below 1 of the divergence of the masks makes them follow the data more.
        """
        c, rest = state.loadings[:, d], self.likelihood
        acts = rest.take_out(c, state.tau[d], state.m[d], state.v[d])
        e1, e0 = state.masks.expected_logs()
        odds = e1[d] - e0[d] + acts.evidence / weight
        tau = torch.sigmoid(odds).clamp(TAU_EDGE, 1 - TAU_EDGE)
        if not rest.exact_masks:
            tau = self._damped(state, d, tau, e1[d] - e0[d])
        state.tau[d] = tau
        rest.put_back(c, state.tau[d], state.m[d], state.v[d])

    def _damped(self, state: State, d: int, wanted: Tensor, prior: Tensor) -> Tensor:
        """Go half of the way to a mask, in the bins where that raises an approximate bound."""
        values = []
        for tau in (state.tau[d], 0.5 * (state.tau[d] + wanted)):
            moments = (state.loadings[:, d], tau, state.m[d], state.v[d])
            entropy = -torch.xlogy(tau, tau) - torch.xlogy(1 - tau, 1 - tau)
            values.append(self.likelihood.factor_bound(*moments)[1] + tau * prior + entropy)
        return torch.where(values[1] > values[0], tau, state.tau[d])

    def _update_lengthscales(self, state: State) -> None:
        """Try a shorter and a longer scale per factor, sites held; keep what raises the bound."""
        rest, factor = self.likelihood, self.settings["lengthscale_step"]
        low, high = 2 * self.bin_width, len(self.seen) * self.bin_width / 2
        for d in range(len(state.m)):
            c, tau = state.loadings[:, d], state.tau[d]
            acts = rest.take_out(c, tau, state.m[d], state.v[d])
            best, now = acts.bound - float(state.kl[d]), float(state.lengthscales[d])
            for scale in (now / factor, now * factor):
                scale = float(f"{min(max(scale, low), high):.6g}")
                q = self.engine.solve(scale, state.w[d], state.linear[d])
                value = rest.factor_bound(c, tau, q.m, q.v)[0] - q.kl
                if value > best:
                    best = value
                    state.lengthscales[d] = scale
                    _store(state, d, q, state.w[d].clone(), state.linear[d].clone())
            rest.put_back(c, tau, state.m[d], state.v[d])

    def bound(self, state: State) -> dict[str, float]:
        """Give the evidence lower bound and its components, in nats.

        elbo = E[ln p(y|h)] - KL(f) - KL(z) - KL(π) [- KL(α)] + ln p(C).
        """
        found = {
            "log_likelihood": self.likelihood.expected(
                state.loadings, state.offset, state.tau, state.m, state.v
            ),
            "kl_f": float(state.kl.sum()),
        }
        if self.gated:
            found |= state.masks.divergences(state.tau[:, self.seen])
        variance = state.variance
        log_prior = -0.5 * (state.loadings**2 / variance + torch.log(2 * torch.pi * variance))
        found["log_prior_loadings"] = float(log_prior.sum())
        if self.settings["ard"]:
            shape, scale = ARD_PRIOR
            scale = scale * len(state.offset) / 2
            prior = -(shape + 1) * torch.log(variance) - scale / variance
            found["log_prior_loadings"] += float(prior.sum())
        kl = sum(value for name, value in found.items() if name.startswith("kl"))
        elbo = found["log_likelihood"] + found["log_prior_loadings"] - kl
        return {"elbo": elbo, **found}


def _store(state: State, d: int, q: Posterior, w: Tensor, linear: Tensor) -> None:
    state.m[d], state.v[d], state.kl[d] = q.m, q.v, q.kl
    state.w[d], state.linear[d] = w, linear
