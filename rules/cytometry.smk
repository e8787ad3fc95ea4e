"""Cytometry -> MAESTRO."""


rule simulate_cytometry:
    output:
        samples="results/{dataset}/source/samples.tsv",
        panel="results/{dataset}/source/panel.tsv",
    log:
        "logs/simulate_cytometry/{dataset}.log",
    benchmark:
        "logs/benchmarks/simulate_cytometry/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("cytometry")),
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=1500,
    params:
        settings=simulate_settings,
        code=code("simulate.cytometry"),
    message:
        "Simulate a cytometry cohort: {wildcards.dataset}"
    script:
        "../scripts/simulate_cytometry.py"


rule prepare_cytometry:
    input:
        source=source_files,
    output:
        samples=directory("results/{dataset}/prepared/samples"),
        cohort="results/{dataset}/prepared/cohort.tsv",
        panel="results/{dataset}/prepared/panel.tsv",
        qc="results/{dataset}/prepared/qc.tsv",
        splits="results/{dataset}/prepared/splits.tsv",
    log:
        "logs/prepare_cytometry/{dataset}.log",
    benchmark:
        "logs/benchmarks/prepare_cytometry/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("cytometry")),
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=3000,
    params:
        source=source_row,
        settings=prepare_settings,
        code=code("prepare.cytometry"),
    message:
        "Prepare the samples of {wildcards.dataset}"
    script:
        "../scripts/prepare_cytometry.py"


rule fit_maestro:
    input:
        samples="results/{dataset}/prepared/samples",
        cohort="results/{dataset}/prepared/cohort.tsv",
        panel="results/{dataset}/prepared/panel.tsv",
        splits="results/{dataset}/prepared/splits.tsv",
    output:
        model="results/{dataset}/maestro/{variant}/seed-{seed}/model.safetensors",
        description="results/{dataset}/maestro/{variant}/seed-{seed}/model.json",
        history="results/{dataset}/maestro/{variant}/seed-{seed}/history.tsv",
        embedding="results/{dataset}/maestro/{variant}/seed-{seed}/embedding.h5ad",
    log:
        "logs/fit_maestro/{dataset}_{variant}_{seed}.log",
    benchmark:
        "logs/benchmarks/fit_maestro/{dataset}_{variant}_{seed}.tsv"
    conda:
        "../envs/models.yaml"
    threads: 1
    resources:
        mem_mb=3000,
    params:
        settings=fit_settings("maestro"),
        checkpoints=checkpoint_folder("maestro"),
        device=device(),
        code=code("models.maestro"),
    message:
        "Fit MAESTRO: {wildcards.dataset}, {wildcards.variant}, seed {wildcards.seed}"
    script:
        "../scripts/fit_maestro.py"


rule evaluate_cytometry:
    input:
        samples="results/{dataset}/prepared/samples",
        cohort="results/{dataset}/prepared/cohort.tsv",
        panel="results/{dataset}/prepared/panel.tsv",
        splits="results/{dataset}/prepared/splits.tsv",
        embeddings=fit_files("maestro", "embedding.h5ad"),
    output:
        evaluation="results/{dataset}/evaluation.tsv",
        predictions="results/{dataset}/predictions.tsv",
    log:
        "logs/evaluate_cytometry/{dataset}.log",
    benchmark:
        "logs/benchmarks/evaluate_cytometry/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("cytometry")),
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=3000,
    params:
        settings=evaluate_settings,
        code=code("evaluate.cytometry"),
    message:
        "Evaluate the sample vectors of {wildcards.dataset}"
    script:
        "../scripts/evaluate_cytometry.py"


rule draw_cytometry:
    input:
        cohort="results/{dataset}/prepared/cohort.tsv",
        qc="results/{dataset}/prepared/qc.tsv",
        evaluation="results/{dataset}/evaluation.tsv",
        embeddings=fit_files("maestro", "embedding.h5ad"),
        histories=fit_files("maestro", "history.tsv"),
    output:
        quality=report(
            "results/figures/{dataset}_quality.png",
            caption="../workflow/report/cytometry_quality.rst",
            category="Cytometry",
            labels={"dataset": "{dataset}", "figure": "quality"},
        ),
        embedding=report(
            "results/figures/{dataset}_embedding.png",
            caption="../workflow/report/cytometry_embedding.rst",
            category="Cytometry",
            labels={"dataset": "{dataset}", "figure": "embedding"},
        ),
        comparison=report(
            "results/figures/{dataset}_comparison.png",
            caption="../workflow/report/cytometry_comparison.rst",
            category="Cytometry",
            labels={"dataset": "{dataset}", "figure": "method comparison"},
        ),
        training=report(
            "results/figures/{dataset}_training.png",
            caption="../workflow/report/cytometry_training.rst",
            category="Cytometry",
            labels={"dataset": "{dataset}", "figure": "training"},
        ),
        tables=multiext(
            "results/figures/{dataset}_",
            *figure_companions("quality", "embedding", "comparison", "training"),
        ),
    log:
        "logs/draw_cytometry/{dataset}.log",
    benchmark:
        "logs/benchmarks/draw_cytometry/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("cytometry")),
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        code=code("figures.cytometry"),
    message:
        "Draw the figures of {wildcards.dataset}"
    script:
        "../scripts/draw_cytometry.py"


rule draw_proportions:
    input:
        predictions="results/{dataset}/predictions.tsv",
    output:
        proportions=report(
            "results/figures/{dataset}_proportions.png",
            caption="../workflow/report/cytometry_proportions.rst",
            category="Cytometry",
            labels={"dataset": "{dataset}", "figure": "cell-type proportions"},
        ),
        tables=multiext("results/figures/{dataset}_", *figure_companions("proportions")),
    log:
        "logs/draw_proportions/{dataset}.log",
    benchmark:
        "logs/benchmarks/draw_proportions/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("cytometry")),
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=1500,
    params:
        code=code("figures.cytometry"),
    message:
        "Draw the cell-type proportions of {wildcards.dataset}"
    script:
        "../scripts/draw_proportions.py"
