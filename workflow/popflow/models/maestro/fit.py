"""MAESTRO as an estimator: fit on sets of cells, then one vector per sample."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from popflow.inputs.config import preset
from popflow.inputs.settings import resolve
from popflow.models.maestro.network import Sizes
from popflow.models.maestro.task import MaestroNetwork, MaestroTask
from popflow.prepare.cytometry import Cohort, read_cohort
from popflow.runtime.artefacts import load_model, save_model
from popflow.runtime.files import write_h5ad, write_tsv
from popflow.runtime.fingerprints import inputs_fingerprint
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import seed_everything
from popflow.runtime.training import train

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


@dataclass
class Embedding:
    """What an encoder says about samples.

    Attributes
    ----------
    z : (samples, L) array
        The pooled vectors.
    states : (samples, 2 d) array
        Mean and standard deviation of the last states of the cells.
    """

    z: np.ndarray
    states: np.ndarray


class Maestro:
    """Set encoder for cytometry, learned by masked reconstruction and self-distillation.

    Parameters
    ----------
    settings : dict, optional
        As `preset-maestro.schema.yaml` describes; default, the preset ``small``.
    seed : int
        Of weights, views and masks.
    device : {"cpu", "cuda", "auto"}

    Examples
    --------
    >>> import numpy as np
    >>> from popflow.inputs.config import preset
    >>> from popflow.models.maestro import Maestro
    >>> settings = preset("maestro")
    >>> settings["training"]["steps"] = 2
    >>> cells = {f"S{i}": np.random.default_rng(i).normal(size=(600, 5)) for i in range(4)}
    >>> Maestro(settings).fit(cells).transform(cells).shape
    (4, 64)
    """

    def __init__(self, settings: dict[str, Any] | None = None, seed: int = 0, device: str = "cpu"):
        given = settings if settings is not None else preset("maestro")
        self.settings = resolve("preset-maestro", given, "settings of Maestro")
        self.seed, self.device = seed, device
        self.network: MaestroNetwork | None = None
        self.history: pd.DataFrame | None = None

    def fit(
        self,
        samples: Mapping[str, np.ndarray],
        held_out: Mapping[str, np.ndarray] | None = None,
        scaling: tuple[np.ndarray, np.ndarray] | None = None,
        checkpoints: str | Path | None = None,
        title: str = "maestro",
    ) -> "Maestro":
        """Learn from samples.

        Parameters
        ----------
        samples : dict of str to (N, D) array
            Transformed cells of the training samples; memory maps are read row by row.
        held_out : dict of str to (N, D) array, optional
            Samples whose reconstruction the history follows.
        scaling : (mean, sd), optional
            Per marker, (D,); default, of the training samples.
        checkpoints : path, optional
            A fit that was stopped goes on from there.
        title : str
            Shown beside the progress.

        Raises
        ------
        Refusal
            When the samples do not go together.
        """
        cells = list(samples.values())
        self._check(samples)
        mean, sd = scaling if scaling is not None else marker_statistics(cells)
        if self.settings["network"]["scale"] == "none":
            mean, sd = np.zeros_like(mean), np.ones_like(sd)
        self.network = self._build(mean, sd)
        held = [] if held_out is None else list(held_out.values())
        task = MaestroTask(self.network, cells, held, self.settings, self.seed, list(samples))
        precision = self.settings["training"]["precision"]
        self.history = train(task, checkpoints, self.device, precision, self.seed, title)
        self.network.eval()
        return self

    def transform(self, samples: Mapping[str, np.ndarray]) -> np.ndarray:
        """Give the pooled vector of every sample, (samples, L); all cells are used."""
        return self.embed(samples).z

    @torch.no_grad()
    def embed(self, samples: Mapping[str, np.ndarray], branch: str | None = None) -> Embedding:
        """Give pooled vectors and cell-state summaries; memory is bounded by a chunk of cells.

        Parameters
        ----------
        samples : dict of str to (N, D) array
        branch : {"teacher", "student"}, optional
            Default, as set.
        """
        network = self._fitted()
        settings = self.settings["embedding"]
        encoder = getattr(network, branch or settings["branch"])
        self._check(samples, len(network.marker_mean))
        z, states = [], []
        for cells in samples.values():
            vector, mean, sd = encoder.stream(self._chunks(cells, settings["chunk"]))
            z.append(vector.cpu().numpy())
            states.append(torch.cat([mean, sd]).cpu().numpy())
        return Embedding(np.stack(z), np.stack(states))

    def save(self, folder: str | Path, **facts: Any) -> None:
        """Write weights and description into a folder; `facts` are added to the description."""
        network = self._fitted()
        description = {
            "model": "maestro",
            "settings": self.settings,
            "seed": self.seed,
            "markers": len(network.marker_mean),
        }
        save_model(folder, network.state_dict(), description | facts)

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> "Maestro":
        """Read what `save` wrote."""
        tensors, description = load_model(folder)
        model = cls(description["settings"], description["seed"], device)
        sizes = description["markers"]
        model.network = model._build(np.zeros(sizes), np.ones(sizes))
        model.network.load_state_dict(tensors)
        model.network.eval()
        return model

    def _build(self, mean: np.ndarray, sd: np.ndarray) -> MaestroNetwork:
        chosen = {k: v for k, v in self.settings["network"].items() if k != "scale"}
        sizes = Sizes(markers=len(mean), outputs=self.settings["views"]["outputs"], **chosen)
        for name in ("width", "latent"):
            if getattr(sizes, name) % sizes.heads:
                raise Refusal(
                    f"preset of maestro, key 'network.{name}'",
                    f"{getattr(sizes, name)} with {sizes.heads} heads",
                    "a multiple of network.heads",
                    f"change network.{name} or network.heads",
                )
        seed_everything(self.seed)
        return MaestroNetwork(sizes, self.settings["teacher"]["centre_momentum"], mean, sd)

    def _fitted(self) -> MaestroNetwork:
        if self.network is None:
            raise RuntimeError("this Maestro is not fitted: call fit() or Maestro.load() first")
        return self.network

    def _chunks(self, cells: np.ndarray, size: int) -> Callable[[], Iterator[torch.Tensor]]:
        network = self._fitted()

        def chunks() -> Iterator[torch.Tensor]:
            for start in range(0, len(cells), size):
                rows = torch.from_numpy(np.array(cells[start : start + size], np.float32))
                yield network.scale(rows.to(network.marker_mean.device))

        return chunks

    @staticmethod
    def _check(samples: Mapping[str, np.ndarray], markers: int | None = None) -> None:
        """Refuse sets that are empty or differ in their markers."""
        if not samples:
            raise Refusal("samples", "none", "one sample or more", "look at qc.tsv of the cohort")
        wanted = markers or next(iter(samples.values())).shape[-1]
        for name, cells in samples.items():
            if cells.ndim != 2 or cells.shape[1] != wanted or len(cells) < 2 or not wanted:
                raise Refusal(
                    f"sample {name}",
                    f"an array of shape {cells.shape}",
                    f"two cells or more, and {wanted or 'one or more'} markers",
                    "prepare all samples with the same panel",
                )
            if not np.isfinite(cells).all():
                rows = int((~np.isfinite(cells)).any(1).sum())
                found, fix = f"{rows} cells hold NaN or infinity", "drop them"
                raise Refusal(f"sample {name}", found, "finite values", fix)


def marker_statistics(samples: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per marker over samples that count alike, (D,) each."""
    mean = np.mean([cells.mean(axis=0, dtype=float) for cells in samples], axis=0)
    square = np.mean([((cells - mean) ** 2).mean(axis=0, dtype=float) for cells in samples], axis=0)
    return mean, np.where(square > 1e-12, np.sqrt(square), 1.0)


def fit_maestro(
    prepared: str | Path,
    settings: dict[str, Any],
    seed: int,
    out: str | Path,
    checkpoints: str | Path | None = None,
    device: str = "cpu",
    title: str = "maestro",
    facts: dict[str, Any] | None = None,
) -> Maestro:
    """Fit a prepared cohort's training samples and embed all of its samples.

    Parameters
    ----------
    prepared : path
        As `popflow.prepare.cytometry.prepare_cytometry` wrote it.
    settings : dict
        As `preset-maestro.schema.yaml` describes.
    seed : int
    out : path
        Gets ``model.safetensors``, ``model.json``, ``history.tsv`` and ``embedding.h5ad``.
    checkpoints : path, optional
    device : {"cpu", "cuda", "auto"}
    title : str
        Shown beside the progress.
    facts : dict, optional
        Added to ``model.json``: variant, code fingerprint …
    """
    out, cohort = Path(out), read_cohort(prepared)
    table = cohort.samples
    samples = {name: cohort.cells(name) for name in table["sample"]}
    train_ids = table.loc[table["split"] == "train", "sample"]
    test_ids = table.loc[table["split"] == "test", "sample"]
    scaling = (cohort.markers["mean"].to_numpy(), cohort.markers["sd"].to_numpy())
    model = Maestro(settings, seed, device).fit(
        {name: samples[name] for name in train_ids},
        {name: samples[name] for name in test_ids},
        scaling,
        checkpoints,
        title,
    )
    write_h5ad(_embedding(model, samples, cohort), out / "embedding.h5ad")
    history = model.history
    if history is None or history.empty:
        history = _empty_history()
    write_tsv(history, out / "history.tsv")
    parts = ("cohort.tsv", "panel.tsv", "splits.tsv", "samples")
    data = inputs_fingerprint([Path(prepared) / part for part in parts])
    markers = {"marker_names": cohort.markers["marker"].tolist(), "data": data}
    model.save(out, **markers, **(facts or {}))
    return model


def _embedding(model: Maestro, samples: dict[str, np.ndarray], cohort: Cohort) -> Any:
    """Gather an AnnData: X the pooled vectors, obs the samples with their labels."""
    import anndata

    embedding = model.embed(samples)
    obs = cohort.samples.set_index("sample", drop=False)
    obs.index.name = None
    adata = anndata.AnnData(embedding.z.astype(np.float32), obs=obs)
    adata.obsm["states"] = embedding.states.astype(np.float32)
    adata.uns["branch"] = model.settings["embedding"]["branch"]
    return adata


def _empty_history() -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(columns=["epoch", "step", "loss", "lr", "seconds"])
