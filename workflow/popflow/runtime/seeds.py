"""Random numbers that depend on a seed and a place, never on what was drawn before."""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def _entropy(seed: int, stream: tuple[int | str, ...]) -> list[int]:
    """Map a seed and the names of a stream to integers for a SeedSequence."""
    words = [int(seed)]
    for part in stream:
        if isinstance(part, str):
            part = int.from_bytes(hashlib.sha256(part.encode()).digest()[:8], "little")
        words.append(int(part))
    return words


def generator(seed: int, *stream: int | str) -> "np.random.Generator":
    """Give an independent NumPy generator for a seed and a stream.

    Parameters
    ----------
    seed : int
        Non-negative.
    *stream : int or str
        Names of the stream, e.g. ``("batch", step)``. The same names give the same numbers,
        whatever else was drawn: no sampler state has to be stored for a resume.

    Examples
    --------
    >>> from popflow.runtime.seeds import generator
    >>> bool(generator(0, "a", 1).random() == generator(0, "a", 1).random())
    True
    """
    import numpy as np

    return np.random.Generator(np.random.Philox(np.random.SeedSequence(_entropy(seed, stream))))


def torch_generator(seed: int, *stream: int | str) -> "torch.Generator":
    """Give an independent CPU torch generator for a seed and a stream (see `generator`)."""
    import torch

    return torch.Generator().manual_seed(int(generator(seed, *stream).integers(2**63 - 1)))


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch and ask torch for deterministic algorithms."""
    import os
    import random

    import numpy as np
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    # The same flag as use_deterministic_algorithms(True, warn_only=True), which takes seconds to
    # import a compiler that is not used here.
    torch.set_deterministic_debug_mode("warn")
    # No operation here reads memory that it did not write.
    torch.utils.deterministic.fill_uninitialized_memory = False
