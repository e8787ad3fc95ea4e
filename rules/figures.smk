"""What a whole run leaves beside its results: provenance, time and memory."""


def evaluation_tables():
    """List evaluation.tsv of every dataset that is fitted, in the sheet's order."""
    fitted = {fit["dataset"] for fit in CONFIG.fits}
    return [f"results/{dataset}/evaluation.tsv" for dataset in CONFIG.datasets if dataset in fitted]


def lab_files(wildcards):
    """List the files of every dataset that is not simulated."""
    rows = [row for row in CONFIG.datasets.values() if not is_simulated(row["dataset"])]
    return sorted({file for row in rows for file in sheets.files_of(row)})


def resolved_settings(wildcards):
    """Give the resolved configuration, without machine paths."""
    return {"config": CONFIG.settings, "stages": CONFIG.stages, "fits": CONFIG.fits}


localrules:
    write_provenance,
    gather_benchmarks,


rule write_provenance:
    input:
        results=evaluation_tables(),
        files=lab_files,
    output:
        json="results/provenance.json",
    log:
        "logs/write_provenance/log.txt",
    threads: 1
    params:
        settings=resolved_settings,
        code=code("runtime.provenance"),
    conda:
        "../envs/analysis.yaml"
    message:
        "Write down what was run"
    script:
        "../scripts/write_provenance.py"


rule gather_benchmarks:
    input:
        results=evaluation_tables(),
    output:
        tsv=report(
            "results/benchmarks.tsv",
            caption="../workflow/report/benchmarks.rst",
            category="Run",
            labels={"dataset": "all", "figure": "time and memory per rule"},
        ),
    log:
        "logs/gather_benchmarks/log.txt",
    threads: 1
    params:
        code=code("runtime.provenance"),
    conda:
        "../envs/analysis.yaml"
    message:
        "Gather time and memory of every rule"
    script:
        "../scripts/gather_benchmarks.py"


def figures_targets():
    """List what a whole run leaves beside its datasets."""
    return ["results/provenance.json", "results/benchmarks.tsv"]
