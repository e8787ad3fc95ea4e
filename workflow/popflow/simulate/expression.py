"""Expression counts with planted modules of genes and classes of samples."""

from pathlib import Path
from typing import Any

from popflow.runtime.files import write_h5ad
from popflow.runtime.seeds import generator


def unit_ids(settings: dict[str, Any]) -> list[str]:
    """Expression has no units below the dataset."""
    return []


def simulate_expression(settings: dict[str, Any], path: str | Path) -> None:
    """Write an h5ad of counts.

    Each module has one activity per sample, each class shifts a third of the modules, and a gene
    follows its module's activity on the log scale; counts are Poisson around it.

    Parameters
    ----------
    settings : dict
        Of ``workflow/schemas/simulate-expression.schema.yaml``.
    path : path
        The file: X counts (samples, genes), obs `label`, var `module` (the truth).
    """
    import anndata
    import numpy as np
    import pandas as pd

    draw = generator(settings["seed"], "expression")
    modules, samples = settings["modules"], settings["samples"]
    sizes = np.linspace(0.35, 1.65, modules) * settings["genes_per_module"]
    module = np.repeat(np.arange(modules), np.maximum(2, sizes.astype(int)))
    label = draw.permutation(np.arange(samples) % settings["classes"])
    shifted = draw.random((settings["classes"], modules)) < 1 / 3
    activity = draw.normal(size=(samples, modules)) + settings["effect"] * shifted[label]
    loading = draw.uniform(0.5, 1.0, len(module))
    level = activity[:, module] * loading + draw.normal(0, 0.5, (samples, len(module)))
    rate = np.exp(draw.normal(0, 1, len(module)) + level)
    depth = settings["depth"] * draw.lognormal(0, 0.3, (samples, 1))
    counts = draw.poisson(rate / rate.sum(1, keepdims=True) * depth)
    order = draw.permutation(len(module))
    obs = pd.DataFrame({"label": [f"class{c}" for c in label]}, [f"s{i}" for i in range(samples)])
    var = pd.DataFrame({"module": module[order]}, [f"g{i}" for i in range(len(module))])
    adata = anndata.AnnData(counts[:, order].astype(np.float32), obs, var)
    write_h5ad(adata, path)
