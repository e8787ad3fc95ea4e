"""Fit URLOST on one split of a prepared dataset and represent all of its samples."""

from typing import TYPE_CHECKING, Any

import numpy as np

from popflow.models.urlost.fit import Urlost
from popflow.prepare.expression import kept_genes, model_input, split_of_seed
from popflow.runtime.seeds import generator

if TYPE_CHECKING:
    import anndata


def fit_split(
    prepared: "anndata.AnnData",
    settings: dict[str, Any],
    seed: int,
    device: str = "cpu",
    checkpoints: str | None = None,
    title: str = "urlost",
    variant: str = "default",
) -> "tuple[Urlost, anndata.AnnData]":
    """Fit on the training rows of the split that belongs to a seed.

    Clusters and weights see training rows only; a share of them is kept to follow the held-out
    reconstruction. Test rows are represented by the finished model.

    Parameters
    ----------
    prepared : AnnData
        Of `prepare.expression.prepare_expression`.
    settings : dict
        The preset.
    seed : int
        Of split, weights, order and masks.

    Returns
    -------
    model : Urlost
    embedding : AnnData
        X: concatenated tokens (N, M · width); obsm: X_urlost_mean, X_urlost_class; obs: label,
        group, places of spots, split; uns: variant, seed and split.
    """
    import anndata

    split = split_of_seed(prepared, seed)
    x, names = model_input(prepared, split), kept_genes(prepared, split)
    role = prepared.obs[f"split_{split}"].to_numpy().astype(str)
    train = np.flatnonzero(role == "train")
    order = generator(seed, "validation rows").permutation(train)
    aside = int(settings["training"]["validation"] * len(train))
    rows, validation = np.sort(order[aside:]), np.sort(order[:aside])
    model = Urlost(settings=settings, seed=seed, device=device)
    model.fit(x[rows], x[validation], names, checkpoints, title)
    told = [column for column in prepared.obs if not column.startswith("split_")]
    embedding = anndata.AnnData(model.transform(x), obs=prepared.obs[told].assign(split=role))
    for features in ("mean", "class"):
        embedding.obsm[f"X_urlost_{features}"] = model.transform(x, features=features)
    embedding.uns["urlost"] = {"seed": seed, "split": split, "variant": variant}
    return model, embedding
