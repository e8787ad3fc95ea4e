"""Simulate a cytometry cohort as FCS files with a samples sheet and a panel."""

from pathlib import Path

from popflow.runtime.job import job
from popflow.simulate.cytometry import simulate_cytometry

with job(snakemake) as log:
    folder = Path(snakemake.output.samples).parent
    samples = simulate_cytometry(snakemake.params.settings, folder)
    log.info("%d samples of %d subjects", len(samples), samples["subject"].nunique())
