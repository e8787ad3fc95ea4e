"""Variational coordinate ascent: sites and q(f), masks, q(π), loadings; every step is kept only if
the bound does not fall."""

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popflow.models.infinite_gpfa.engines import Posterior, SparseEngine
from popflow.models.infinite_gpfa.masks import MaskPosterior
from popflow.models.infinite_gpfa.start import initial_loadings
from popflow.runtime.seeds import generator

log = logging.getLogger(__name__)

SMALLEST_STEP = 0.05
TAU_EDGE = 1e-12


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
    masks: MaskPosterior
    trace: list[dict[str, float]] = field(default_factory=list)


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

    def __init__(self, engine: SparseEngine, likelihood: Any, settings: dict[str, Any], bin_width):
        self.engine, self.likelihood, self.settings = engine, likelihood, settings
        self.gated, self.bin_width = settings["masks"], bin_width
        # Masks of bins without any observation follow their prior and must not teach it.
        self.seen = likelihood.observed.sum(1) > 0

    def start(self, seed: int) -> State:
        """Start from the leading directions of smoothed, transformed data, rotated by the seed."""
        s, y = self.settings, self.likelihood.y
        d, t = s["n_factors"], len(y)
        loadings, offset = initial_loadings(self.likelihood, s["likelihood"], d, seed)
        low, high = 5 * self.bin_width, max(10 * self.bin_width, t * self.bin_width / 20)
        scales = torch.logspace(*np.log10([low, high]), d, dtype=y.dtype)
        if s["lengthscale_s"]:
            scales = torch.full((d,), float(s["lengthscale_s"]), dtype=y.dtype)
        shape = (d, t)
        tau = torch.ones(shape, dtype=y.dtype)
        if self.gated:
            noise = generator(seed, "tau").normal(0, 0.02, shape)
            tau = torch.from_numpy(np.clip(s["tau_start"] + noise, 0.05, 0.99))
        masks = MaskPosterior(
            torch.ones(d, dtype=y.dtype),
            torch.ones(d, dtype=y.dtype),
            None if s["learn_alpha"] else s["alpha"],
            prior=(s["alpha_shape"], s["alpha_rate"]),
        )
        masks.update(tau[:, self.seen])
        zero = torch.zeros(shape, dtype=y.dtype)
        return State(
            loadings,
            offset,
            tau,
            zero.clone(),
            torch.ones(shape, dtype=y.dtype),
            zero.clone(),
            zero.clone(),
            torch.zeros(d, dtype=y.dtype),
            scales,
            masks,
        )

    def iterate(self, state: State, iteration: int) -> float:
        """Do one round of updates; give the bound."""
        args = (state.loadings, state.offset, state.tau, state.m, state.v)
        self.likelihood.start(*args)
        for d in range(len(state.m)):
            self._update_factor(state, d)
        if self.gated and iteration >= self.settings["burn_in"]:
            self.likelihood.start(state.loadings, state.offset, state.tau, state.m, state.v)
            for _ in range(2):
                for d in range(len(state.m)):
                    self._update_mask(state, d)
        if self.gated:
            state.masks.update(state.tau[:, self.seen])
        state.loadings, state.offset = self.likelihood.maximise(
            state.loadings,
            state.offset,
            state.tau,
            state.m,
            state.v,
            self.settings["loading_variance"],
        )
        every = self.settings["lengthscale_every"]
        if every and iteration % every == every - 1:
            self._update_lengthscales(state)
        components = self.bound(state)
        state.trace.append(components)
        return components["elbo"]

    def _update_factor(self, state: State, d: int) -> None:
        """Move a factor's sites towards their optimum; shorten the step until the bound rises."""
        c, tau, ascent = state.loadings[:, d], state.tau[d], self.likelihood
        rest = ascent.without(c, state.offset, state.tau[d], state.m[d], state.v[d])
        scale = float(state.lengthscales[d])
        before = ascent.factor_bound(rest, c, tau, state.m[d], state.v[d]) - float(state.kl[d])
        w_new, l_new = ascent.sites(rest, c, tau, state.m[d], state.v[d])
        step = 1.0 if ascent.exact_sites else self.settings["site_step"]
        while step >= SMALLEST_STEP:
            w = (1 - step) * state.w[d] + step * w_new
            linear = (1 - step) * state.linear[d] + step * l_new
            q = self.engine.solve(scale, w, linear)
            after = ascent.factor_bound(rest, c, tau, q.m, q.v) - q.kl
            if after >= before - 1e-9 * abs(before) or ascent.exact_sites:
                _store(state, d, q, w, linear)
                break
            step /= 2
        ascent.put_back(c, tau, state.m[d], state.v[d])

    def _update_mask(self, state: State, d: int) -> None:
        """Set τ_d to its optimum; the bound is linear in each τ, so one pass is exact."""
        ascent, c = self.likelihood, state.loadings[:, d]
        rest = ascent.without(c, state.offset, state.tau[d], state.m[d], state.v[d])
        e1, e0 = state.masks.expected_logs()
        evidence = ascent.mask_evidence(rest, c, state.m[d], state.v[d])
        tau = torch.sigmoid(e1[d] - e0[d] + evidence).clamp(TAU_EDGE, 1 - TAU_EDGE)
        state.tau[d] = tau
        ascent.put_back(c, tau, state.m[d], state.v[d])

    def _update_lengthscales(self, state: State) -> None:
        """Try a shorter and a longer scale per factor, sites held; keep what raises the bound."""
        ascent = self.likelihood
        ascent.start(state.loadings, state.offset, state.tau, state.m, state.v)
        low, high = 2 * self.bin_width, len(ascent.y) * self.bin_width / 2
        factor = self.settings["lengthscale_step"]
        for d in range(len(state.m)):
            c, tau = state.loadings[:, d], state.tau[d]
            rest = ascent.without(c, state.offset, state.tau[d], state.m[d], state.v[d])
            best = ascent.factor_bound(rest, c, tau, state.m[d], state.v[d]) - float(state.kl[d])
            now = float(state.lengthscales[d])
            for scale in (now / factor, now * factor):
                scale = float(f"{min(max(scale, low), high):.6g}")
                q = self.engine.solve(scale, state.w[d], state.linear[d])
                value = ascent.factor_bound(rest, c, tau, q.m, q.v) - q.kl
                if value > best:
                    best = value
                    state.lengthscales[d] = scale
                    _store(state, d, q, state.w[d].clone(), state.linear[d].clone())
            ascent.put_back(c, tau, state.m[d], state.v[d])

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
        variance = torch.tensor(self.settings["loading_variance"], dtype=state.m.dtype)
        log_prior = -0.5 * (state.loadings**2 / variance + torch.log(2 * torch.pi * variance))
        found["log_prior_loadings"] = float(log_prior.sum())
        kl = sum(value for name, value in found.items() if name.startswith("kl"))
        elbo = found["log_likelihood"] + found["log_prior_loadings"] - kl
        return {"elbo": elbo, **found}


def _store(state: State, d: int, q: Posterior, w: Tensor, linear: Tensor) -> None:
    state.m[d], state.v[d], state.kl[d] = q.m, q.v, q.kl
    state.w[d], state.linear[d] = w, linear
