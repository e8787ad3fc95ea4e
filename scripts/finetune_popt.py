"""Score the objectives of a fit of PopT, and decode with it: frozen and fine-tuned."""

from pathlib import Path

from popflow.evaluate.intracranial import evaluate_fit
from popflow.models.popt import PopT
from popflow.prepare.intracranial import load_session
from popflow.runtime.files import write_tsv
from popflow.runtime.job import job

with job(snakemake):
    wildcards, params = snakemake.wildcards, snakemake.params
    decoding = evaluate_fit(
        wildcards.dataset,
        PopT.load(Path(snakemake.input.model).parent),
        [load_session(Path(path).parent) for path in snakemake.input.sessions],
        params.settings,
        params.preset,
        wildcards.variant,
        int(wildcards.seed),
        params.device,
    )
    write_tsv(decoding, snakemake.output.decoding)
