"""Fit URLOST to a matrix and use it, from arrays."""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from popflow.inputs.config import preset as read_preset
from popflow.inputs.settings import resolve
from popflow.models.urlost.clusters import Clusters, cluster_dimensions
from popflow.models.urlost.network import (
    MaskedAutoencoder,
    hidden_dimensions,
    reconstruction_loss,
    visible_clusters,
)
from popflow.runtime.artefacts import load_model, save_model
from popflow.runtime.files import atomic
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator, torch_generator
from popflow.runtime.training import Task, train

log = logging.getLogger(__name__)


class MaskedTask(Task):
    """Masked reconstruction of samples.

    Parameters
    ----------
    module : MaskedAutoencoder
    x, held_out : (N, n) float32 tensor
        Training rows, and rows whose reconstruction is followed (may be empty).
    labels : (n,) int tensor
    settings : dict
        The whole preset.
    seed : int
    """

    def __init__(self, module, x, held_out, labels, settings, seed):
        options = settings["training"]
        self.module, self.x, self.held_out, self.labels = module, x, held_out, labels
        self.objective, self.seed = settings["objective"], seed
        self.size = min(options["batch"], len(x))
        self.steps_per_epoch = max(1, len(x) // self.size)
        epochs = max(options["epochs"], -(-options["min_updates"] // self.steps_per_epoch))
        self.steps = epochs * self.steps_per_epoch
        self.clip = options["clip"]
        self.optimizer = torch.optim.AdamW(
            module.parameters(),
            lr=options["learning_rate"],
            betas=(0.9, 0.95),
            weight_decay=options["weight_decay"],
        )
        warm = max(1, round(options["warmup"] * self.steps))
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: _warm_cosine(step, warm, self.steps)
        )

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Give rows of the epoch's permutation, and their visible clusters."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = generator(self.seed, "order", epoch).permutation(len(self.x))
        rows = order[place * self.size : (place + 1) * self.size]
        keep = visible_clusters(
            len(rows),
            self.module.tokens,
            self.objective["mask_ratio"],
            torch_generator(self.seed, "mask", step),
        )
        return self.x[torch.from_numpy(rows)], keep

    def losses(self, batch, step: int) -> dict[str, torch.Tensor]:
        """Reconstruct what is hidden; everything, when nothing is."""
        x, keep = batch
        predicted = self.module.decode(self.module.encode(torch.nan_to_num(x), keep), keep)
        hidden = hidden_dimensions(keep, self.labels.to(x.device), self.module.tokens)
        if self.objective["mask_ratio"] == 0:
            hidden = torch.ones_like(hidden)
        return {"loss": reconstruction_loss(predicted, x, hidden, self.objective["loss"])}

    def validate(self, step: int) -> dict[str, float]:
        """Reconstruct held-out rows under masks that are the same after every epoch."""
        if not len(self.held_out):
            return {}
        keep = visible_clusters(
            len(self.held_out),
            self.module.tokens,
            self.objective["mask_ratio"],
            torch_generator(self.seed, "validation mask"),
        )
        device = next(self.module.parameters()).device
        loss = self.losses((self.held_out.to(device), keep.to(device)), step)["loss"]
        return {"held_out_loss": float(loss)}


def _warm_cosine(step: int, warm: int, steps: int) -> float:
    """Rise linearly, then fall by half a cosine."""
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


class Urlost:
    """Unsupervised representation of vectors whose dimensions have no known layout.

    Dimensions are clustered by what they share, each cluster becomes a token by its own linear map,
    and a masked autoencoder is trained over the tokens (Yun et al., ICLR 2025).

    Parameters
    ----------
    preset : str
        A name in config/presets/urlost.yaml.
    variant : str
        A variant in that file.
    seed : int
        Of weights, order and masks.
    device : {"auto", "cpu", "cuda"}
    settings : dict, optional
        A complete preset, instead of `preset` and `variant`.

    Attributes
    ----------
    clusters_ : (n,) int array
        Cluster of each dimension.
    clustering_ : Clusters
        Graph and diagnostics.
    history_ : DataFrame

    Examples
    --------
    >>> import numpy as np
    >>> from popflow.models.urlost import Urlost
    >>> x = np.random.default_rng(0).normal(size=(40, 48)).astype("float32")
    >>> model = Urlost(seed=0)
    >>> model.settings["clusters"]["number"], model.settings["training"]["min_updates"] = 4, 5
    >>> model.fit(x).transform(x).shape
    (40, 256)
    """

    def __init__(
        self,
        preset: str = "small",
        variant: str = "default",
        seed: int = 0,
        device: str = "cpu",
        settings: dict[str, Any] | None = None,
    ):
        given = settings or read_preset("urlost", preset, variant)
        self.settings = resolve("preset-urlost", given, "settings of Urlost")
        self.seed, self.device = seed, device
        self.names_: list[str] | None = None
        self.clustering_: Clusters | None = None
        self.history_ = pd.DataFrame(columns=["epoch", "step", "loss", "lr", "seconds"])

    def fit(
        self,
        x: np.ndarray,
        x_val: np.ndarray | None = None,
        names: list[str] | None = None,
        checkpoints: str | Path | None = None,
        title: str = "urlost",
    ) -> "Urlost":
        """Cluster the dimensions and train the autoencoder.

        Parameters
        ----------
        x : (N, n) float array
            Training samples, standardised per dimension.
        x_val : (V, n) float array, optional
            Rows whose reconstruction is followed.
        names : list of str, optional
            Names of the dimensions, checked by `transform`.
        checkpoints : path, optional
            An interrupted fit goes on from here.
        """
        x = np.asarray(x, np.float32)
        self.clustering_ = cluster_dimensions(
            x, self.settings["clusters"]["number"], self.settings["affinity"], self._options()
        )
        self.clusters_ = self.clustering_.labels
        self.names_ = list(names) if names is not None else None
        self._build()
        if self.settings["training"]["epochs"] > 0:
            empty = np.empty((0, x.shape[1]), np.float32)
            held_out = torch.from_numpy(np.asarray(empty if x_val is None else x_val, np.float32))
            labels = torch.from_numpy(self.clusters_)
            task = MaskedTask(
                self.module_, torch.from_numpy(x), held_out, labels, self.settings, self.seed
            )
            precision = self.settings["training"]["precision"]
            self.history_ = train(task, checkpoints, self.device, precision, self.seed, title)
        self.module_.eval().to("cpu")
        return self

    def _options(self) -> dict[str, Any]:
        return {k: v for k, v in self.settings["clusters"].items() if k != "number"}

    def _build(self) -> None:
        """Make the network with weights drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            labels = torch.from_numpy(np.asarray(self.clusters_))
            weights = torch_generator(self.seed, "weights")
            self.module_ = MaskedAutoencoder(labels, self.settings["network"], weights)

    def transform(
        self,
        x: np.ndarray,
        names: list[str] | None = None,
        features: str = "concat",
        batch: int = 512,
    ) -> np.ndarray:
        """Represent samples, without masking.

        Parameters
        ----------
        x : (N, n) float array
        names : list of str, optional
            Names of the columns; put into the order of the fit when it knew names.
        features : {"concat", "mean", "class"}
            All tokens side by side (M · width), their mean, or the class token (width).
        """
        x = self._aligned(x, names)
        parts = []
        with torch.no_grad():
            for start in range(0, len(x), batch):
                z = self.module_.encode(torch.from_numpy(x[start : start + batch]))
                part = {"concat": z[:, 1:].flatten(1), "mean": z[:, 1:].mean(1), "class": z[:, 0]}
                parts.append(part[features].numpy())
        return np.concatenate(parts)

    def reconstruct(self, x: np.ndarray, names: list[str] | None = None) -> np.ndarray:
        """Reconstruct samples from all of their clusters, (N, n)."""
        with torch.no_grad():
            z = self.module_.encode(torch.from_numpy(self._aligned(x, names)))
            return self.module_.decode(z).numpy()

    def _aligned(self, x: np.ndarray, names: list[str] | None) -> np.ndarray:
        """Check the columns, or put them into the order of the fit by name."""
        if not hasattr(self, "clusters_"):
            raise Refusal("Urlost", "not fitted", "a fitted model", "call fit, or load one")
        x, expected = np.asarray(x, np.float32), len(self.clusters_)
        if names is not None and self.names_ is not None:
            place = {name: i for i, name in enumerate(names)}
            absent = [name for name in self.names_ if name not in place]
            if absent:
                found = f"{len(absent)} dimensions of the fit are absent, e.g. {absent[0]}"
                fix = "give the table that the model was fitted on, or fit anew"
                raise Refusal("columns", found, "every dimension of the fit", fix)
            x = x[:, [place[name] for name in self.names_]]
        if x.ndim != 2 or x.shape[1] != expected:
            fix = "give names=, or the columns in the order of the fit"
            raise Refusal("columns", f"an array of {x.shape}", f"(samples, {expected})", fix)
        if not np.isfinite(x).all():
            rows = int((~np.isfinite(x)).any(1).sum())
            raise Refusal("rows", f"{rows} hold NaN or infinity", "finite values", "impute or drop")
        return np.ascontiguousarray(x)

    def save(self, folder: str | Path, **description: Any) -> None:
        """Write weights and description; `description` adds to model.json."""
        described = {
            "model": "urlost",
            "settings": self.settings,
            "seed": self.seed,
            "names": self.names_,
            "clusters": np.asarray(self.clusters_).tolist(),
        }
        if self.clustering_ is not None:
            described["diagnostics"] = self.clustering_.diagnostics
            described["eigenvalues"] = self.clustering_.eigenvalues.tolist()
        save_model(folder, self.module_.state_dict(), described | description)

    def save_affinity(self, path: str | Path) -> None:
        """Write the neighbour graph of the dimensions: rows, columns, weights (npz)."""
        graph = self.clustering_.graph.tocoo()
        with atomic(path) as temporary:
            np.savez_compressed(
                temporary, rows=graph.row, columns=graph.col, weights=graph.data.astype(np.float32)
            )

    @classmethod
    def load(cls, folder: str | Path) -> "Urlost":
        """Read what `save` wrote; the graph of dimensions is not kept."""
        tensors, described = load_model(folder)
        model = cls(settings=described["settings"], seed=described["seed"])
        model.names_ = described["names"]
        model.clusters_ = np.array(described["clusters"])
        model._build()
        model.module_.load_state_dict(tensors)
        model.module_.eval()
        return model
