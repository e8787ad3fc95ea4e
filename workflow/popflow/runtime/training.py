"""The one training loop, on Lightning Fabric: devices, precision, progress, exact resume."""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from popflow.runtime.checkpoints import Checkpoints
from popflow.runtime.progress import Progress
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import seed_everything

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 300.0


class Task:
    """What a model gives to the training loop; subclass it.

    Attributes
    ----------
    module : torch.nn.Module
        Everything that is saved: network, teacher, buffers.
    optimizer : torch.optim.Optimizer
    scheduler : torch.optim.lr_scheduler.LRScheduler or None
        Stepped after every optimiser step.
    steps, steps_per_epoch : int
        Number of optimiser steps in all, and per row of the history.
    clip : float or None
        Largest global norm of the gradient.
    """

    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    steps: int
    steps_per_epoch: int
    clip: float | None = None

    def batch(self, step: int) -> Any:
        """Give the batch of a step: a pure function of seed and step, so that resume is exact."""
        raise NotImplementedError

    def losses(self, batch: Any, step: int) -> dict[str, torch.Tensor]:
        """Give scalars to log; ``"loss"`` is minimised."""
        raise NotImplementedError

    def after_step(self, step: int) -> None:
        """Act after the optimiser step, e.g. update a teacher."""

    def validate(self, step: int) -> dict[str, float]:
        """Give held-out scalars at the end of an epoch (module in eval mode, no gradient)."""
        return {}

    def stop(self, history: list[dict[str, float]]) -> str | None:
        """Give a reason to stop after an epoch, or None."""
        return None


class _Step(torch.nn.Module):
    """Hand a task's losses to Fabric as a forward pass: precision and devices apply."""

    def __init__(self, task: Task):
        super().__init__()
        self.module = task.module
        self._losses = task.losses

    def forward(self, batch: Any, step: int) -> dict[str, torch.Tensor]:
        return self._losses(batch, step)


class _Run:
    """The state of a running fit that a checkpoint holds."""

    def __init__(self, task: Task):
        self.task = task
        self.step = 0
        self.history: list[dict[str, float]] = []
        self.sums: dict[str, float] = {}
        self.seconds = 0.0
        self.stopped = False

    def state(self) -> dict[str, Any]:
        task = self.task
        return {
            "module": task.module.state_dict(),
            "optimizer": task.optimizer.state_dict(),
            "scheduler": task.scheduler.state_dict() if task.scheduler else None,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "step": self.step,
            "history": self.history,
            "sums": self.sums,
            "seconds": self.seconds,
            "stopped": self.stopped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        task = self.task
        task.module.load_state_dict(state["module"])
        task.optimizer.load_state_dict(state["optimizer"])
        if task.scheduler:
            task.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"]:
            torch.cuda.set_rng_state_all(state["cuda_rng"])
        self.step, self.history = state["step"], state["history"]
        self.sums, self.seconds, self.stopped = state["sums"], state["seconds"], state["stopped"]


def train(
    task: Task,
    checkpoints: str | Path | None = None,
    device: str = "auto",
    precision: str = "32-true",
    seed: int = 0,
    title: str = "fit",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> "pd.DataFrame":
    """Train a task to its last step and give the history.

    Parameters
    ----------
    task : Task
        Its modules are trained in place.
    checkpoints : path, optional
        Folder for checkpoints. A run that was stopped goes on from the newest one and ends with
        the numbers of an undisturbed run (bit for bit on the CPU).
    device : {"auto", "cpu", "cuda"}
    precision : str
        Of Lightning Fabric: "32-true", "bf16-mixed", …
    seed : int
        Of everything that the task draws outside `Task.batch`.
    title : str
        Shown beside the progress.
    checkpoint_seconds : float
        Time between two checkpoints; 0 saves after every step.

    Returns
    -------
    DataFrame
        One row per epoch: epoch, step, means of the losses, held-out scalars, lr, seconds.

    Raises
    ------
    Refusal
        When the loss is not finite, or another process trains in the same folder.
    SystemExit
        After SIGTERM, with a checkpoint written.
    """
    import pandas as pd
    from lightning_fabric import Fabric

    seed_everything(seed)
    fabric = Fabric(accelerator=device, devices=1, precision=precision)
    run, store = _Run(task), Checkpoints(checkpoints) if checkpoints else None
    stepper, task.optimizer = fabric.setup(_Step(task), task.optimizer)
    with store.lock() if store else nullcontext(), terminate_gently() as terminated:
        if store and (state := store.latest()):
            run.restore(state)
            log.info("%s: goes on from step %d", title, run.step)
        progress = Progress(title, task.steps, run.step)
        saved = time.monotonic()
        while run.step < task.steps and not run.stopped:
            loss = _advance(run, fabric, stepper)
            progress.update(loss=loss)
            due = time.monotonic() - saved >= checkpoint_seconds
            if store and (due or terminated.is_set()):
                store.save(run.step, run.state())
                saved = time.monotonic()
            if terminated.is_set():
                log.error("%s: told to end at step %d; state saved", title, run.step)
                raise SystemExit(143)
        progress.close()
        if store:
            store.clear()
    task.module.eval()
    return pd.DataFrame(run.history)


def _advance(run: _Run, fabric: Any, stepper: torch.nn.Module) -> float:
    """Do one step, and close the epoch when it was its last."""
    task, step, start = run.task, run.step, time.monotonic()
    stepper.train()
    batch = fabric.to_device(task.batch(step))
    losses = stepper(batch, step)
    task.optimizer.zero_grad(set_to_none=True)
    fabric.backward(losses["loss"])
    if task.clip is not None:
        torch.nn.utils.clip_grad_norm_(task.module.parameters(), task.clip)
    task.optimizer.step()
    rate = task.optimizer.param_groups[0]["lr"]
    if task.scheduler:
        task.scheduler.step()
    with torch.no_grad():
        task.after_step(step)
    for name, value in losses.items():
        run.sums[name] = run.sums.get(name, 0.0) + float(value.detach())
    if not torch.isfinite(losses["loss"]):
        raise Refusal(
            f"training step {step}",
            f"the loss is {float(losses['loss'].detach())}",
            "a finite loss",
            "lower the learning rate in the preset, or look for extreme values in the data",
        )
    run.step += 1
    run.seconds += time.monotonic() - start
    if run.step % task.steps_per_epoch == 0 or run.step == task.steps:
        _close_epoch(run, rate)
    return float(losses["loss"].detach())


def _close_epoch(run: _Run, rate: float) -> None:
    """Append a row to the history and ask the task whether to stop."""
    task = run.task
    count = (run.step - 1) % task.steps_per_epoch + 1
    row = {"epoch": float(len(run.history) + 1), "step": float(run.step)}
    row |= {name: total / count for name, total in run.sums.items()}
    task.module.eval()
    with torch.no_grad():
        row |= {name: float(value) for name, value in task.validate(run.step).items()}
    run.history.append(row | {"lr": float(rate), "seconds": round(run.seconds, 3)})
    run.sums = {}
    if reason := task.stop(run.history):
        log.warning("stopped after epoch %d: %s", len(run.history), reason)
        run.stopped = True


@contextmanager
def terminate_gently() -> Iterator[threading.Event]:
    """Turn SIGTERM into an event, so that a step is finished and saved before the end."""
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before)
