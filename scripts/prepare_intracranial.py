"""Turn a recording into its feature store."""

from pathlib import Path

from popflow.inputs.recordings import read_recording, session_row
from popflow.prepare.intracranial import prepare_session
from popflow.runtime.job import job

with job(snakemake):
    row = session_row(dict(snakemake.params.source), snakemake.wildcards.session)
    folder = Path(snakemake.output.meta).parent
    prepare_session(read_recording(row), row, snakemake.params.settings, folder)
