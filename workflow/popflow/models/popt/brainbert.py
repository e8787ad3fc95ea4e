"""BrainBERT (Wang et al., ICLR 2023), the temporal encoder that PopT was published with."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from popflow.models.popt.layers import Encoder, InputEncoding, initialise, position_code
from popflow.models.popt.published import read_published

POOLED_FRAMES = 10


@dataclass
class BrainBERTOutput:
    """Hidden frames (batch, frames, width) and reconstruction (batch, frames, bins)."""

    hidden: Tensor
    reconstruction: Tensor


class _SpectrumHead(nn.Module):
    def __init__(self, width: int, bins: int):
        super().__init__()
        self.hidden_layer = nn.Linear(width, width)
        self.layer_norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, bins)

    def forward(self, z: Tensor) -> Tensor:
        return self.output(self.layer_norm(functional.gelu(self.hidden_layer(z))))


class BrainBERT(nn.Module):
    """Transformer over the frames of one channel's time-frequency image.

    Parameters
    ----------
    input_dim : int
        Frequency bins.
    width, heads, layers, feedforward : int
        Published sizes are the defaults.
    dropout : float
    """

    def __init__(
        self,
        input_dim: int = 40,
        width: int = 768,
        heads: int = 12,
        layers: int = 6,
        feedforward: int = 3072,
        dropout: float = 0.1,
    ):
        super().__init__()
        self.width = width
        self.input_encoding = InputEncoding(input_dim, width, dropout)
        self.transformer = Encoder(layers, width, heads, feedforward, dropout)
        self.spec_prediction_head = _SpectrumHead(width, input_dim)
        initialise(self, "default")

    def forward(self, spectrogram: Tensor, pad_mask: Tensor | None = None) -> BrainBERTOutput:
        """Encode images (batch, frames, bins)."""
        frames = torch.arange(spectrogram.shape[1], device=spectrogram.device)
        z = self.input_encoding(spectrogram, position_code(frames, self.width).unsqueeze(0))
        hidden = self.transformer(z, pad_mask)
        return BrainBERTOutput(hidden, self.spec_prediction_head(hidden))

    def pooled(self, spectrogram: Tensor) -> Tensor:
        """Give the mean of the ten central frames of the last layer (batch, width)."""
        middle = spectrogram.shape[1] // 2
        if spectrogram.shape[1] < POOLED_FRAMES:
            raise ValueError(f"{spectrogram.shape[1]} frames; at least {POOLED_FRAMES} are pooled")
        return self(spectrogram).hidden[:, middle - 5 : middle + 5].mean(dim=1)

    @classmethod
    def from_published(cls, path: str | Path, heads: int = 12) -> "BrainBERT":
        """Load weights of the published layout (safetensors), in eval mode."""
        tensors, sizes = read_published(path, "transformer")
        net = cls(heads=heads, **sizes)
        net.load_state_dict({name: tensors[name] for name in net.state_dict()})
        return net.eval()
