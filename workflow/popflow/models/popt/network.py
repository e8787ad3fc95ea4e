"""The PopT network: tokens are the channels of one moment, CLS stands for their ensemble."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from popflow.models.popt.layers import Encoder, InputEncoding, initialise, position_code
from popflow.models.popt.published import read_published
from popflow.runtime.artefacts import load_model, save_model
from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    from popflow.prepare.intracranial import Session


@dataclass
class PopTOutput:
    """What PopT gives for a batch.

    Attributes
    ----------
    hidden : Tensor
        (batch, 1 + channels, width); the first token is CLS.
    ensemble_logit : Tensor
        (batch, 1); above 0: the two ensembles were not observed at neighbouring moments.
    channel_logit : Tensor
        (batch, channels, 1); above 0: the channel's activity was replaced.
    """

    hidden: Tensor
    ensemble_logit: Tensor
    channel_logit: Tensor


class PopT(nn.Module):
    """Population Transformer.

    Parameters
    ----------
    input_dim : int
        Size D of the temporal encoder's vectors.
    width, heads, layers, feedforward : int
        Of the transformer; the published ones are the defaults. `width` is divisible by 8.
    dropout : float
    position : {"full", "none"}
        ``"none"`` leaves the coordinates out of the code (an ablation); the segment stays.
    rounding : {"none", "truncate", "round"}
        Of the coordinates before they are coded; ``"truncate"`` is what the reference does.
    init : {"default", "reference"}
        ``"reference"`` starts LayerNorm biases at 1.
    seed : int, optional
        Of the initial weights; without it torch's global generator is used.

    Examples
    --------
    >>> import torch
    >>> from popflow.models.popt import PopT
    >>> net = PopT(input_dim=6, width=16, heads=2, layers=1, feedforward=32, seed=0).eval()
    >>> x = torch.ones(2, 1 + 3, 6)
    >>> out = net(x, torch.full((2, 3, 3), 100.0), torch.zeros(2, 3))
    >>> tuple(out.hidden.shape), tuple(out.channel_logit.shape)
    ((2, 4, 16), (2, 3, 1))
    """

    def __init__(
        self,
        input_dim: int = 768,
        width: int = 512,
        heads: int = 8,
        layers: int = 6,
        feedforward: int = 2048,
        dropout: float = 0.1,
        position: str = "full",
        rounding: str = "none",
        init: str = "default",
        seed: int | None = None,
    ):
        super().__init__()
        if width % 8 or width % heads:
            raise ValueError(f"width {width} must be divisible by 8 and by heads ({heads})")
        self.architecture = {
            "input_dim": input_dim,
            "width": width,
            "heads": heads,
            "layers": layers,
            "feedforward": feedforward,
            "dropout": dropout,
            "position": position,
            "rounding": rounding,
        }
        self.position, self.rounding, self.width = position, rounding, width
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            self.input_encoding = InputEncoding(input_dim, width, dropout)
            self.transformer_encoder = Encoder(layers, width, heads, feedforward, dropout)
            self.cls_head = nn.Linear(width, 1)
            self.token_cls_head = nn.Linear(width, 1)
            initialise(self, init)

    def code(self, coords: Tensor, segment: Tensor) -> Tensor:
        """Code positions: four blocks of width / 4 for L, I, P and the segment.

        Parameters
        ----------
        coords : Tensor
            (batch, channels, 3) in the order L, I, P, mm, 0 to 256.
        segment : Tensor
            (batch, channels), 0 or 1.

        Returns
        -------
        Tensor
            (batch, 1 + channels, width); the CLS token's code is that of position 0.
        """
        places = coords.to(torch.float64)
        if self.rounding == "truncate":
            places = places.trunc()
        elif self.rounding == "round":
            places = places.round()
        values = torch.cat([places, segment.to(torch.float64).unsqueeze(-1)], dim=-1)
        values = torch.cat([values.new_zeros(len(values), 1, 4), values], dim=1)
        blocks = position_code(values, self.width // 4)
        if self.position == "none":
            blocks = blocks * blocks.new_tensor([0.0, 0.0, 0.0, 1.0]).unsqueeze(-1)
        return blocks.flatten(-2)

    def encode(
        self, x: Tensor, coords: Tensor, segment: Tensor, pad_mask: Tensor | None = None
    ) -> Tensor:
        """Give the hidden tokens (batch, 1 + channels, width); see `forward`."""
        z = self.input_encoding(x, self.code(coords, segment))
        return self.transformer_encoder(z, pad_mask)

    def forward(
        self, x: Tensor, coords: Tensor, segment: Tensor, pad_mask: Tensor | None = None
    ) -> PopTOutput:
        """Run the network.

        Parameters
        ----------
        x : Tensor
            (batch, 1 + channels, input_dim); the first token is the CLS input, a vector of ones.
        coords : Tensor
            (batch, channels, 3), L, I, P in mm.
        segment : Tensor
            (batch, channels), 0 for the first ensemble, 1 for the second.
        pad_mask : Tensor, optional
            (batch, 1 + channels), True at padding; None when every token counts.

        Returns
        -------
        PopTOutput
        """
        hidden = self.encode(x, coords, segment, pad_mask)
        return PopTOutput(hidden, self.cls_head(hidden[:, 0]), self.token_cls_head(hidden[:, 1:]))

    @torch.no_grad()
    def transform(self, features: np.ndarray, coords: np.ndarray, batch: int = 256) -> np.ndarray:
        """Give the CLS vector of each window.

        Parameters
        ----------
        features : ndarray
            (windows, channels, input_dim), standardised like in the training.
        coords : ndarray
            (channels, 3), L, I, P in mm.
        batch : int
            Windows at a time.

        Returns
        -------
        ndarray
            (windows, width), float32.
        """
        self.eval()
        device = next(self.parameters()).device
        places = torch.as_tensor(coords, device=device)
        rows = []
        for start in range(0, len(features), batch):
            part = with_cls(torch.as_tensor(features[start : start + batch], dtype=torch.float32))
            count, tokens = part.shape[0], part.shape[1] - 1
            segment = torch.zeros(count, tokens, device=device)
            hidden = self.encode(part.to(device), places.expand(count, -1, -1), segment)
            rows.append(hidden[:, 0].cpu().numpy())
        return np.concatenate(rows) if rows else np.zeros((0, self.width), dtype=np.float32)

    def fit(self, sessions: "list[Session]", settings: dict[str, Any], **options: Any) -> "PopT":
        """Pretrain on prepared sessions; the history is kept in ``history``. See `pretrain`."""
        from popflow.models.popt.pretraining import pretrain

        self.history = pretrain(self, sessions, settings, **options)
        return self

    def save(self, folder: str | Path, description: dict[str, Any] | None = None) -> None:
        """Write ``model.safetensors`` (published names) and ``model.json`` into a folder."""
        content = dict(description or {}) | {"model": "popt", "architecture": self.architecture}
        save_model(folder, self.state_dict(), content)

    @classmethod
    def load(cls, folder: str | Path) -> "PopT":
        """Read what `save` wrote, in eval mode."""
        tensors, description = load_model(folder)
        net = cls(**description["architecture"])
        net.load_state_dict(tensors)
        return net.eval()

    @classmethod
    def from_published(cls, path: str | Path, heads: int = 8) -> "PopT":
        """Load weights of the published layout; sizes follow from the shapes.

        Parameters
        ----------
        path : str or Path
            A safetensors file.
        heads : int
            Number of attention heads, which no shape tells.

        Returns
        -------
        PopT
            In eval mode, with coordinates truncated as the reference does. The unused
            reconstruction head and the position table are passed over.
        """
        tensors, sizes = read_published(path, "transformer_encoder")
        net = cls(heads=heads, rounding="truncate", **sizes)
        wanted = net.state_dict()
        absent = sorted(set(wanted) - set(tensors))
        if absent:
            raise Refusal(
                f"file {path}",
                f"no tensor {', '.join(absent)}",
                "a PopT checkpoint with both heads",
                "give the file of the pretrained model",
            )
        net.load_state_dict({name: tensors[name] for name in wanted})
        return net.eval()


def with_cls(features: Tensor) -> Tensor:
    """Put the CLS input, a vector of ones, in front of (batch, channels, input_dim)."""
    ones = features.new_ones(features.shape[0], 1, features.shape[2])
    return torch.cat([ones, features], dim=1)
