"""The masked autoencoder over clusters of dimensions (Yun et al. 2025)."""

import math
from typing import Any

import torch
from torch import nn


class Gather(nn.Module):
    """Sort dimensions into clusters, padded to the largest, and back.

    Parameters
    ----------
    labels : (n,) int tensor
        Cluster of each dimension, 0 … M-1.
    """

    def __init__(self, labels: torch.Tensor):
        super().__init__()
        sizes = torch.bincount(labels)
        index = torch.zeros(len(sizes), int(sizes.max()), dtype=torch.long)
        valid = torch.zeros_like(index, dtype=torch.bool)
        for cluster in range(len(sizes)):
            members = torch.nonzero(labels == cluster).flatten()
            index[cluster, : len(members)] = members
            valid[cluster, : len(members)] = True
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("valid", valid, persistent=False)
        place = torch.empty(len(labels), dtype=torch.long)
        place[index[valid]] = torch.nonzero(valid.flatten()).flatten()
        self.register_buffer("place", place, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, n) -> (B, M, k), zeros where a cluster is smaller than k."""
        return x[:, self.index] * self.valid

    def scatter(self, grouped: torch.Tensor) -> torch.Tensor:
        """(B, M, k) -> (B, n); padding is dropped."""
        return grouped.flatten(1)[:, self.place]


class ClusterProjection(nn.Module):
    """A linear map per cluster, not shared (the self-organising layer), or one for all.

    Parameters
    ----------
    sizes : (M,) int tensor
        True size of each cluster: the weights start uniform within ±1/sqrt(fan-in), where padding
        does not count.
    inputs, outputs : int
    shared : bool
    fan_in_is_cluster : bool
        True for the map into tokens (fan-in is the cluster), False for the one out of them.
    """

    def __init__(
        self,
        sizes: torch.Tensor,
        inputs: int,
        outputs: int,
        shared: bool,
        fan_in_is_cluster: bool,
        generator: torch.Generator,
    ):
        super().__init__()
        maps = 1 if shared else len(sizes)
        fan = sizes.float() if fan_in_is_cluster else torch.full((len(sizes),), float(inputs))
        bound = (fan.mean().reshape(1) if shared else fan).rsqrt().reshape(-1, 1, 1)
        weight = torch.rand(maps, inputs, outputs, generator=generator)
        self.weight = nn.Parameter((weight * 2 - 1) * bound)
        self.bias = nn.Parameter(torch.zeros(maps, outputs))
        self.shared = shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, M, inputs) -> (B, M, outputs)."""
        if self.shared:
            return x @ self.weight[0] + self.bias[0]
        return torch.baddbmm(self.bias.unsqueeze(1), x.transpose(0, 1), self.weight).transpose(0, 1)


class MaskedAutoencoder(nn.Module):
    """Encode the visible clusters, decode all of them.

    Parameters
    ----------
    labels : (n,) int tensor
        Cluster of each dimension.
    settings : dict
        The block `network` of the preset.
    generator : torch.Generator
        Of the initial weights of the maps, positions and tokens.
    """

    def __init__(self, labels: torch.Tensor, settings: dict[str, Any], generator: torch.Generator):
        super().__init__()
        self.gather = Gather(labels)
        sizes = torch.bincount(labels)
        width, largest, tokens = settings["width"], int(sizes.max()), len(sizes)
        shared = settings["projection"] == "shared"
        self.unit_norm = settings["unit_norm"]
        self.inward = ClusterProjection(sizes, largest, width, shared, True, generator)
        self.outward = ClusterProjection(sizes, width, largest, shared, False, generator)
        self.encoder_position = _small(generator, tokens, width)
        self.decoder_position = _small(generator, tokens + 1, width)
        self.class_token = _small(generator, 1, width)
        self.mask_token = _small(generator, 1, width)
        self.encoder = _blocks(settings, settings["encoder_depth"])
        self.decoder = _blocks(settings, settings["decoder_depth"])
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    @property
    def tokens(self) -> int:
        """Number of clusters M."""
        return len(self.encoder_position)

    def encode(self, x: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Encode samples, (B, n) -> (B, 1 + T, width), class token first.

        Parameters
        ----------
        x : (B, n) tensor
        keep : (B, T) int tensor, optional
            The visible clusters of each sample; all of them when absent. Hidden ones never enter.
        """
        z = self.inward(self.gather(x)) + self.encoder_position
        if keep is not None:
            z = torch.gather(z, 1, keep.unsqueeze(-1).expand(-1, -1, z.shape[-1]))
        z = torch.cat([self.class_token.expand(len(x), 1, -1), z], 1)
        z = self.encoder_norm(self.encoder(z))
        return nn.functional.normalize(z, dim=-1) if self.unit_norm else z

    def decode(self, z: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Decode tokens of `encode` to all dimensions, (B, 1 + T, width) -> (B, n)."""
        whole = z
        if keep is not None:
            hidden = self.mask_token.expand(len(z), self.tokens, -1).to(z.dtype)
            index = keep.unsqueeze(-1).expand(-1, -1, z.shape[-1])
            whole = torch.cat([z[:, :1], hidden.scatter(1, index, z[:, 1:])], 1)
        y = self.decoder_norm(self.decoder(whole + self.decoder_position))
        return self.gather.scatter(self.outward(y[:, 1:]))


def _small(generator: torch.Generator, *shape: int) -> nn.Parameter:
    tensor = torch.empty(*shape)
    nn.init.trunc_normal_(tensor, std=0.02, generator=generator)
    return nn.Parameter(tensor)


def _blocks(settings: dict[str, Any], depth: int) -> nn.TransformerEncoder:
    """Build pre-norm transformer blocks without dropout."""
    width = settings["width"]
    layer = nn.TransformerEncoderLayer(
        width,
        max(1, width // settings["head_width"]),
        int(width * settings["mlp_ratio"]),
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
    )
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def visible_clusters(
    batch: int, tokens: int, mask_ratio: float, generator: torch.Generator
) -> torch.Tensor:
    """Draw the visible clusters of each sample: (batch, floor(tokens · (1 - ratio))) indices."""
    keep = max(1, math.floor(tokens * (1 - mask_ratio) + 1e-9))
    return torch.rand(batch, tokens, generator=generator).argsort(1)[:, :keep]


def hidden_dimensions(keep: torch.Tensor, labels: torch.Tensor, tokens: int) -> torch.Tensor:
    """Tell which dimensions are hidden, (B, n) bool."""
    hidden = torch.ones(len(keep), tokens, dtype=torch.bool, device=keep.device)
    hidden.scatter_(1, keep, False)
    return hidden[:, labels]


def reconstruction_loss(
    predicted: torch.Tensor, x: torch.Tensor, counted: torch.Tensor, kind: str
) -> torch.Tensor:
    """Mean error over counted entries: their true number, not the mask ratio, divides.

    Clusters differ in size, so the hidden share of dimensions is not the mask ratio. Entries that
    are NaN in `x` never count.
    """
    counted = counted & torch.isfinite(x)
    error = torch.where(counted, predicted - torch.nan_to_num(x), torch.zeros_like(predicted))
    if kind == "huber":
        error = torch.where(error.abs() <= 1, 0.5 * error**2, error.abs() - 0.5)
    else:
        error = error**2
    return error.sum() / counted.sum().clamp(min=1)
