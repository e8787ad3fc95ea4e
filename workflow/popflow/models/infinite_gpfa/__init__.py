"""Infinite GPFA: spikes -> Gaussian-process factors, each switched on and off in time."""

from typing import Any

__all__ = ["InfiniteGPFA"]


def __getattr__(name: str) -> Any:
    if name == "InfiniteGPFA":
        from popflow.models.infinite_gpfa.model import InfiniteGPFA

        return InfiniteGPFA
    raise AttributeError(name)
