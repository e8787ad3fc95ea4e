"""One training step of MAESTRO: views of the samples, losses, the teacher's update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from popflow.models.maestro import objective
from popflow.models.maestro.network import Decoder, Encoder, Sizes
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator
from popflow.runtime.training import Task

#: Samples and cells of the fixed views on which an epoch is judged.
PROBE_SAMPLES, PROBE_CELLS = 48, 512


class MaestroNetwork(nn.Module):
    """Student, teacher, decoder and everything else that is saved.

    Parameters
    ----------
    sizes : Sizes
    centre_momentum : float
    marker_mean, marker_sd : (D,) array
        Markers are scaled by them before anything else.
    """

    def __init__(
        self,
        sizes: Sizes,
        centre_momentum: float,
        marker_mean: np.ndarray,
        marker_sd: np.ndarray,
    ):
        super().__init__()
        self.student, self.teacher = Encoder(sizes), Encoder(sizes)
        self.decoder = Decoder(sizes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        self.centre = objective.Centre(sizes.latent, centre_momentum)
        self.register_buffer("marker_mean", torch.as_tensor(marker_mean, dtype=torch.float32))
        self.register_buffer("marker_sd", torch.as_tensor(marker_sd, dtype=torch.float32))

    def scale(self, cells: Tensor) -> Tensor:
        """Scale transformed values (…, D) to what the encoders see."""
        return (cells - self.marker_mean) / self.marker_sd


@dataclass
class Views:
    """The cells of one step, transformed but not scaled.

    Attributes
    ----------
    student : (B, N, D) Tensor
    teacher : (B, T, D) Tensor or None
    padding : (B, T) Tensor or None
        0 for a cell of the teacher's view, ``-inf`` for padding.
    draws : (B, N) Tensor
        Random numbers of the mask.
    share : float
        Of the cells to hide.
    """

    student: Tensor
    teacher: Tensor | None
    padding: Tensor | None
    draws: Tensor
    share: float


def draw_rows(cells: np.ndarray, count: int, draw: np.random.Generator, name: str) -> np.ndarray:
    """Draw cells without replacement; all of them, shuffled, when there are no more.

    Raises
    ------
    Refusal
        When a drawn value is not finite.
    """
    count = min(count, len(cells))
    rows = np.asarray(cells[draw.choice(len(cells), count, replace=False)], np.float32)
    if not np.isfinite(rows).all():
        fix = "drop such events in the preparation"
        raise Refusal(f"sample {name}", "cells with NaN or infinite values", "finite values", fix)
    return rows


class MaestroTask(Task):
    """MAESTRO's training for `popflow.runtime.training.train`.

    Parameters
    ----------
    network : MaestroNetwork
    samples : sequence of (N, D) array
        Training samples; only drawn rows are read.
    held_out : sequence of (N, D) array
        Samples on which the reconstruction is followed.
    settings : dict
        As `preset-maestro.schema.yaml` describes.
    seed : int
    names : sequence of str
        Of the training samples, for messages.
    """

    def __init__(
        self,
        network: MaestroNetwork,
        samples: Sequence[np.ndarray],
        held_out: Sequence[np.ndarray],
        settings: dict[str, Any],
        seed: int,
        names: Sequence[str],
    ):
        self.module, self.samples, self.names = network, samples, names
        self.settings, self.seed = settings, seed
        training = settings["training"]
        self.steps, self.steps_per_epoch = training["steps"], training["steps_per_epoch"]
        self.clip = training["clip"]
        learned = [p for p in network.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            learned, lr=training["learning_rate"], weight_decay=training["weight_decay"]
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        self._probe = self._fixed(samples, "probe", names)
        self._held_out = self._fixed(held_out, "held_out", ["held out"] * len(held_out))

    def _rate(self, step: int) -> float:
        """Warm up linearly, then follow a cosine to the last learning rate."""
        training = self.settings["training"]
        warm = training["warm_up"] * self.steps
        if step < warm:
            return (step + 1) / (warm + 1)
        last = training["last_learning_rate"] / training["learning_rate"]
        done = (step - warm) / max(self.steps - warm, 1)
        return last + (1 - last) * (1 + math.cos(math.pi * min(done, 1.0))) / 2

    def _fixed(
        self, samples: Sequence[np.ndarray], stream: str, names: Sequence[str]
    ) -> Tensor | None:
        """Draw the same view of the first samples at every call."""
        chosen = list(samples)[:PROBE_SAMPLES]
        if not chosen:
            return None
        count = min(PROBE_CELLS, *(len(cells) for cells in chosen))
        rows = [
            draw_rows(cells, count, generator(self.seed, stream, i), names[i])
            for i, cells in enumerate(chosen)
        ]
        return torch.from_numpy(np.stack(rows))

    def _chosen(self, step: int) -> list[int]:
        """Give the samples of a step: every sample once before one comes again."""
        size, n = min(self.settings["training"]["batch"], len(self.samples)), len(self.samples)
        places = range(step * size, (step + 1) * size)
        orders = {p // n: generator(self.seed, "order", p // n).permutation(n) for p in places}
        return [int(orders[p // n][p % n]) for p in places]

    def batch(self, step: int) -> Views:
        """Draw the views of a step."""
        views, draw = self.settings["views"], generator(self.seed, "views", step)
        chosen = self._chosen(step)
        cells = [self.samples[i] for i in chosen]
        names = [self.names[i] for i in chosen]
        count = min(views["student_cells"], *(len(c) for c in cells), 2**31)
        student = [draw_rows(c, count, draw, n) for c, n in zip(cells, names, strict=True)]
        draws = torch.from_numpy(draw.random((len(cells), count)))
        share = float(draw.choice(self.settings["mask"]["shares"]))
        teacher, padding = None, None
        if self.settings["loss"]["distillation"] > 0:
            rows = [
                draw_rows(c, views["teacher_cells"], draw, n)
                for c, n in zip(cells, names, strict=True)
            ]
            teacher, padding = pad(rows)
        return Views(torch.from_numpy(np.stack(student)), teacher, padding, draws, share)

    def losses(self, batch: Views, step: int) -> dict[str, Tensor]:
        """Hide cells, rebuild the sample, and agree with the teacher."""
        weights, network = self.settings["loss"], self.module
        cells = network.scale(batch.student)
        mask = objective.MASKS[self.settings["mask"]["kind"]](cells, batch.share, batch.draws)
        visible = objective.visible_cells(cells, mask)
        z = network.student(visible, update=True)
        logged: dict[str, Tensor] = {}
        loss = z.new_zeros(())
        if weights["reconstruction"] > 0:
            done = step / max(self.steps, 1)
            rebuilt = self._reconstruction(z, cells, visible.shape[1], done)
            loss = loss + weights["reconstruction"] * rebuilt
            logged["reconstruction"] = rebuilt
        if weights["distillation"] > 0:
            agreed, spread = self._distillation(z, batch, step)
            loss = loss + weights["distillation"] * agreed
            logged |= {"distillation": agreed, "target_entropy": spread}
        return {"loss": loss} | logged

    def _reconstruction(self, z: Tensor, cells: Tensor, visible: int, done: float) -> Tensor:
        """Give the distance between the sample and what is decoded, per marker.

        The energy distance grows with the root of the number of markers, the squared cost of the
        Sinkhorn divergence with the number; both are divided by it.
        """
        weights, markers = self.settings["loss"], cells.shape[-1]
        decoded, shares = self.module.decoder(z, visible, cells.shape[1] - visible)
        target = cells[:, : self.settings["views"]["target_cells"]].contiguous()
        even = target.new_full(target.shape[:2], 1.0 / target.shape[1])
        with torch.autocast(target.device.type, enabled=False):
            if done < weights["sinkhorn_from"]:
                energy = objective.energy_distance(target, decoded.float(), even, shares.float())
                return energy / markers**0.5
            divergence = objective.sinkhorn_divergence(
                target,
                decoded.float(),
                even,
                shares.float(),
                weights["blur"],
                weights["scaling"],
            )
            return divergence / markers

    def _distillation(self, z: Tensor, batch: Views, step: int) -> tuple[Tensor, Tensor]:
        """Give the divergence from the teacher's target, and the target's entropy over ln L."""
        settings, network = self.settings["teacher"], self.module
        with torch.no_grad():
            view = network.scale(batch.teacher)
            pooled = network.teacher(view, batch.padding, update=True)
            logits = network.teacher.project(pooled)
            centre = network.centre.update(logits)
            target = objective.teacher_target(logits, centre, self.teacher_temperature(step))
        agreed = objective.distillation(
            target, network.student.project(z), settings["student_temperature"]
        )
        return agreed, objective.entropy(target) / math.log(target.shape[-1])

    def teacher_temperature(self, step: int) -> float:
        """Rise linearly from the first to the last temperature."""
        settings = self.settings["teacher"]
        first, last = settings["first_temperature"], settings["last_temperature"]
        return first + (last - first) * step / max(self.steps - 1, 1)

    def decay(self, step: int) -> float:
        """Rise along a cosine from the first to the last decay of the teacher."""
        settings = self.settings["teacher"]
        first, last = settings["decay_first"], settings["decay_last"]
        half = (1 + math.cos(math.pi * step / max(self.steps, 1))) / 2
        return last - (last - first) * half

    def after_step(self, step: int) -> None:
        """Let the teacher follow the student."""
        objective.follow(self.module.teacher, self.module.student, self.decay(step))

    def validate(self, step: int) -> dict[str, float]:
        """Follow the rank of the sample vectors, and the reconstruction of held-out samples."""
        network, device = self.module, self.module.marker_mean.device
        z = network.student(network.scale(self._probe.to(device)))
        row = {"effective_rank": objective.effective_rank(z)}
        if self._held_out is not None:
            cells = network.scale(self._held_out.to(device))
            draws = torch.from_numpy(generator(self.seed, "mask").random(cells.shape[:2])).to(
                device
            )
            visible = objective.visible_cells(cells, objective.block_mask(cells, 0.5, draws))
            decoded, shares = network.decoder(
                network.student(visible), visible.shape[1], cells.shape[1] - visible.shape[1]
            )
            target = cells[:, : self.settings["views"]["target_cells"]].contiguous()
            even = target.new_full(target.shape[:2], 1.0 / target.shape[1])
            distance = objective.energy_distance(target, decoded, even, shares)
            row["held_out_energy"] = float(distance) / cells.shape[-1] ** 0.5
        return row

    def stop(self, history: list[dict[str, float]]) -> str | None:
        """End a training whose vectors or targets have collapsed."""
        limits, row = self.settings["collapse"], history[-1]
        if len(history) < limits["after"] or len(self.samples) < 3:
            return None
        spread, rank = row.get("target_entropy", 0.0), row["effective_rank"]
        if spread > limits["entropy"] and rank < limits["rank"]:
            return (
                f"collapse: the effective rank of the sample vectors is {rank:.2f}, and the "
                f"teacher's targets have {spread:.3f} of the largest entropy"
            )
        return None


def pad(samples: list[np.ndarray]) -> tuple[Tensor, Tensor | None]:
    """Stack sets of unequal size.

    Parameters
    ----------
    samples : list of (n, D) array

    Returns
    -------
    cells : (B, N, D) Tensor
        Zeros where a sample has ended.
    log_weight : (B, N) Tensor or None
        0 for a cell, ``-inf`` for padding; None when there is no padding.
    """
    longest = max(len(rows) for rows in samples)
    if all(len(rows) == longest for rows in samples):
        return torch.from_numpy(np.stack(samples)), None
    cells = torch.zeros(len(samples), longest, samples[0].shape[1])
    log_weight = torch.full((len(samples), longest), -math.inf)
    for i, rows in enumerate(samples):
        cells[i, : len(rows)] = torch.from_numpy(rows)
        log_weight[i, : len(rows)] = 0.0
    return cells, log_weight
