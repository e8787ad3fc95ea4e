"""Gather the scenarios with known factors into one table, and draw them."""

import pandas as pd

from popflow.figures.factors import draw_scaling, draw_scenarios
from popflow.runtime.files import read_tsv, write_tsv
from popflow.runtime.job import job

with job(snakemake):
    table = pd.concat([read_tsv(path) for path in snakemake.input.tables], ignore_index=True)
    write_tsv(table, snakemake.output.table)
    draw_scenarios(table, snakemake.output.scenarios)
    draw_scaling(read_tsv(snakemake.input.scaling), snakemake.output.scaling)
