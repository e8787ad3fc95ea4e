"""Fit infinite GPFA and its variants to one draw of a scenario with known factors."""

from popflow.evaluate.factors import run_scenario
from popflow.runtime.files import write_tsv
from popflow.runtime.job import job

with job(snakemake):
    wildcards, params = snakemake.wildcards, snakemake.params
    table = run_scenario(
        wildcards.scenario, params.scenario, params.settings, params.held_out, int(wildcards.seed)
    )
    write_tsv(table, snakemake.output.table)
