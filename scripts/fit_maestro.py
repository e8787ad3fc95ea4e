"""Fit MAESTRO on the training samples of a cohort and embed all of its samples."""

from pathlib import Path

from popflow.models.maestro import fit_maestro
from popflow.runtime.job import checkpoints_of, job

with job(snakemake):
    params, wildcards = snakemake.params, snakemake.wildcards
    fit_maestro(
        Path(snakemake.input.cohort).parent,
        params.settings,
        int(wildcards.seed),
        Path(snakemake.output.model).parent,
        checkpoints_of(snakemake),
        params.device,
        f"maestro {wildcards.dataset} {wildcards.variant} seed {wildcards.seed}",
        {"variant": wildcards.variant, "code": params.code},
    )
