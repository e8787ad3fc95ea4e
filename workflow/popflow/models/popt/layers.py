"""The transformer layers and the position code that PopT and BrainBERT share."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def position_code(values: Tensor, width: int) -> Tensor:
    """Evaluate the sinusoidal code at real-valued positions.

    PE_2k(q) = sin(q w_k), PE_2k+1(q) = cos(q w_k), w_k = 10000^(-2k / width).

    Parameters
    ----------
    values : Tensor
        Positions, any shape; integers give the table of the published code.
    width : int
        Even number of entries per position.

    Returns
    -------
    Tensor
        Shape ``values.shape + (width,)``, float32.
    """
    even = torch.arange(0, width, 2, dtype=torch.float64, device=values.device)
    angle = values.to(torch.float64).unsqueeze(-1) * 10000.0 ** (-even / width)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).to(torch.float32)


class SelfAttention(nn.Module):
    """Multi-head self-attention through the fused kernel; q, k, v stacked in `in_proj_weight`."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, z: Tensor, keep: Tensor | None) -> Tensor:
        """Attend; `keep` is (batch, tokens), False where a token must not be looked at."""
        batch, tokens, width = z.shape
        stacked = functional.linear(z, self.in_proj_weight, self.in_proj_bias)
        q, k, v = stacked.view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mask = None if keep is None else keep[:, None, None, :]
        drop = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop)
        return self.out_proj(mixed.transpose(1, 2).reshape(batch, tokens, width))


class EncoderLayer(nn.Module):
    """Post-norm layer: z = LN(z + MHA(z)); z = LN(z + W2 GELU(W1 z))."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float):
        super().__init__()
        self.self_attn = SelfAttention(width, heads, dropout)
        self.linear1 = nn.Linear(width, feedforward)
        self.linear2 = nn.Linear(feedforward, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)

    def forward(self, z: Tensor, keep: Tensor | None) -> Tensor:
        """Map tokens (batch, tokens, width) to tokens."""
        z = self.norm1(z + self.drop(self.self_attn(z, keep)))
        inner = self.drop(functional.gelu(self.linear1(z)))
        return self.norm2(z + self.drop(self.linear2(inner)))


class Encoder(nn.Module):
    """A stack of `EncoderLayer` without a final norm."""

    def __init__(self, layers: int, width: int, heads: int, feedforward: int, dropout: float):
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(width, heads, feedforward, dropout) for _ in range(layers)
        )

    def forward(self, z: Tensor, pad_mask: Tensor | None) -> Tensor:
        """Map tokens to tokens; `pad_mask` is True at padding, None when there is none."""
        keep = None if pad_mask is None else ~pad_mask
        for layer in self.layers:
            z = layer(z, keep)
        return z


class InputEncoding(nn.Module):
    """Dropout(LayerNorm(W x + b + code))."""

    def __init__(self, input_dim: int, width: int, dropout: float):
        super().__init__()
        self.in_proj = nn.Linear(input_dim, width)
        self.layer_norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        """Project features (batch, tokens, input_dim) and add their code."""
        return self.drop(self.layer_norm(self.in_proj(x) + code))


def initialise(module: nn.Module, init: str) -> None:
    """Set linear biases to 0, and LayerNorm biases to 0 (`default`) or 1 (`reference`)."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LayerNorm):
            nn.init.constant_(part.bias, 1.0 if init == "reference" else 0.0)
