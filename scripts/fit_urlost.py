"""Fit URLOST on the training rows of the seed's split and represent all samples."""

from pathlib import Path

import anndata

from popflow.models.urlost.embedding import fit_split
from popflow.runtime.files import write_h5ad, write_tsv
from popflow.runtime.fingerprints import file_fingerprint
from popflow.runtime.job import checkpoints_of, job

with job(snakemake) as log:
    wildcards, params = snakemake.wildcards, snakemake.params
    seed, folder = int(wildcards.seed), Path(snakemake.output.model).parent
    model, embedding = fit_split(
        anndata.read_h5ad(snakemake.input.h5ad),
        params.settings,
        seed,
        params.device,
        checkpoints_of(snakemake),
        f"urlost {wildcards.dataset} {wildcards.variant} seed {seed}",
        wildcards.variant,
    )
    log.info("clusters: %s", model.clustering_.diagnostics)
    model.save(folder, code=params.code, data=file_fingerprint(snakemake.input.h5ad))
    model.save_affinity(snakemake.output.affinity)
    write_tsv(model.history_, snakemake.output.history)
    write_h5ad(embedding, snakemake.output.embedding)
