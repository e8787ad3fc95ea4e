"""Bin spikes and tracking of a session."""

from popflow.inputs.spikes import read_session
from popflow.prepare.placecells import prepare_placecells, write_session
from popflow.runtime.files import write_tsv
from popflow.runtime.job import job

with job(snakemake) as log:
    unit = snakemake.params.unit
    arrays, report = prepare_placecells(read_session(unit["path"], unit), snakemake.params.settings)
    log.info("%d bins, %d units", *arrays["counts"].shape)
    write_session(arrays, snakemake.output.session)
    write_tsv(report, snakemake.output.qc)
