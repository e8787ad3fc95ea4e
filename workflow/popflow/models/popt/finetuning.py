"""Decoding with PopT: one linear layer on CLS, the trunk fine-tuned or frozen."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from popflow.models.popt.network import PopT, with_cls
from popflow.models.popt.optimisers import optimiser, schedule
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator, torch_generator
from popflow.runtime.training import Task, train


class Decoder(nn.Module):
    """A PopT trunk with one linear output on CLS; 19,309,569 parameters at the published size.

    Parameters
    ----------
    net : PopT
        Its trunk is shared, not copied; its two heads are left out.
    dropout : float
        Replaces the trunk's own while fine-tuning.
    seed : int
        Of the new head.
    """

    def __init__(self, net: PopT, dropout: float | None = None, seed: int = 0):
        super().__init__()
        self.input_encoding, self.transformer_encoder = net.input_encoding, net.transformer_encoder
        self.head = nn.Linear(net.width, 1)
        with torch.no_grad():
            bound = 1.0 / net.width**0.5
            self.head.weight.uniform_(-bound, bound, generator=torch_generator(seed, "head"))
            self.head.bias.zero_()
        self._code = net.code
        if dropout is not None:
            _set_dropout(self, dropout)

    def forward(self, x: Tensor, coords: Tensor) -> Tensor:
        """Map windows x (batch, 1 + channels, dim), coords (batch, channels, 3) to (batch,)."""
        segment = torch.zeros(coords.shape[:2], device=x.device)
        z = self.input_encoding(x, self._code(coords, segment))
        return self.head(self.transformer_encoder(z, None)[:, 0])[:, 0]

    @torch.no_grad()
    def predict(self, features: np.ndarray, coords: np.ndarray, batch: int = 256) -> np.ndarray:
        """Give the output (a logit, or the scaled target) of each window, in eval mode."""
        self.eval()
        device, rows = self.head.weight.device, []
        places = torch.as_tensor(coords, device=device)
        for start in range(0, len(features), batch):
            x = with_cls(torch.as_tensor(features[start : start + batch])).to(device)
            rows.append(self(x, places.expand(len(x), -1, -1)).cpu().numpy())
        return np.concatenate(rows)


def _set_dropout(module: nn.Module, rate: float) -> None:
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = rate
        elif hasattr(part, "dropout"):
            part.dropout = rate


class FinetuneTask(Task):
    """Supervised training of a `Decoder`; see `finetune` for the parameters."""

    def __init__(
        self,
        module: Decoder,
        features: np.ndarray,
        coords: np.ndarray,
        targets: np.ndarray,
        kind: str,
        settings: dict[str, Any],
        seed: int,
    ):
        self.module, self.kind, self.seed = module, kind, seed
        self.x, self.y = torch.as_tensor(features), torch.as_tensor(targets, dtype=torch.float32)
        self.coords = torch.as_tensor(coords)
        self.steps, self.steps_per_epoch = settings["steps"], settings["steps"]
        self.size, self.clip = min(settings["batch"], len(features)), 1.0
        head = list(module.head.parameters())
        trunk = [p for n, p in module.named_parameters() if not n.startswith("head")]
        groups = [{"params": head, "lr": settings["head_rate"]}]
        if settings["trunk_rate"]:
            groups.append({"params": trunk, "lr": settings["trunk_rate"]})
        self.optimizer = optimiser("adamw", groups, settings["weight_decay"])
        self.scheduler = schedule(self.optimizer, "cosine", self.steps, 0.05)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Give windows and targets; every window comes once per pass, in a new order each pass."""
        count = len(self.x)
        place = step * self.size + np.arange(self.size)
        passes = place // count
        orders = {p: generator(self.seed, "pass", int(p)).permutation(count) for p in set(passes)}
        rows = [int(orders[p][i % count]) for p, i in zip(passes, place, strict=True)]
        return with_cls(self.x[rows]), self.y[rows]

    def losses(self, batch: tuple[Tensor, Tensor], step: int) -> dict[str, Tensor]:
        """Give the cross-entropy (classification) or squared error (regression)."""
        x, y = batch
        places = self.coords.to(x.device).expand(len(x), -1, -1)
        output = self.module(x, places)
        loss = binary_cross_entropy_with_logits if self.kind == "classify" else mse_loss
        return {"loss": loss(output, y)}


def finetune(
    net: PopT,
    features: np.ndarray,
    coords: np.ndarray,
    targets: np.ndarray,
    settings: dict[str, Any],
    kind: str = "classify",
    seed: int = 0,
    checkpoints: str | Path | None = None,
    device: str = "cpu",
) -> Decoder:
    """Fine-tune a copy of a network on labelled windows.

    Parameters
    ----------
    net : PopT
        Left as it is.
    features : ndarray
        (windows, channels, dim), standardised with statistics of these rows.
    coords : ndarray
        (channels, 3), L, I, P.
    targets : ndarray
        (windows,): 0 and 1, or numbers of zero mean and unit variance for ``regress``.
    settings : dict
        The block `finetune` of a preset.
    kind : {"classify", "regress"}
    seed : int
        Of the head and of the order of windows.
    checkpoints : path, optional
    device : str

    Returns
    -------
    Decoder

    Raises
    ------
    Refusal
        When the labels hold one class only.
    """
    if kind == "classify" and len(np.unique(targets)) != 2:
        raise Refusal(
            "fine-tuning",
            f"{len(np.unique(targets))} class in the training labels",
            "two classes",
            "choose a label column with both classes in every training part, or fewer folds",
        )
    twin = PopT(**net.architecture)
    twin.load_state_dict(net.state_dict())
    decoder = Decoder(twin, settings["dropout"], seed)
    task = FinetuneTask(decoder, features, coords, targets, kind, settings, seed)
    train(task, checkpoints, device, "32-true", seed, "fine-tuning")
    return decoder
