"""Probe MAESTRO's sample vectors and the baselines on the same folds."""

from pathlib import Path

from popflow.evaluate.cytometry import evaluate_cytometry, fits_from_paths
from popflow.runtime.files import write_tsv
from popflow.runtime.job import job

with job(snakemake):
    evaluation, predictions = evaluate_cytometry(
        Path(snakemake.input.cohort).parent,
        fits_from_paths(snakemake.input.embeddings),
        snakemake.params.settings,
        snakemake.wildcards.dataset,
    )
    write_tsv(evaluation, snakemake.output.evaluation)
    write_tsv(predictions, snakemake.output.predictions)
