"""Prepare an expression matrix: log values, splits, statistics of training rows."""

from popflow.inputs import sheets
from popflow.prepare.expression import prepare_file
from popflow.runtime.files import write_tsv
from popflow.runtime.job import job

with job(snakemake):
    source, output = snakemake.params.source, snakemake.output
    simulated = source["source"].startswith("results/")
    units = sheets.read_units(source) if "sheet" in source and not simulated else []
    report = prepare_file(
        snakemake.input.source[0] if simulated else source["source"],
        snakemake.params.settings,
        output.h5ad,
        units,
        source.get("sheet", ""),
    )
    write_tsv(report, output.qc)
