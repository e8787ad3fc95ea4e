"""Draw the figures of an intracranial dataset."""

from pathlib import Path

from popflow.figures import intracranial
from popflow.prepare.intracranial import load_session
from popflow.runtime.files import read_tsv
from popflow.runtime.job import job

with job(snakemake):
    inputs, output = snakemake.input, snakemake.output
    evaluation = read_tsv(inputs.evaluation)
    sessions = [load_session(Path(path).parent) for path in inputs.sessions]
    fits = [
        (Path(p).parts[-3], int(Path(p).parts[-2].removeprefix("seed-"))) for p in inputs.histories
    ]
    histories = {fit: read_tsv(path) for fit, path in zip(fits, inputs.histories, strict=True)}
    intracranial.draw_electrodes(sessions, read_tsv(inputs.channels), output.electrodes)
    intracranial.draw_pretraining(histories, output.pretraining)
    intracranial.draw_objectives(evaluation, output.objectives)
    roles = {session.name: session.role for session in sessions}
    intracranial.draw_decoding(evaluation, roles, output.decoding)
    intracranial.draw_comparison(evaluation, output.comparison)
