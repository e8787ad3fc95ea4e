"""Simulate intracranial recordings as a BIDS-iEEG folder."""

from pathlib import Path

from popflow.runtime.job import job
from popflow.simulate.intracranial import simulate_intracranial

with job(snakemake):
    simulate_intracranial(Path(snakemake.output.sheet).parent, snakemake.params.settings)
