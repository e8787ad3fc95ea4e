"""The pretraining examples: pairs of ensembles and swapped channels (Chau et al. 2025).

A batch is a pure function of seed and step. Only indices are drawn here; features are gathered
by `gather`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from popflow.runtime.seeds import generator


@dataclass
class Pairs:
    """Indices of a batch of b examples with up to n channels.

    Attributes
    ----------
    session : (b,) int
    first, second, donor : (b,) int
        Window indices of ensemble A, ensemble B and the donor of swapped channels.
    random : (b,) bool
        True when `second` is a random moment, False when it follows `first`.
    channel : (b, n) int
        Channel of each token; -1 is padding.
    segment : (b, n) int
        0 for ensemble A, 1 for B.
    replaced, scored : (b, n) bool
        `scored` are the replaced ones and those kept for the channel objective.
    donor_channel : (b, n) int
        Channel of the donor window that replaces a token.
    """

    session: np.ndarray
    first: np.ndarray
    second: np.ndarray
    donor: np.ndarray
    random: np.ndarray
    channel: np.ndarray
    segment: np.ndarray
    replaced: np.ndarray
    scored: np.ndarray
    donor_channel: np.ndarray


class PairSampler:
    """Draw pretraining examples.

    Parameters
    ----------
    channels : sequence of int
        Number of channels of each session.
    blocks : sequence of (session, start, stop)
        Stretches of consecutive windows; both moments and the donor come from one block, so no
        example reaches from one split into another.
    sizes : sequence of int
        Ensemble sizes n, drawn uniformly and capped at the channels of the session.
    batch : int
        Examples per batch.
    seed : int
    size_per : {"batch", "sample"}
        One n for the whole batch (no padding as long as every session has so many), or one each.
    replaced : float
        Share of channels in the channel objective (rho): half is replaced, half kept and scored.
    gap : int
        Windows from the first to the second moment of a consecutive pair.
    """

    def __init__(
        self,
        channels: Sequence[int],
        blocks: Sequence[tuple[int, int, int]],
        sizes: Sequence[int],
        batch: int,
        seed: int,
        size_per: str = "batch",
        replaced: float = 0.1,
        gap: int = 1,
    ):
        usable = [block for block in blocks if block[2] - block[1] > gap]
        if not usable:
            raise ValueError(f"no block is longer than the gap of {gap} windows")
        self.blocks = np.asarray(usable)
        self.channels, self.sizes = np.asarray(channels), np.asarray(sizes)
        self.batch, self.seed, self.size_per = batch, seed, size_per
        self.replaced, self.gap = replaced, gap

    def draw(self, step: int) -> Pairs:
        """Draw the batch of a step."""
        rng, b = generator(self.seed, "pairs", step), self.batch
        lengths = self.blocks[:, 2] - self.blocks[:, 1]
        block = rng.choice(
            len(lengths), size=b, p=(lengths - self.gap) / (lengths - self.gap).sum()
        )
        session, start, _ = self.blocks[block].T
        length = lengths[block]
        first = start + (rng.random(b) * (length - self.gap)).astype(int)
        random = rng.random(b) < 0.5
        second = np.where(random, start + (rng.random(b) * length).astype(int), first + self.gap)
        donor = start + (rng.random(b) * length).astype(int)
        drawn = rng.choice(self.sizes, size=1 if self.size_per == "batch" else b)
        size = np.minimum(drawn, self.channels[session])
        channel, segment = self._ensembles(rng, session, size)
        other = self._shuffled(rng, session)
        donor_channel = np.take_along_axis(other, np.maximum(channel, 0), axis=1)
        real, half = channel >= 0, self.replaced / 2
        replaced = (rng.random(channel.shape) < half) & real
        kept = (rng.random(channel.shape) < half) & real & ~replaced
        marks = replaced, replaced | kept
        return Pairs(session, first, second, donor, random, channel, segment, *marks, donor_channel)

    def _shuffled(self, rng: np.random.Generator, session: np.ndarray) -> np.ndarray:
        """Permute the channels of each example's session; the others come last."""
        most = int(self.channels.max())
        keys = rng.random((len(session), most))
        keys[np.arange(most) >= self.channels[session][:, None]] = 2.0
        return np.argsort(keys, axis=1)

    def _ensembles(
        self, rng: np.random.Generator, session: np.ndarray, size: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose disjoint A (floor(n / 2) channels) and B (the rest), each sorted; pad with -1."""
        most = int(size.max())
        chosen = self._shuffled(rng, session)[:, :most]
        place = np.arange(most)
        segment = (place >= (size // 2)[:, None]).astype(int)
        padding = place >= size[:, None]
        far = self.channels.max() + 1
        order = np.argsort(chosen + far * segment + 2 * far * padding, axis=1, kind="stable")
        channel = np.where(padding, -1, np.take_along_axis(chosen, order, axis=1))
        return channel, np.where(padding, 0, segment)


def gather(
    pairs: Pairs,
    features: Sequence[np.ndarray],
    places: Sequence[np.ndarray],
    scaling: Sequence[tuple[np.ndarray, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Collect the tokens of a batch.

    Parameters
    ----------
    pairs : Pairs
    features : sequence of ndarray
        Per session (windows, channels, dim), may be memory-mapped.
    places : sequence of ndarray
        Per session (channels, 3), L, I, P.
    scaling : sequence of (mean, spread)
        Per session (channels, dim), of its training part. A swapped vector is standardised as
        the channel that it comes from, so that no offset of an electrode gives it away.

    Returns
    -------
    dict of str to ndarray
        x (b, 1 + n, dim) with the CLS input first, coords (b, n, 3), segment (b, n), padding
        (b, 1 + n), random (b,), replaced and scored (b, n).
    """
    count, most = pairs.channel.shape
    dim = features[0].shape[-1]
    x = np.ones((count, 1 + most, dim), dtype=np.float32)
    coords = np.zeros((count, most, 3))
    time = np.where(pairs.segment == 0, pairs.first[:, None], pairs.second[:, None])
    time = np.where(pairs.replaced, pairs.donor[:, None], time)
    row = np.where(pairs.replaced, pairs.donor_channel, np.maximum(pairs.channel, 0))
    for session in np.unique(pairs.session):
        mine = np.flatnonzero(pairs.session == session)
        mean, spread = scaling[session]
        values = features[session][time[mine], row[mine]]
        x[mine, 1:] = (values - mean[row[mine]]) / spread[row[mine]]
        coords[mine] = places[session][np.maximum(pairs.channel[mine], 0)]
    padding = np.concatenate([np.zeros((count, 1), dtype=bool), pairs.channel < 0], axis=1)
    return {
        "x": x,
        "coords": coords,
        "segment": pairs.segment,
        "padding": padding,
        "random": pairs.random,
        "replaced": pairs.replaced,
        "scored": pairs.scored,
    }
