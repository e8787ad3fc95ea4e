"""Expression -> URLOST."""


rule simulate_expression:
    output:
        h5ad="results/{dataset}/source/expression.h5ad",
    log:
        "logs/simulate_expression/{dataset}.log",
    benchmark:
        "logs/benchmarks/simulate_expression/{dataset}.tsv"
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=1500,
    params:
        settings=simulate_settings,
        code=code("simulate.expression"),
    message:
        "Simulate expression counts: {wildcards.dataset}"
    script:
        "../scripts/simulate_expression.py"


rule prepare_expression:
    input:
        source=source_files,
    output:
        h5ad="results/{dataset}/prepared/expression.h5ad",
        qc="results/{dataset}/prepared/qc.tsv",
    log:
        "logs/prepare_expression/{dataset}.log",
    benchmark:
        "logs/benchmarks/prepare_expression/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("expression")),
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=4000,
    params:
        source=source_row,
        settings=prepare_settings,
        code=code("inputs.expression", "prepare.expression"),
    message:
        "Prepare expression: {wildcards.dataset}"
    script:
        "../scripts/prepare_expression.py"


rule fit_urlost:
    input:
        h5ad="results/{dataset}/prepared/expression.h5ad",
    output:
        model="results/{dataset}/urlost/{variant}/seed-{seed}/model.safetensors",
        description="results/{dataset}/urlost/{variant}/seed-{seed}/model.json",
        history="results/{dataset}/urlost/{variant}/seed-{seed}/history.tsv",
        embedding="results/{dataset}/urlost/{variant}/seed-{seed}/embedding.h5ad",
        affinity="results/{dataset}/urlost/{variant}/seed-{seed}/affinity.npz",
    log:
        "logs/fit_urlost/{dataset}_{variant}_{seed}.log",
    benchmark:
        "logs/benchmarks/fit_urlost/{dataset}_{variant}_{seed}.tsv"
    conda:
        "../envs/models.yaml"
    threads: 1
    resources:
        mem_mb=4000,
    params:
        settings=fit_settings("urlost"),
        device=device(),
        checkpoints=checkpoint_folder("urlost"),
        code=code("models.urlost", "prepare.expression"),
    message:
        "Fit URLOST: {wildcards.dataset}, {wildcards.variant}, seed {wildcards.seed}"
    script:
        "../scripts/fit_urlost.py"


rule evaluate_expression:
    input:
        h5ad="results/{dataset}/prepared/expression.h5ad",
        embeddings=fit_files("urlost", "embedding.h5ad"),
    output:
        evaluation="results/{dataset}/evaluation.tsv",
        predictions="results/{dataset}/predictions.tsv",
    log:
        "logs/evaluate_expression/{dataset}.log",
    benchmark:
        "logs/benchmarks/evaluate_expression/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("expression")),
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=4000,
    params:
        settings=evaluate_settings,
        prepared=prepare_settings,
        code=code("evaluate.expression"),
    message:
        "Evaluate representations of {wildcards.dataset}"
    script:
        "../scripts/evaluate_expression.py"


rule draw_expression:
    input:
        evaluation="results/{dataset}/evaluation.tsv",
        predictions="results/{dataset}/predictions.tsv",
        h5ad="results/{dataset}/prepared/expression.h5ad",
        qc="results/{dataset}/prepared/qc.tsv",
        embedding=first_fit("urlost", "embedding.h5ad"),
        model=first_fit("urlost", "model.json"),
        affinity=first_fit("urlost", "affinity.npz"),
        histories=fit_files("urlost", "history.tsv"),
    output:
        clusters=report(
            "results/figures/{dataset}_clusters.png",
            caption="../workflow/report/expression_clusters.rst",
            category="Expression",
            labels={"dataset": "{dataset}", "figure": "clusters of genes"},
        ),
        embedding=report(
            "results/figures/{dataset}_embedding.png",
            caption="../workflow/report/expression_embedding.rst",
            category="Expression",
            labels={"dataset": "{dataset}", "figure": "embedding"},
        ),
        confusion=report(
            "results/figures/{dataset}_confusion.png",
            caption="../workflow/report/expression_confusion.rst",
            category="Expression",
            labels={"dataset": "{dataset}", "figure": "confusion"},
        ),
        comparison=report(
            "results/figures/{dataset}_comparison.png",
            caption="../workflow/report/expression_comparison.rst",
            category="Expression",
            labels={"dataset": "{dataset}", "figure": "method comparison"},
        ),
        training=report(
            "results/figures/{dataset}_training.png",
            caption="../workflow/report/expression_training.rst",
            category="Expression",
            labels={"dataset": "{dataset}", "figure": "training"},
        ),
        tables=multiext(
            "results/figures/{dataset}_",
            *figure_companions("clusters", "embedding", "confusion", "comparison", "training"),
        ),
    log:
        "logs/draw_expression/{dataset}.log",
    benchmark:
        "logs/benchmarks/draw_expression/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("expression")),
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        code=code("figures.expression", "figures.comparison"),
    message:
        "Draw the figures of {wildcards.dataset}"
    script:
        "../scripts/draw_expression.py"
