"""Fit infinite GPFA to a session, without the entries that the seed holds out."""

from pathlib import Path

from popflow.models.infinite_gpfa.session import fit_session, write_posterior
from popflow.prepare.placecells import read_prepared
from popflow.runtime.files import write_tsv
from popflow.runtime.fingerprints import file_fingerprint
from popflow.runtime.job import checkpoints_of, job

with job(snakemake) as log:
    wildcards, params, output = snakemake.wildcards, snakemake.params, snakemake.output
    session, seed = read_prepared(snakemake.input.session), int(wildcards.seed)
    model = fit_session(
        session,
        params.settings,
        seed,
        checkpoints_of(snakemake),
        f"infinite GPFA {wildcards.dataset} {wildcards.variant} seed {seed}",
    )
    log.info("%d effective factors, restarts %s", model.n_effective_, model.restart_elbos_)
    model.save(
        Path(output.model).parent,
        code=params.code,
        data=file_fingerprint(snakemake.input.session),
        variant=str(wildcards.variant),
    )
    write_tsv(model.history(), output.history)
    write_posterior(model, session, output.posterior)
