"""Draw predicted against gated cell-type proportions."""

from popflow.figures.cytometry import draw_proportions
from popflow.runtime.files import read_tsv
from popflow.runtime.job import job

with job(snakemake):
    draw_proportions(read_tsv(snakemake.input.predictions), snakemake.output.proportions)
