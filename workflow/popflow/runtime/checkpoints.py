"""Checkpoints of a running fit: checksummed, the last two kept, one owner at a time.

They are not outputs of a rule, because Snakemake deletes outputs before it runs a job again.
"""

import hashlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from popflow.runtime.files import atomic, read_json, write_json
from popflow.runtime.refusal import Refusal

log = logging.getLogger(__name__)

STALE_SECONDS = 600


class Checkpoints:
    """The checkpoints of one fit.

    Parameters
    ----------
    folder : str or Path
        One folder per fit; its name should carry a hash of settings, data, seed and code, so that
        a resume never mixes two settings.
    keep : int
        How many states to keep; the newest may turn out broken.
    """

    def __init__(self, folder: str | Path, keep: int = 2):
        self.folder, self.keep = Path(folder), keep

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a state of tensors and plain values for a step."""
        import torch

        path = self.folder / f"step-{step:09d}.ckpt"
        with atomic(path) as temporary:
            torch.save(_plain(state), temporary)
            digest = hashlib.sha256(temporary.read_bytes()).hexdigest()
        write_json({"sha256": digest, "step": step}, path.with_suffix(".json"))
        for old in self._states()[: -self.keep]:
            old.unlink(missing_ok=True)
            old.with_suffix(".json").unlink(missing_ok=True)
        self._beat()

    def latest(self) -> dict[str, Any] | None:
        """Give the newest whole state, or None; a broken file is told and passed over."""
        import torch

        for path in reversed(self._states()):
            try:
                expected = read_json(path.with_suffix(".json"))["sha256"]
                if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
                    raise ValueError("checksum differs")
                return torch.load(path, map_location="cpu", weights_only=True)
            except (OSError, ValueError, KeyError, RuntimeError) as error:
                log.warning("checkpoint %s is unusable (%s); trying the one before", path, error)
        return None

    def clear(self) -> None:
        """Remove every state; called when a fit has done its last step."""
        for path in self._states():
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder alone.

        Raises
        ------
        Refusal
            When a living process holds it: two fits must not write the same checkpoints.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                handle = os.open(self._lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                break
            except FileExistsError:
                self._refuse_if_alive()
        owner = f"{socket.gethostname()} {os.getpid()} {os.environ.get('SLURM_JOB_ID', '-')}\n"
        os.write(handle, owner.encode())
        os.close(handle)
        try:
            yield
        finally:
            self._lock.unlink(missing_ok=True)

    @property
    def _lock(self) -> Path:
        return self.folder / "lock"

    def _beat(self) -> None:
        if self._lock.exists():
            os.utime(self._lock)

    def _states(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.ckpt"))

    def _refuse_if_alive(self) -> None:
        """Take away the lock of a dead owner, else refuse."""
        try:
            host, process, job = self._lock.read_text().split()
            age = time.time() - self._lock.stat().st_mtime
        except (OSError, ValueError):
            # The other process is between making the file and writing its name into it.
            time.sleep(0.1)
            host, process, job, age = "", "0", "-", time.time() - _modified(self._lock)
        here = host == socket.gethostname()
        if (here and not _alive(int(process))) or (not here and age > STALE_SECONDS):
            log.warning("lock %s was left by a dead process (%s %s)", self._lock, host, process)
            self._lock.unlink(missing_ok=True)
            return
        raise Refusal(
            f"folder {self.folder}",
            f"another process trains here (host {host}, process {process}, job {job})",
            "one fit at a time in a checkpoint folder",
            f"wait for it or end it; if it is dead, remove {self._lock}",
        )


def _plain(value: Any) -> Any:
    """Turn numpy's scalars into Python's, which alone can be read back without pickle."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
