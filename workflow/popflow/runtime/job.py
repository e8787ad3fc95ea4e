"""The frame of every job script: log file, versions, inputs, refusals, wall time."""

import logging
import os
import platform
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from popflow.runtime import progress
from popflow.runtime.fingerprints import file_fingerprint, inputs_fingerprint
from popflow.runtime.refusal import Refusal, Refusals

VERSIONS = ("popflow", "snakemake", "numpy", "torch", "anndata", "scikit-learn")


@contextmanager
def job(snakemake: Any) -> Iterator[logging.Logger]:
    """Run a rule's script: log to the rule's log file, tell refusals without a trace.

    Parameters
    ----------
    snakemake : snakemake.script.Snakemake
        The object that Snakemake hands to a script.

    Yields
    ------
    logging.Logger

    Notes
    -----
    Standard error goes into the log file for the time of the job, so that warnings of libraries
    are kept there; a progress bar and a refusal still reach the terminal.
    """
    start = time.monotonic()
    terminal = os.fdopen(os.dup(2), "w", buffering=1)
    path = str(snakemake.log[0])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", buffering=1) as handle:
        os.dup2(handle.fileno(), 2)
        logging.basicConfig(
            stream=handle, level=logging.INFO, format="%(asctime)s %(name)s %(message)s", force=True
        )
        logging.captureWarnings(True)
        warnings.simplefilter("default")
        progress.show_on(terminal)
        log = logging.getLogger(f"popflow.{snakemake.rule}")
        try:
            _describe(snakemake, log)
            yield log
            log.info("done in %.1f s", time.monotonic() - start)
        except (Refusal, Refusals) as refusal:
            log.error("refused:\n%s", refusal)
            print(f"\n{snakemake.rule} stops:\n{refusal}\n", file=terminal)
            raise SystemExit(1) from None
        finally:
            progress.show_on(None)
            logging.captureWarnings(False)
            os.dup2(terminal.fileno(), 2)
            terminal.close()


def checkpoints_of(snakemake: Any) -> str:
    """Give the folder of a fit's checkpoints: by settings and code (of the rule), seed and data."""
    data = inputs_fingerprint(snakemake.input)
    return f"{snakemake.params.checkpoints}/seed-{snakemake.wildcards.seed}-{data}"


def _version(name: str) -> str:
    """Give a version; in an environment of conda, popflow is on the path but not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _describe(snakemake: Any, log: logging.Logger) -> None:
    """Write what runs, with which versions, settings and inputs."""
    versions = ", ".join(f"{name} {_version(name)}" for name in VERSIONS)
    log.info("rule %s, wildcards %s", snakemake.rule, dict(snakemake.wildcards.items()))
    log.info("python %s, %s, threads %d", platform.python_version(), versions, snakemake.threads)
    for name, value in snakemake.params.items():
        log.info("params %s = %s", name, value)
    for path in snakemake.input:
        if os.path.isfile(path):
            log.info("input %s %s", file_fingerprint(path), path)
