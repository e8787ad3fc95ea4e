"""Simulations with known factors -> infinite GPFA held against the truth."""


localrules:
    infinite_gpfa_experiments,


rule infinite_gpfa_experiments:
    input:
        "results/experiments/infinite_gpfa.tsv",
        "results/figures/infinite_gpfa_scenarios.png",
        "results/figures/infinite_gpfa_scaling.png",


rule run_scenario:
    output:
        table="results/experiments/infinite_gpfa/{scenario}_{seed}.tsv",
    log:
        "logs/run_scenario/{scenario}_{seed}.log",
    benchmark:
        "logs/benchmarks/run_scenario/{scenario}_{seed}.tsv"
    wildcard_constraints:
        scenario="[a-z0-9_]+",
    conda:
        "../envs/models.yaml"
    threads: 1
    resources:
        mem_mb=1500,
    params:
        scenario=scenario_settings,
        settings=lambda wildcards: experiments()["settings"],
        held_out=lambda wildcards: experiments()["held_out"],
        code=code("evaluate.factors", "simulate.factors"),
    message:
        "Fit simulated factors: {wildcards.scenario}, seed {wildcards.seed}"
    script:
        "../scripts/run_scenario.py"


rule measure_scaling:
    output:
        table="results/experiments/infinite_gpfa/scaling.tsv",
    log:
        "logs/measure_scaling/log.txt",
    benchmark:
        "logs/benchmarks/measure_scaling/log.tsv"
    conda:
        "../envs/models.yaml"
    threads: 1
    resources:
        mem_mb=2500,
    params:
        scaling=lambda wildcards: experiments()["scaling"],
        code=code("evaluate.scaling"),
    message:
        "Measure the time of an iteration against bins and units"
    script:
        "../scripts/measure_scaling.py"


rule draw_experiments:
    input:
        tables=scenario_tables,
        scaling="results/experiments/infinite_gpfa/scaling.tsv",
    output:
        table="results/experiments/infinite_gpfa.tsv",
        scenarios=report(
            "results/figures/infinite_gpfa_scenarios.png",
            caption="../workflow/report/infinite_gpfa_scenarios.rst",
            category="Experiments",
            labels={"dataset": "simulated factors", "figure": "recovery"},
        ),
        scaling=report(
            "results/figures/infinite_gpfa_scaling.png",
            caption="../workflow/report/infinite_gpfa_scaling.rst",
            category="Experiments",
            labels={"dataset": "simulated factors", "figure": "time"},
        ),
        tables=multiext(
            "results/figures/infinite_gpfa_",
            *figure_companions("scenarios", "scaling"),
        ),
    log:
        "logs/draw_experiments/log.txt",
    benchmark:
        "logs/benchmarks/draw_experiments/log.tsv"
    conda:
        "../envs/models.yaml"
    threads: 1
    resources:
        mem_mb=1000,
    params:
        code=code("figures.factors"),
    message:
        "Draw the experiments with known factors"
    script:
        "../scripts/draw_experiments.py"
