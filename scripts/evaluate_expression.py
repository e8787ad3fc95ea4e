"""Probe URLOST's representations and the baselines on the same splits."""

import anndata

from popflow.evaluate.expression import evaluate_expression
from popflow.runtime.files import write_tsv
from popflow.runtime.job import job

with job(snakemake):
    evaluation, predictions = evaluate_expression(
        snakemake.wildcards.dataset,
        anndata.read_h5ad(snakemake.input.h5ad),
        [anndata.read_h5ad(path) for path in snakemake.input.embeddings],
        snakemake.params.settings,
        snakemake.params.prepared["min_class"],
    )
    write_tsv(evaluation, snakemake.output.evaluation)
    write_tsv(predictions, snakemake.output.predictions)
