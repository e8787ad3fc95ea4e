"""Prepare an expression matrix: log values, splits, statistics of training rows."""

from popflow.inputs import sheets
from popflow.inputs.expression import add_labels, read_expression
from popflow.prepare.expression import prepare_expression
from popflow.runtime.files import write_h5ad, write_tsv
from popflow.runtime.job import job

with job(snakemake) as log:
    settings, source = snakemake.params.settings, snakemake.params.source
    path = (
        snakemake.input.source[0] if source["source"].startswith("results/") else source["source"]
    )
    adata = read_expression(
        path, settings["orientation"], settings["genome"], settings["duplicates"]
    )
    if "sheet" in source and not source["source"].startswith("results/"):
        add_labels(adata, sheets.read_units(source), source["sheet"])
    prepared, report = prepare_expression(adata, settings)
    log.info("%d samples, %d genes", *prepared.shape)
    write_h5ad(prepared, snakemake.output.h5ad)
    write_tsv(report, snakemake.output.qc)
