"""Gather time and memory of every rule."""

from popflow.runtime.files import write_tsv
from popflow.runtime.job import job
from popflow.runtime.provenance import gather_benchmarks

with job(snakemake):
    write_tsv(gather_benchmarks("logs/benchmarks"), snakemake.output.tsv)
