"""Write down what was run, on what, with which versions and settings."""

from popflow.runtime.files import write_json
from popflow.runtime.job import job
from popflow.runtime.provenance import provenance

with job(snakemake):
    described = provenance(
        snakemake.params.settings, list(snakemake.input.results), list(snakemake.input.files)
    )
    write_json(described, snakemake.output.json)
