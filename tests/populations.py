"""Small populations that several tests fit."""

import numpy as np
import pandas as pd

from popflow.prepare.intracranial import Session
from popflow.runtime.seeds import generator

POPT_SETTINGS = {
    "sizes": [10, 20],
    "size_per": "batch",
    "replaced": 0.1,
    "pair_gap_s": 0.25,
    "batch": 32,
    "rate": 1e-3,
    "optimiser": "adamw",
    "weight_decay": 0.01,
    "steps": 6,
    "schedule": "cosine",
    "warmup": 0.05,
    "steps_per_epoch": 3,
    "clip": 1.0,
    "coord_noise_mm": 0.0,
    "precision": "32-true",
    "loss_weights": {"ensemble": 1.0, "channel": 1.0},
}


def electrode_session(name: str, channels: int, windows: int = 400, dim: int = 12) -> Session:
    """Smooth shared sources seen by nearby channels."""
    rng = generator(0, name)
    lip = rng.uniform(80, 160, (channels, 3))
    places = generator(0, "sources").uniform(80, 160, (8, 3))
    reach = np.exp(-((lip[:, None] - places) ** 2).sum(-1) / (2 * 40.0**2))
    reach /= np.linalg.norm(reach, axis=1, keepdims=True)
    slow = rng.standard_normal((windows + 40, 8, dim))
    kernel = np.ones(16) / 4
    slow = np.apply_along_axis(np.convolve, 0, slow, kernel, "valid")[:windows]
    features = np.einsum("ck,tkd->tcd", reach, slow) + 0.3 * rng.standard_normal(
        (windows, channels, dim)
    )
    parts = np.repeat(["train", "validation", "test"], [windows // 2, windows // 10, windows])
    table = pd.DataFrame({"index": np.arange(windows), "part": parts[:windows]})
    table["t_s"] = table["index"] * 0.25
    empty = np.zeros((0, channels, dim))
    meta = {"encoder": {"name": "test", "dim": dim}, "window_s": 1.0, "stride_s": 0.25}
    electrodes = pd.DataFrame({"name": [f"A{i}" for i in range(channels)]})
    return Session(name, name, "both", features.astype(np.float32), table, empty, empty,
                   pd.DataFrame(), electrodes, lip, meta)  # fmt: skip
