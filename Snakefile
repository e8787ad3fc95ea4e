"""popflow: populations of cells, genes, electrodes and place cells, and their representations."""

from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "rules/common.smk"
include: "rules/cytometry.smk"
include: "rules/expression.smk"
include: "rules/intracranial.smk"
include: "rules/placecells.smk"
include: "rules/experiments.smk"
include: "rules/figures.smk"


rule all:
    default_target: True
    input:
        cytometry_targets(),
        expression_targets(),
        intracranial_targets(),
        placecells_targets(),
        figures_targets(),


rule cytometry:
    input:
        cytometry_targets(),


rule expression:
    input:
        expression_targets(),


rule intracranial:
    input:
        intracranial_targets(),


rule placecells:
    input:
        placecells_targets(),
