"""URLOST: vectors of unknown layout -> clusters of dimensions -> masked autoencoder."""

from typing import Any

__all__ = ["Urlost", "cluster_dimensions"]


def __getattr__(name: str) -> Any:
    if name == "Urlost":
        from popflow.models.urlost.fit import Urlost

        return Urlost
    if name == "cluster_dimensions":
        from popflow.models.urlost.clusters import cluster_dimensions

        return cluster_dimensions
    raise AttributeError(name)
