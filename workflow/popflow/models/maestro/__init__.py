"""MAESTRO: one vector per cytometry sample, learned without labels from its set of cells."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("Maestro", "fit_maestro"):
        from popflow.models.maestro import fit

        return getattr(fit, name)
    raise AttributeError(name)
