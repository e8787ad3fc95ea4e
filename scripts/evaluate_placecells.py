"""Score infinite GPFA and its peers on held-out entries; tell what the factors follow."""

from pathlib import Path

from popflow.evaluate.placecells import evaluate_placecells
from popflow.models.infinite_gpfa import InfiniteGPFA
from popflow.prepare.placecells import read_prepared
from popflow.runtime.files import write_tsv
from popflow.runtime.job import job

with job(snakemake):
    folders = [Path(path).parent for path in snakemake.input.models]
    fits = [
        (folder.parent.name, int(folder.name.removeprefix("seed-")), InfiniteGPFA.load(folder))
        for folder in folders
    ]
    evaluation, association = evaluate_placecells(
        snakemake.wildcards.dataset,
        read_prepared(snakemake.input.session),
        fits,
        snakemake.params.settings,
    )
    write_tsv(evaluation, snakemake.output.evaluation)
    write_tsv(association, snakemake.output.association)
