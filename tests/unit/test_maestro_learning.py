"""MAESTRO learns what is in a cohort: proportions, without labels and without collapse."""

import numpy as np
import pytest

from popflow.evaluate import cytometry as evaluate
from popflow.evaluate.metrics import r_squared
from popflow.evaluate.probes import ridge_probe
from popflow.evaluate.splits import grouped_folds
from popflow.inputs.config import preset
from popflow.inputs.settings import resolve
from popflow.models.maestro.fit import fit_maestro
from popflow.prepare.cytometry import prepare_cytometry, read_cohort
from popflow.runtime.files import read_tsv
from popflow.simulate.cytometry import simulate_cytometry


@pytest.mark.slow
def test_training_adds_to_untrained_weights(tmp_path):
    import anndata

    given = {"subjects": 80, "repeats": 0, "cells": 1000}
    simulate_cytometry(resolve("simulate-cytometry", given, "test"), tmp_path)
    source = {"source": str(tmp_path), "sheet": str(tmp_path / "samples.tsv")}
    settings = resolve("prepare-cytometry", {"min_cells": 500}, "test")
    prepare_cytometry(source, settings, tmp_path / "prepared")
    cohort = read_cohort(tmp_path / "prepared")
    truth = evaluate.cell_type_proportions(cohort).to_numpy()
    folds = grouped_folds(cohort.samples["subject"].to_numpy(), 5, 0)
    r2 = {}
    for variant in ("default", "untrained"):
        out = tmp_path / variant
        fit_maestro(cohort.folder, preset("maestro", "small", variant), 0, out)
        adata = anndata.read_h5ad(out / "embedding.h5ad")
        assert adata.obs_names.tolist() == cohort.samples["sample"].tolist()
        r2[variant] = r_squared(truth, ridge_probe(np.asarray(adata.X, float), truth, folds))
        assert adata.X.std(axis=0).max() > 1e-3
    assert r2["default"] > r2["untrained"] + 0.10
    history = read_tsv(tmp_path / "default/history.tsv")
    assert len(history) == 20
    assert history["effective_rank"].iloc[-1] > 2
    assert history["target_entropy"].iloc[-1] < 0.9
    assert history["held_out_energy"].iloc[-1] < 0.5 * history["held_out_energy"].iloc[0]
