"""Simulate expression counts with planted modules."""

from popflow.runtime.job import job
from popflow.simulate.expression import simulate_expression

with job(snakemake):
    simulate_expression(snakemake.params.settings, snakemake.output.h5ad)
