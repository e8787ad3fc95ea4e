"""Fit infinite GPFA and its variants to one draw of a scenario with known factors."""

from popflow.evaluate.factors import run_scenario
from popflow.runtime.files import write_tsv
from popflow.runtime.job import job
from popflow.simulate.factors import simulate_factors

with job(snakemake):
    wildcards, params = snakemake.wildcards, snakemake.params
    seed = int(wildcards.seed)
    truth = simulate_factors(params.scenario, seed)
    table = run_scenario(
        wildcards.scenario, params.scenario, truth, params.settings, params.held_out, seed
    )
    write_tsv(table, snakemake.output.table)
