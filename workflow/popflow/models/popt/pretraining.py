"""Pretraining of PopT: ensemble-wise and channel-wise discrimination (Chau et al. 2025)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from popflow.models.popt.network import PopT
from popflow.models.popt.optimisers import optimiser, schedule
from popflow.models.popt.sampler import Pairs, PairSampler, gather
from popflow.prepare.intracranial import Session, channel_statistics
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator
from popflow.runtime.training import Task, train

if TYPE_CHECKING:
    import pandas as pd


def objective_losses(
    net: nn.Module, batch: dict[str, Tensor], weights: dict[str, float]
) -> dict[str, Tensor]:
    """Give both losses of a batch.

    Parameters
    ----------
    net : PopT
    batch : dict of str to Tensor
        As `gather` gives it.
    weights : dict of str to float
        Of ``ensemble`` and ``channel`` in the sum.

    Returns
    -------
    dict of str to Tensor
        ``loss``, ``ensemble`` (binary cross-entropy, mean over examples), ``channel`` (mean over
        the scored channels of the whole batch, 0 when there is none).
    """
    padding = batch["padding"] if bool(batch["padding"].any()) else None
    out = net(batch["x"], batch["coords"], batch["segment"], padding)
    ensemble = binary_cross_entropy_with_logits(out.ensemble_logit[:, 0], batch["random"].float())
    scored = batch["scored"]
    if bool(scored.any()):
        logits = out.channel_logit[..., 0][scored]
        channel = binary_cross_entropy_with_logits(logits, batch["replaced"][scored].float())
    else:
        channel = ensemble.new_zeros(())
    loss = weights["ensemble"] * ensemble + weights["channel"] * channel
    return {"loss": loss, "ensemble": ensemble, "channel": channel}


class Corpus:
    """The windows of some sessions from which pairs are drawn.

    Parameters
    ----------
    sessions : list of Session
    part : str
        ``train``, ``validation`` or ``test``.
    settings : dict
        Of the preset: `sizes`, `size_per`, `replaced`, `pair_gap_s`.

    Notes
    -----
    Standardisation is per channel and feature, with statistics of the train part whatever `part`.
    """

    def __init__(self, sessions: list[Session], part: str, settings: dict[str, Any]):
        self.sessions, self.settings = sessions, settings
        self.features = [session.features for session in sessions]
        self.places = [session.lip for session in sessions]
        self.scaling = [channel_statistics(s.features, s.rows("train")) for s in sessions]
        self.blocks = []
        for number, session in enumerate(sessions):
            rows = session.rows(part)
            for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
                if len(run):
                    self.blocks.append((number, int(run[0]), int(run[-1]) + 1))
        self.gap = max(1, round(settings["pair_gap_s"] / sessions[0].meta["stride_s"]))

    def sampler(self, batch: int, seed: int) -> PairSampler:
        """Make a sampler over the part."""
        settings = self.settings
        channels = [f.shape[1] for f in self.features]
        try:
            return PairSampler(
                channels,
                self.blocks,
                settings["sizes"],
                batch,
                seed,
                settings["size_per"],
                settings["replaced"],
                self.gap,
            )
        except ValueError as error:
            raise Refusal(
                "pretraining pairs",
                str(error),
                "recordings of which each part holds several windows",
                "set a shorter window_s or stride_s, or larger fractions, under prepare",
            ) from error

    def batch(self, pairs: Pairs) -> dict[str, np.ndarray]:
        """Collect the tokens of drawn pairs."""
        return gather(pairs, self.features, self.places, self.scaling)


class PretrainTask(Task):
    """The two objectives for the training loop.

    Parameters
    ----------
    net : PopT
        Trained in place.
    sessions : list of Session
    settings : dict
        A resolved preset.
    seed : int
    """

    def __init__(self, net: PopT, sessions: list[Session], settings: dict[str, Any], seed: int):
        self.module, self.seed, self.settings = net, seed, settings
        self.corpus = Corpus(sessions, "train", settings)
        self.sampler = self.corpus.sampler(settings["batch"], seed)
        self.validation = Corpus(sessions, "validation", settings)
        groups = [{"params": list(net.parameters()), "lr": settings["rate"]}]
        self.optimizer = optimiser(settings["optimiser"], groups, settings["weight_decay"])
        self.steps = settings["steps"]
        self.scheduler = schedule(
            self.optimizer, settings["schedule"], self.steps, settings["warmup"]
        )
        self.steps_per_epoch = settings["steps_per_epoch"]
        self.clip = settings["clip"]
        self.noise = settings["coord_noise_mm"]

    def batch(self, step: int) -> dict[str, Tensor]:
        """Give the examples of a step."""
        batch = self.corpus.batch(self.sampler.draw(step))
        if self.noise:
            rng = generator(self.seed, "coordinates", step)
            moved = batch["coords"] + rng.normal(0, self.noise, batch["coords"].shape)
            batch["coords"] = np.clip(moved, 0.0, 256.0)
        return {name: torch.from_numpy(value) for name, value in batch.items()}

    def losses(self, batch: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        """Give both losses and their weighted sum."""
        return objective_losses(self.module, batch, self.settings["loss_weights"])

    def validate(self, step: int) -> dict[str, float]:
        """Score the objectives on the validation part, on the same pairs every time."""
        if not self.validation.blocks:
            return {}
        scores = score_objectives(self.module, self.validation, examples=256, seed=self.seed)
        return {f"validation_{name}_auc": scores[f"{name}_auc"] for name in ("ensemble", "channel")}


def pretrain(
    net: PopT,
    sessions: list[Session],
    settings: dict[str, Any],
    seed: int = 0,
    checkpoints: str | Path | None = None,
    device: str = "auto",
    title: str = "popt",
) -> "pd.DataFrame":
    """Pretrain a network in place.

    Parameters
    ----------
    net : PopT
    sessions : list of Session
        Those that are pretrained on; see `pretraining_sessions`.
    settings : dict
        A resolved preset; `steps` 0 leaves the network as it was drawn.
    seed : int
    checkpoints : path, optional
        Folder for the checkpoints of an exact resume.
    device : {"auto", "cpu", "cuda"}
    title : str

    Returns
    -------
    DataFrame
        The history, one row per epoch.
    """
    import pandas as pd

    check_alike(sessions)
    if settings["steps"] == 0:
        net.eval()
        return pd.DataFrame(columns=["epoch", "step", "loss", "lr", "seconds"])
    task = PretrainTask(net, sessions, settings, seed)
    return train(task, checkpoints, device, settings["precision"], seed, title)


def area_under_roc(truth: np.ndarray, score: np.ndarray) -> float:
    """Give the ROC-AUC, NaN where one class is absent."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth, score)) if len(np.unique(truth)) == 2 else float("nan")


def new_network(input_dim: int, settings: dict[str, Any], seed: int) -> PopT:
    """Make the network of a preset; the same seed draws the same weights in every variant."""
    names = ("width", "heads", "layers", "feedforward", "dropout", "position", "rounding", "init")
    return PopT(input_dim, **{name: settings[name] for name in names}, seed=seed)


def pretraining_sessions(sessions: Sequence[Session]) -> list[Session]:
    """Choose the sessions that may be pretrained on."""
    chosen = [session for session in sessions if session.role in ("both", "pretrain")]
    if not chosen:
        raise Refusal(
            "sessions sheet, column 'role'",
            "no session is for pretraining",
            "at least one session of the role both or pretrain",
            "leave 'role' empty for the sessions to pretrain on",
        )
    known = {session.subject for session in chosen}
    again = sorted({s.subject for s in sessions if s.role == "held_out" and s.subject in known})
    if again:
        raise Refusal(
            "sessions sheet, column 'role'",
            f"the subjects {', '.join(again)} are pretrained on and held_out",
            "held_out subjects in no session for pretraining",
            "give all sessions of a subject that must stay unseen the role held_out",
        )
    return chosen


def check_alike(sessions: Sequence[Session]) -> None:
    """Refuse sessions whose vectors do not mean the same.

    Raises
    ------
    Refusal
        When encoder, dimension or window length differ.
    """
    keys = ("encoder", "window_s", "stride_s")
    for session in sessions[1:]:
        for key in keys:
            ours, theirs = sessions[0].meta[key], session.meta[key]
            same = (
                (ours["name"], ours["dim"]) == (theirs["name"], theirs["dim"])
                if key == "encoder"
                else abs(ours - theirs) < 0.01 * ours
            )
            if not same:
                raise Refusal(
                    f"session {session.name}",
                    f"its features have {key} {theirs}, those of {sessions[0].name} {ours}",
                    "one encoder, window length and stride for all sessions of a fit",
                    "prepare the sessions again with the same settings; with bandpower, rates "
                    "that differ give different bands",
                )


@torch.no_grad()
def score_objectives(
    net: nn.Module, corpus: Corpus, examples: int, seed: int, batch: int = 64, **change: Any
) -> dict[str, float]:
    """Score both objectives on fixed pairs.

    Parameters
    ----------
    net : PopT
        Put into eval mode.
    corpus : Corpus
    examples : int
    seed : int
        Of the pairs.
    batch : int
    **change : {"coords": callable}
        Changes an entry of each batch, e.g. shuffles the coordinates as a control.

    Returns
    -------
    dict
        ensemble_auc, ensemble_accuracy, channel_auc, examples.
    """
    was = net.training
    net.eval()
    sampler, device = corpus.sampler(batch, seed + 10**6), next(net.parameters()).device
    random, ensemble, replaced, channel = [], [], [], []
    for step in range(max(1, examples // batch)):
        arrays = corpus.batch(sampler.draw(step))
        for name, function in change.items():
            arrays[name] = function(arrays[name])
        tensors = {name: torch.from_numpy(v).to(device) for name, v in arrays.items()}
        padding = tensors["padding"] if arrays["padding"].any() else None
        out = net(tensors["x"], tensors["coords"], tensors["segment"], padding)
        random.append(arrays["random"])
        ensemble.append(out.ensemble_logit[:, 0].cpu().numpy())
        replaced.append(arrays["replaced"][arrays["scored"]])
        channel.append(out.channel_logit[..., 0].cpu().numpy()[arrays["scored"]])
    net.train(was)
    random, ensemble = np.concatenate(random), np.concatenate(ensemble)
    replaced, channel = np.concatenate(replaced), np.concatenate(channel)
    return {
        "ensemble_auc": area_under_roc(random, ensemble),
        "ensemble_accuracy": float(((ensemble > 0) == random).mean()),
        "channel_auc": area_under_roc(replaced, channel),
        "examples": float(len(random)),
        "channels": float(len(replaced)),
    }
