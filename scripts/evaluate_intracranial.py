"""Join the scores of all fits with those of the baselines, on the same pairs and folds."""

from pathlib import Path

import pandas as pd

from popflow.evaluate.decoding import channel_scores, decoding_sets, split_table
from popflow.evaluate.intracranial import evaluate_baselines
from popflow.prepare.intracranial import load_session
from popflow.runtime.files import read_tsv, write_tsv
from popflow.runtime.job import job

with job(snakemake):
    settings = snakemake.params.settings
    sessions = [load_session(Path(path).parent) for path in snakemake.input.sessions]
    dataset, preset = snakemake.wildcards.dataset, snakemake.params.preset
    baselines = evaluate_baselines(dataset, sessions, settings, preset)
    fits = [read_tsv(path) for path in snakemake.input.decoding]
    write_tsv(pd.concat([*fits, baselines], ignore_index=True), snakemake.output.evaluation)
    sets = decoding_sets(sessions, settings)
    write_tsv(split_table(sets), snakemake.output.splits)
    write_tsv(channel_scores(sets), snakemake.output.channels)
