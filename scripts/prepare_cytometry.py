"""Prepare every FCS file of a dataset: one transformed set of cells per sample."""

from pathlib import Path

from popflow.prepare.cytometry import prepare_cytometry
from popflow.runtime.job import job

with job(snakemake) as log:
    folder = Path(snakemake.output.cohort).parent
    cohort = prepare_cytometry(snakemake.params.source, snakemake.params.settings, folder)
    log.info("%d samples, %d cells", len(cohort), cohort["cells"].sum())
