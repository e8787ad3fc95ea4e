"""Figures of place-cell datasets."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from popflow.evaluate.placecells import explained_by_place, rate_maps, spatial_information
from popflow.figures import comparison, style
from popflow.models.infinite_gpfa import InfiniteGPFA

NAMES = {
    "infinite_gpfa": "infinite GPFA",
    "infinite_gpfa no_mask": "same, without masks",
    "infinite_gpfa ard": "same, ARD instead of masks",
    "elephant_gpfa": "GPFA (Elephant)",
    "mean rate": "mean rate",
}
SHOWN_S = 120.0
YEARS_S = 1e7


def _phase_colours(labels: np.ndarray) -> dict[str, str]:
    shades = ("#F3E2C2", "#D5E5F2", "#DDEEDD", "#EEDDE8")
    return {name: shades[i % 4] for i, name in enumerate(np.unique(labels))}


def _shade_phases(ax, session: dict[str, Any], start: float, stop: float) -> None:
    """Shade the task phases behind an axis."""
    t, labels = session["t"], session["label"]
    colours = _phase_colours(labels)
    change = np.flatnonzero(np.diff(session["epoch"]) != 0)
    edges = np.concatenate([[0], change + 1, [len(t)]])
    half = session["bin_s"] / 2
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        begin, end = max(t[low] - half, start), min(t[high - 1] + half, stop)
        if end > begin:
            ax.axvspan(begin, end, color=colours[labels[low]], linewidth=0, zorder=0)


def _phase_legend(fig, session: dict[str, Any]) -> None:
    from matplotlib.patches import Patch

    colours = _phase_colours(session["label"])
    patches = [Patch(color=colour, label=name) for name, colour in colours.items()]
    fig.legend(handles=patches, loc="outside upper right", ncols=len(patches))


def _window(session: dict[str, Any]) -> tuple[float, float]:
    """Choose the middle of the session for a close look."""
    t = session["t"]
    middle = (t[0] + t[-1]) / 2
    return max(t[0], middle - SHOWN_S / 2), min(t[-1], middle + SHOWN_S / 2)


def _placed(session: dict[str, Any]) -> bool:
    """Tell whether the animal's position is known in some bins."""
    return (
        bool(np.isfinite(session["position"]).all(1).any()) if session["position"].size else False
    )


def _rates(session: dict[str, Any]) -> np.ndarray:
    """Give spikes per second, or traces in standard deviations from their mean, (T, N)."""
    if session["kind"] == "spikes":
        return session["counts"] / session["bin_s"]
    values = np.where(session["used"][:, None], session["counts"], np.nan)
    return np.nan_to_num((values - np.nanmean(values, 0)) / np.nanstd(values, 0))


def _clock(session: dict[str, Any]) -> dict[str, Any]:
    """Count time from the first bin when the clock is that of a computer (years of seconds)."""
    t = session["t"]
    return session | {"t": t - t[0] + session["bin_s"] / 2} if t[0] > YEARS_S else session


def draw_raster(session: dict[str, Any], png: str | Path) -> None:
    """Draw binned spikes of all units and the position over two minutes, and the whole path."""
    session, spikes = _clock(session), session["kind"] == "spikes"
    start, stop = _window(session)
    t = session["t"]
    here = (t >= start) & (t <= stop)
    placed = _placed(session)
    if placed:
        maps, _ = rate_maps(session, _rates(session))
        peaks = [np.nanargmax(np.nan_to_num(m, nan=-np.inf)) for m in maps]
    else:
        peaks = -session["counts"].mean(0)
    order = np.argsort(peaks, kind="stable")
    fig = style.figure("double", 95)
    grid = fig.add_gridspec(3, 2, width_ratios=[3.2, 1], height_ratios=[2.2, 0.6, 0.6])
    raster, path = fig.add_subplot(grid[0, 0]), fig.add_subplot(grid[:, 1])
    axes = [fig.add_subplot(grid[row, 0], sharex=raster) for row in (1, 2)]
    counts = (session["counts"] if spikes else _rates(session))[here][:, order].T
    image = raster.imshow(
        counts,
        aspect="auto",
        cmap="Greys",
        vmin=0,
        vmax=max(1.0, np.quantile(counts, 0.98)),
        extent=[t[here][0], t[here][-1], counts.shape[0] + 0.5, 0.5],
    )
    raster.set(ylabel="unit, by place of its peak" if placed else "unit, by rate")
    raster.tick_params(labelbottom=False)
    label = f"spikes per {session['bin_s']:g} s" if spikes else "signal above its mean (sd)"
    fig.colorbar(image, ax=raster, label=label, pad=0.01)
    unit = session["position_unit"] or "a.u."
    for axis, name in enumerate("xy"[: session["position"].shape[1]]):
        _shade_phases(axes[axis], session, start, stop)
        axes[axis].plot(t[here], session["position"][here, axis], color="0.1", linewidth=0.8)
        axes[axis].set(ylabel=f"{name} ({unit})")
    axes[0].tick_params(labelbottom=False)
    axes[-1].set(xlabel="time (s)", xlim=(start, stop))
    if session["position"].shape[1] > 1:
        path.plot(*session["position"].T, color="0.6", linewidth=0.3)
        path.set(aspect="equal", xlabel=f"x ({unit})", ylabel=f"y ({unit})")
    length = f"{len(t) * session['bin_s'] / 60:.1f} min"
    path.set_title(f"Path, {length}" if placed else f"{length}, no position")
    _phase_legend(fig, session)
    table = pd.DataFrame(counts.T, columns=[f"unit_{session['unit'][i]}" for i in order])
    table.insert(0, "time_s", t[here])
    style.save(fig, png, table)


def draw_latents(
    session: dict[str, Any], model: InfiniteGPFA, association: pd.DataFrame, png: str | Path
) -> None:
    """Draw each used factor's gated mean and mask over time, with the task phases behind.

    Parameters
    ----------
    association : DataFrame
        Rows of the same fit.
    """
    session = _clock(session)
    start, stop = _window(session)
    t = session["t"]
    here = (t >= start) & (t <= stop)
    count = max(1, min(5, model.n_effective_))
    fig = style.figure("double", 22 + 24 * count)
    axes = fig.subplots(2 * count, 1, sharex=True, height_ratios=[1.6, 0.7] * count, squeeze=False)
    table = {"time_s": t[here]}
    for d in range(count):
        top, bottom = axes[2 * d, 0], axes[2 * d + 1, 0]
        mean, mask = model.gated_mean_[here, d], model.mask_probability_[here, d]
        tau, m, v = mask, model.factor_mean_[here, d], model.factor_variance_[here, d]
        spread = np.sqrt(np.maximum(tau * v + tau * (1 - tau) * m**2, 0))
        for ax in (top, bottom):
            _shade_phases(ax, session, start, stop)
        top.fill_between(
            t[here], mean - 2 * spread, mean + 2 * spread, color="0.3", alpha=0.25, linewidth=0
        )
        top.plot(t[here], mean, color="0.05", linewidth=0.9)
        top.axhline(0, color="0.5", linewidth=0.4)
        bottom.fill_between(t[here], 0, mask, color=style.COLOURS[0], alpha=0.85, linewidth=0)
        bottom.set(ylim=(0, 1.02), yticks=[0, 1])
        top.set_ylabel(f"factor {d + 1}\nE[z f]")
        bottom.set_ylabel("mask")
        text = f"energy {100 * model.energy_share_[d]:.0f} %"
        rows = association[association["factor"] == d + 1] if len(association) else association
        if len(rows):
            row = rows.sort_values(["p", "value"], ascending=[True, False]).iloc[0]
            what = "explained by place" if row["score"] == "R2" else f"mask for {row['target']}"
            score = "$R^2$" if row["score"] == "R2" else "AUC"
            text += f", {what}: {score} {row['value']:.2f} (FDR {row['fdr']:.3f})"
        top.set_title(text, fontweight="normal", fontsize=6.5, pad=2)
        table |= {f"gated_mean_{d + 1}": mean, f"gated_sd_{d + 1}": spread, f"mask_{d + 1}": mask}
    axes[-1, 0].set(xlabel="time (s)", xlim=(start, stop))
    fig.align_ylabels()
    _phase_legend(fig, session)
    style.save(fig, png, pd.DataFrame(table))


def draw_factors(fits: list[tuple[str, int, InfiniteGPFA]], png: str | Path) -> None:
    """Draw the energy of the factors, the effective number per fit, and the bound's rise."""
    fig = style.figure("double", 62)
    left, middle, right = fig.subplots(1, 3, width_ratios=[1.2, 0.8, 1.2])
    variants = list(dict.fromkeys(variant for variant, _, _ in fits))
    colours = style.colour_map(variants)
    rows, bars = [], len(variants)
    for place, variant in enumerate(variants):
        models = [model for name, _, model in fits if name == variant]
        share = 100 * np.array([model.energy_share_ for model in models])
        x = np.arange(1, share.shape[1] + 1) + (place - (bars - 1) / 2) * 0.8 / bars
        left.bar(x, share.mean(0), 0.8 / bars, color=colours[variant], alpha=0.75)
        for one in share:
            left.plot(x, one, ".", color="0.15", markersize=2)
        numbers = [model.n_effective_ for model in models]
        jitter = (np.arange(len(numbers)) - (len(numbers) - 1) / 2) * 0.1
        middle.plot(place + jitter, numbers, "o", color=colours[variant], markersize=4)
        for name, seed, model in fits:
            if name == variant:
                elbo = np.array([row["elbo"] for row in model.elbo_trace_])
                right.plot(
                    np.arange(1, len(elbo) + 1),
                    elbo / 1000,
                    color=colours[variant],
                    linewidth=0.8,
                    label=None,
                )
                rows += [
                    {
                        "variant": variant,
                        "seed": seed,
                        "factor": d + 1,
                        "energy_share": e,
                        "n_effective": model.n_effective_,
                        "elbo": elbo[-1],
                    }
                    for d, e in enumerate(model.energy_share_)
                ]
    left.axhline(5, color="0.4", linestyle="--", linewidth=0.7)
    left.set(xlabel="factor, by energy", ylabel="share of the energy (%)")
    left.set_title("Energy (dashed: counted above)")
    labels = [NAMES.get(_full(v), v) for v in variants]
    middle.set_xticks(range(bars), labels, rotation=25, ha="right", rotation_mode="anchor")
    middle.set(ylabel="effective number of factors", xlim=(-0.6, bars - 0.4))
    middle.set_ylim(0, 1.1 * max(model.n_effective_ for _, _, model in fits))
    middle.yaxis.get_major_locator().set_params(integer=True)
    middle.set_title(f"{len({s for _, s, _ in fits})} seeds")
    right.set(xlabel="iteration", ylabel="evidence lower bound (10³ nats)")
    low = np.quantile([row["elbo"] / 1000 for _, _, m in fits for row in m.elbo_trace_[2:]], 0.0)
    right.set_ylim(low, None)
    for variant, label in zip(variants, labels, strict=True):
        right.plot([], [], color=colours[variant], label=label)
    right.legend(loc="lower right")
    right.set_title("Bound")
    style.save(fig, png, pd.DataFrame(rows))


def _full(variant: str) -> str:
    return "infinite_gpfa" if variant == "default" else f"infinite_gpfa {variant}"


def draw_maps(session: dict[str, Any], model: InfiniteGPFA, png: str | Path) -> None:
    """Draw rate maps of the most spatial units, and maps of the used factors."""
    if not _placed(session):
        text = "No maps: the position of the animal is not known in any bin."
        style.say(png, text, pd.DataFrame(columns=["kind", "name", "x_bin", "y_bin", "value"]))
        return
    maps, occupancy = rate_maps(session, _rates(session))
    spikes = session["kind"] == "spikes"
    information = (spatial_information if spikes else explained_by_place)(maps, occupancy)
    told = "{:.2f} bits/spike" if spikes else "$R^2$ of place {:.2f}"
    best = np.argsort(-information, kind="stable")[:6]
    count = max(1, min(6, model.n_effective_))
    latent, _ = rate_maps(session, model.gated_mean_[:, :count])
    fig = style.figure("double", 78)
    axes = fig.subplots(2, 6)
    rows = []
    for ax, unit in zip(axes[0], best, strict=False):
        lowest = 0 if spikes else None
        image = ax.imshow(maps[unit].T, origin="lower", cmap=style.SEQUENTIAL, vmin=lowest)
        label = "Hz" if spikes else "signal (sd)"
        fig.colorbar(image, ax=ax, location="bottom", shrink=0.85, label=label, pad=0.04)
        ax.set_title(
            f"unit {session['unit'][unit]}\n{told.format(information[unit])}",
            fontweight="normal",
            fontsize=6.5,
        )
        rows += _long(maps[unit], "unit", session["unit"][unit])
    limit = np.nanmax(np.abs(latent)) if latent.size else 1.0
    for ax, d in zip(axes[1], range(count), strict=False):
        image = ax.imshow(
            latent[d].T, origin="lower", cmap=style.DIVERGING, vmin=-limit, vmax=limit
        )
        fig.colorbar(image, ax=ax, location="bottom", shrink=0.85, label="mean E[z f]", pad=0.04)
        ax.set_title(f"factor {d + 1}", fontweight="normal", fontsize=6.5)
        rows += _long(latent[d], "factor", d + 1)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)
        if not ax.images:
            ax.set_visible(False)
    style.save(fig, png, pd.DataFrame(rows))


def _long(image: np.ndarray, kind: str, name: Any) -> list[dict[str, Any]]:
    return [
        {"kind": kind, "name": name, "x_bin": i, "y_bin": j, "value": value}
        for (i, j), value in np.ndenumerate(image)
    ]


def draw_comparison(evaluation: pd.DataFrame, png: str | Path) -> None:
    """Draw held-out scores of every method, and how well the best mask follows the phases."""
    panels = [
        comparison.Panel(
            "held-out entries", "log-likelihood per entry", "log-likelihood\n(nats per entry)"
        ),
    ]
    if (evaluation["metric"] == "bits per spike").any():
        bits = ("held-out entries", "bits per spike", "bits per spike,\nheld out", 0.0)
        panels.insert(0, comparison.Panel(*bits))
    told = evaluation[evaluation["metric"].isin(["best mask AUC", "best factor R2"])]
    for task, metric in dict.fromkeys(zip(told["task"], told["metric"], strict=True)):
        if metric == "best mask AUC":
            panels.append(comparison.Panel(task, metric, f"AUC of the best\nmask for {task}", 0.5))
        else:
            label = "best factor, variance\nexplained by place"
            panels.append(comparison.Panel(task, metric, label))
    comparison.draw(
        evaluation, panels, png, names=NAMES | {"rotated labels": "rotated labels (null)"}
    )
