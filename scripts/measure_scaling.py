"""Measure the time of an iteration of infinite GPFA against bins and units, beside Elephant's."""

from popflow.evaluate.scaling import measure_scaling
from popflow.runtime.files import write_tsv
from popflow.runtime.job import job

with job(snakemake):
    write_tsv(measure_scaling(snakemake.params.scaling), snakemake.output.table)
