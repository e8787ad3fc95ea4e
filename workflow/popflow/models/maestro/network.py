"""The set encoder and decoder of MAESTRO (Lee et al., ICLR 2025).

Encoder: a linear layer, induced set attention blocks (ISAB) and pooling by attention (PMA), all of
them blind to the order of the cells. Decoder: learned seeds attend to the pooled vector and a mask
token. B samples, N cells, D markers, d hidden width, L latent width.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SwiGLU(nn.Module):
    """``W3 (silu(W1 x) * W2 x)``, inner width as the input, with biases.

    Parameters
    ----------
    width, out : int
    """

    def __init__(self, width: int, out: int):
        super().__init__()
        self.w1, self.w2 = nn.Linear(width, width), nn.Linear(width, width)
        self.w3 = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to (..., out)."""
        return self.w3(F.silu(self.w1(x)) * self.w2(x))


class MAB(nn.Module):
    """Multi-head attention block: queries attend to keys, then a SwiGLU, each with a layer norm.

    The residual is the projected query; heads are concatenated without a further projection.
    Logits are divided by the square root of the head's width.

    Parameters
    ----------
    query, key : int
        Widths of the two inputs.
    width, heads : int
    """

    def __init__(self, query: int, key: int, width: int, heads: int):
        super().__init__()
        self.heads, self.width = heads, width
        self.wq, self.wk = nn.Linear(query, width), nn.Linear(key, width)
        self.wv = nn.Linear(key, width)
        self.norm0, self.norm1 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = SwiGLU(width, width)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def finish(self, query: Tensor, attended: Tensor) -> Tensor:
        """Add what was attended, (B, H, Nq, h), to the projected query, (B, Nq, width)."""
        x = self.norm0(query + attended.transpose(1, 2).flatten(2))
        return self.norm1(x + self.feed(x))

    def forward(self, query: Tensor, key: Tensor, log_weight: Tensor | None = None) -> Tensor:
        """Attend.

        Parameters
        ----------
        query : (B, Nq, query) Tensor
        key : (B, Nk, key) Tensor
        log_weight : (B, Nk) Tensor, optional
            Added to the logits of a key: the log of its multiplicity, ``-inf`` for padding.

        Returns
        -------
        (B, Nq, width) Tensor
        """
        q, bias = self.wq(query), None
        if log_weight is not None:
            bias = log_weight[:, None, None, :].to(q.dtype)
        attended = F.scaled_dot_product_attention(
            self._split(q), self._split(self.wk(key)), self._split(self.wv(key)), bias
        )
        return self.finish(q, attended)


class Softmax:
    """A softmax average over keys that arrive in chunks: exact, whatever their number.

    Parameters
    ----------
    block : MAB
    query : (B, Nq, query) Tensor
    """

    def __init__(self, block: MAB, query: Tensor):
        self.block, self.query = block, block.wq(query)
        self._q = block._split(self.query) / math.sqrt(block.width / block.heads)
        shape = self._q.shape
        self._largest = torch.full((*shape[:-1], 1), -math.inf, device=query.device)
        self._total = torch.zeros((*shape[:-1], 1), device=query.device)
        self._sum = torch.zeros(shape, device=query.device)

    def add(self, key: Tensor) -> None:
        """Take in a chunk of keys, (B, n, key)."""
        logits = self._q @ self.block._split(self.block.wk(key)).transpose(-1, -2)
        largest = torch.maximum(self._largest, logits.amax(-1, keepdim=True))
        shrink, weight = (self._largest - largest).exp(), (logits - largest).exp()
        self._sum = self._sum * shrink + weight @ self.block._split(self.block.wv(key))
        self._total = self._total * shrink + weight.sum(-1, keepdim=True)
        self._largest = largest

    def result(self) -> Tensor:
        """Give what `MAB.forward` gives for all keys at once."""
        return self.block.finish(self.query, self._sum / self._total)


class ISAB(nn.Module):
    """Induced set attention: learned points attend to the cells, the cells attend to the points.

    Parameters
    ----------
    width, heads : int
    inducing : int
        Number of learned points M; cost grows with N M instead of N².
    """

    def __init__(self, width: int, heads: int, inducing: int):
        super().__init__()
        self.points = nn.Parameter(torch.empty(1, inducing, width))
        nn.init.xavier_uniform_(self.points)
        self.gather = MAB(width, width, width, heads)
        self.spread = MAB(width, width, width, heads)

    def forward(self, x: Tensor, log_weight: Tensor | None = None) -> Tensor:
        """Map cells (B, N, width) to cells."""
        points = self.gather(self.points.expand(len(x), -1, -1), x, log_weight)
        return self.apply_points(x, points)

    def apply_points(self, x: Tensor, points: Tensor) -> Tensor:
        """Give the cells' new states from the points' states (B, M, width)."""
        return self.spread(x, points) + x


class PMA(nn.Module):
    """Pooling by multi-head attention: learned seeds attend to a set.

    Parameters
    ----------
    seeds : int
    key, width, heads : int
    """

    def __init__(self, seeds: int, key: int, width: int, heads: int):
        super().__init__()
        self.seeds = nn.Parameter(torch.empty(1, seeds, width))
        nn.init.xavier_uniform_(self.seeds)
        self.block = MAB(width, key, width, heads)

    def forward(self, x: Tensor, log_weight: Tensor | None = None) -> Tensor:
        """Map a set (B, N, key) to (B, seeds, width)."""
        return self.block(self.seeds.expand(len(x), -1, -1), x, log_weight)


class Standardiser(nn.Module):
    """Centre and scale the pooled vector by running statistics, kept as buffers.

    Without it the vectors of all samples are nearly alike, and the teacher's targets uniform.

    Parameters
    ----------
    width : int
    memory : int
        Number of batches that the running mean looks back, once so many were seen.
    """

    def __init__(self, width: int, memory: int = 50):
        super().__init__()
        self.memory = memory
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def update(self, z: Tensor) -> None:
        """Take in a batch of vectors (B, width)."""
        z = z.detach().float()
        self.batches += 1
        rate = 1.0 / min(int(self.batches), self.memory)
        # Deviations from the running mean also count how far batches lie apart.
        self.mean += rate * (z.mean(0) - self.mean)
        spread = ((z - self.mean) ** 2).mean(0)
        self.variance += rate * (spread - self.variance)

    def forward(self, z: Tensor) -> Tensor:
        """Standardise (..., width)."""
        return (z - self.mean) / torch.sqrt(self.variance + 1e-5)


@dataclass
class Sizes:
    """The sizes of a network.

    Attributes
    ----------
    markers : int
        D.
    width, latent : int
        d and L.
    heads, blocks, inducing : int
    outputs : int
        Decoded cells, N_out.
    decoder_blocks : int
    cell_weights : bool
        Whether decoded cells have learned weights.
    standardise : bool
        Whether the pooled vector is standardised.
    """

    markers: int
    width: int
    latent: int
    heads: int
    blocks: int
    inducing: int
    outputs: int
    decoder_blocks: int
    cell_weights: bool
    standardise: bool


class Encoder(nn.Module):
    """Cells to one pooled vector, and its projection for distillation.

    Parameters
    ----------
    sizes : Sizes
    """

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.embed = nn.Linear(sizes.markers, sizes.width)
        self.blocks = nn.ModuleList(
            ISAB(sizes.width, sizes.heads, sizes.inducing) for _ in range(sizes.blocks)
        )
        self.pool = PMA(1, sizes.width, sizes.latent, sizes.heads)
        self.standardiser = Standardiser(sizes.latent) if sizes.standardise else None
        self.project = nn.Sequential(
            nn.Linear(sizes.latent, sizes.latent),
            nn.ReLU(),
            nn.Linear(sizes.latent, sizes.latent),
        )

    def states(self, cells: Tensor, log_weight: Tensor | None = None) -> Tensor:
        """Give the last states of the cells, (B, N, d)."""
        x = self.embed(cells)
        for block in self.blocks:
            x = block(x, log_weight)
        return x

    def forward(
        self, cells: Tensor, log_weight: Tensor | None = None, update: bool = False
    ) -> Tensor:
        """Pool a set.

        Parameters
        ----------
        cells : (B, N, D) Tensor
        log_weight : (B, N) Tensor, optional
            0 for a cell, ``-inf`` for padding.
        update : bool
            Whether the running statistics of the pooled vector take in this batch.

        Returns
        -------
        (B, L) Tensor
            Standardised where the sizes say so.
        """
        z = self.pool(self.states(cells, log_weight), log_weight)[:, 0]
        if self.standardiser is None:
            return z
        if update:
            self.standardiser.update(z)
        return self.standardiser(z)

    @torch.no_grad()
    def stream(self, chunks: Callable[[], Iterable[Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
        """Pool one set of any size in bounded memory; equal to `forward` on the whole set.

        Every attention over cells is a softmax average, which is summed up chunk by chunk: one
        pass per block and one for the pooling.

        Parameters
        ----------
        chunks : callable
            Gives the chunks of cells, each (n, D), from the start, at every call.

        Returns
        -------
        z : (L,) Tensor
        mean, sd : (d,) Tensor
            Of the last states of the cells.
        """
        if (whole := _only_one(chunks())) is not None:
            x = self.states(whole[None])
            pooled = self.pool(x)[:, 0]
            z = pooled if self.standardiser is None else self.standardiser(pooled)
            return z[0], x[0].mean(0), x[0].std(0, correction=0)
        done: list[Tensor] = []
        for block in self.blocks:
            attention = Softmax(block.gather, block.points)
            for cells in chunks():
                attention.add(self._states_after(cells, done))
            done.append(attention.result())
        pooled = Softmax(self.pool.block, self.pool.seeds)
        count, first, second = 0, 0.0, 0.0
        for cells in chunks():
            x = self._states_after(cells, done)
            pooled.add(x)
            count += x.shape[1]
            first = first + x.double().sum((0, 1))
            second = second + (x.double() ** 2).sum((0, 1))
        z = pooled.result()[:, 0]
        z = z if self.standardiser is None else self.standardiser(z)
        mean = first / count
        sd = (second / count - mean**2).clamp_min(0).sqrt()
        return z[0], mean.float(), sd.float()

    def _states_after(self, cells: Tensor, done: list[Tensor]) -> Tensor:
        """Give the states of a chunk after the blocks whose points are known."""
        x = self.embed(cells[None])
        for block, points in zip(self.blocks, done, strict=False):
            x = block.apply_points(x, points)
        return x


def _only_one(chunks: Iterable[Tensor]) -> Tensor | None:
    """Give the chunk of a set that has just one."""
    taken = list(islice(chunks, 2))
    return taken[0] if len(taken) == 1 else None


class Decoder(nn.Module):
    """The pooled vector and the hidden share to a weighted set of cells.

    The token sequence of the paper holds the pooled vector where a cell is visible and a learned
    mask token where it is hidden, thus two distinct vectors only. Attention over it equals
    attention over these two with the log of their counts added to the logits.

    Parameters
    ----------
    sizes : Sizes
    """

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.mask_token = nn.Parameter(torch.empty(1, 1, sizes.latent))
        nn.init.xavier_uniform_(self.mask_token)
        self.pool = PMA(sizes.outputs, sizes.latent, sizes.width, sizes.heads)
        self.blocks = nn.ModuleList(
            MAB(sizes.width, sizes.width, sizes.width, sizes.heads)
            for _ in range(sizes.decoder_blocks)
        )
        self.out = SwiGLU(sizes.width, sizes.markers)
        self.weigh = nn.Linear(sizes.width, 1) if sizes.cell_weights else None

    def forward(self, z: Tensor, visible: int, hidden: int) -> tuple[Tensor, Tensor]:
        """Decode.

        Parameters
        ----------
        z : (B, L) Tensor
        visible, hidden : int
            Number of visible and of hidden cells.

        Returns
        -------
        cells : (B, N_out, D) Tensor
        weights : (B, N_out) Tensor
            Sum to 1.
        """
        tokens = torch.cat([z[:, None], self.mask_token.expand(len(z), -1, -1)], dim=1)
        counts = torch.tensor([visible, hidden], dtype=z.dtype, device=z.device)
        x = self.pool(tokens, counts.log().expand(len(z), 2))
        for block in self.blocks:
            x = block(x, x) + x
        if self.weigh is None:
            weights = x.new_full(x.shape[:2], 1.0 / x.shape[1])
        else:
            weights = self.weigh(x)[..., 0].softmax(dim=-1)
        return self.out(x), weights
