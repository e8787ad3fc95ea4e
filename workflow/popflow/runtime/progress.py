"""Progress of long work: a bar on a terminal, and lines in the log with the time left."""

import logging
import sys
import time
from typing import TextIO

log = logging.getLogger(__name__)

LINE_SECONDS = 15.0
_terminal: TextIO | None = None


def show_on(stream: TextIO | None) -> None:
    """Choose the stream on which bars are drawn; None means standard error."""
    global _terminal
    _terminal = stream


class Progress:
    """Count steps of long work.

    Parameters
    ----------
    title : str
        What is being done, e.g. ``"maestro cohort seed 0"``.
    total : int
        Number of steps.
    done : int
        Steps done before, in an earlier run.
    """

    def __init__(self, title: str, total: int, done: int = 0):
        from tqdm import tqdm

        stream = _terminal or sys.stderr
        self._bar = tqdm(
            total=total,
            initial=done,
            desc=title,
            file=stream,
            disable=not stream.isatty(),
            dynamic_ncols=True,
        )
        self.title, self.total, self.done, self._first = title, total, done, done
        self._start = self._line = time.monotonic()

    def update(self, steps: int = 1, **numbers: float) -> None:
        """Tell that steps were done; `numbers` (e.g. the loss) are shown beside."""
        self.done += steps
        self._bar.update(steps)
        now = time.monotonic()
        if now - self._line < LINE_SECONDS and self.done < self.total:
            return
        self._line = now
        rate = (self.done - self._first) / max(now - self._start, 1e-9)
        left = (self.total - self.done) / rate if rate else float("nan")
        text = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        self._bar.set_postfix_str(text)
        log.info("%s: %d of %d, %.0f s left, %s", self.title, self.done, self.total, left, text)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.close()
