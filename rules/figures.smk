"""What a whole run leaves beside its results: provenance, time and memory."""


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
    conda:
        "../envs/analysis.yaml"
    threads: 1
    params:
        settings=resolved_settings,
        code=code("runtime.provenance"),
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
    conda:
        "../envs/analysis.yaml"
    threads: 1
    params:
        code=code("runtime.provenance"),
    message:
        "Gather time and memory of every rule"
    script:
        "../scripts/gather_benchmarks.py"
