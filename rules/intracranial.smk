"""Intracranial EEG -> PopT."""

STORE = ("features.npy", "event_features.npy", "event_spectrogram.npy")
TABLES = ("windows.tsv", "events.tsv", "electrodes.tsv", "qc.tsv")


rule simulate_intracranial:
    output:
        sheet="results/{dataset}/source/sessions.tsv",
    log:
        "logs/simulate_intracranial/{dataset}.log",
    benchmark:
        "logs/benchmarks/simulate_intracranial/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("intracranial")),
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=1500,
    params:
        settings=simulate_settings,
        code=code("simulate.intracranial"),
    message:
        "Simulate intracranial recordings: {wildcards.dataset}"
    script:
        "../scripts/simulate_intracranial.py"


rule prepare_intracranial:
    input:
        source=source_files,
    output:
        meta="results/{dataset}/prepared/{session}/meta.json",
        store=multiext("results/{dataset}/prepared/{session}/", *STORE),
        tables=multiext("results/{dataset}/prepared/{session}/", *TABLES),
    log:
        "logs/prepare_intracranial/{dataset}_{session}.log",
    benchmark:
        "logs/benchmarks/prepare_intracranial/{dataset}_{session}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("intracranial")),
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=1500,
    params:
        source=source_row,
        settings=prepare_settings,
        code=code("inputs.recordings", "prepare.intracranial"),
    message:
        "Prepare {wildcards.session} of {wildcards.dataset}"
    script:
        "../scripts/prepare_intracranial.py"


rule pretrain_popt:
    input:
        sessions=prepared_sessions,
    output:
        model="results/{dataset}/popt/{variant}/seed-{seed}/model.safetensors",
        description="results/{dataset}/popt/{variant}/seed-{seed}/model.json",
        history="results/{dataset}/popt/{variant}/seed-{seed}/history.tsv",
        embedding="results/{dataset}/popt/{variant}/seed-{seed}/embedding.h5ad",
    log:
        "logs/pretrain_popt/{dataset}_{variant}_{seed}.log",
    benchmark:
        "logs/benchmarks/pretrain_popt/{dataset}_{variant}_{seed}.tsv"
    conda:
        "../envs/models.yaml"
    threads: 1
    resources:
        mem_mb=3000,
    params:
        settings=pretraining_settings,
        device=device(),
        checkpoints=checkpoint_folder("popt"),
        code=code("models.popt", "prepare.intracranial"),
    message:
        "Pretrain PopT: {wildcards.dataset}, {wildcards.variant}, seed {wildcards.seed}"
    script:
        "../scripts/pretrain_popt.py"


rule finetune_popt:
    input:
        sessions=prepared_sessions,
        model="results/{dataset}/popt/{variant}/seed-{seed}/model.safetensors",
        description="results/{dataset}/popt/{variant}/seed-{seed}/model.json",
    output:
        decoding="results/{dataset}/popt/{variant}/seed-{seed}/decoding.tsv",
    log:
        "logs/finetune_popt/{dataset}_{variant}_{seed}.log",
    benchmark:
        "logs/benchmarks/finetune_popt/{dataset}_{variant}_{seed}.tsv"
    conda:
        "../envs/models.yaml"
    threads: 1
    resources:
        mem_mb=3000,
    params:
        settings=evaluate_settings,
        preset=fit_settings("popt"),
        device=device(),
        code=code("models.popt", "evaluate.intracranial"),
    message:
        "Decode with PopT: {wildcards.dataset}, {wildcards.variant}, seed {wildcards.seed}"
    script:
        "../scripts/finetune_popt.py"


rule evaluate_intracranial:
    input:
        sessions=prepared_sessions,
        decoding=fit_files("popt", "decoding.tsv"),
    output:
        evaluation="results/{dataset}/evaluation.tsv",
        splits="results/{dataset}/decoding_splits.tsv",
        channels="results/{dataset}/channel_scores.tsv",
    log:
        "logs/evaluate_intracranial/{dataset}.log",
    benchmark:
        "logs/benchmarks/evaluate_intracranial/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("intracranial")),
    conda:
        "../envs/models.yaml"
    threads: 1
    resources:
        mem_mb=3000,
    params:
        settings=evaluate_settings,
        preset=preset_of_first_fit,
        code=code("evaluate.intracranial", "evaluate.decoding"),
    message:
        "Evaluate PopT and the baselines of {wildcards.dataset}"
    script:
        "../scripts/evaluate_intracranial.py"


rule draw_intracranial:
    input:
        evaluation="results/{dataset}/evaluation.tsv",
        sessions=prepared_sessions,
        channels="results/{dataset}/channel_scores.tsv",
        histories=fit_files("popt", "history.tsv"),
    output:
        electrodes=report(
            "results/figures/{dataset}_electrodes.png",
            caption="../workflow/report/intracranial_electrodes.rst",
            category="Intracranial",
            labels={"dataset": "{dataset}", "figure": "electrodes"},
        ),
        pretraining=report(
            "results/figures/{dataset}_pretraining.png",
            caption="../workflow/report/intracranial_pretraining.rst",
            category="Intracranial",
            labels={"dataset": "{dataset}", "figure": "pretraining"},
        ),
        objectives=report(
            "results/figures/{dataset}_objectives.png",
            caption="../workflow/report/intracranial_objectives.rst",
            category="Intracranial",
            labels={"dataset": "{dataset}", "figure": "objectives"},
        ),
        decoding=report(
            "results/figures/{dataset}_decoding.png",
            caption="../workflow/report/intracranial_decoding.rst",
            category="Intracranial",
            labels={"dataset": "{dataset}", "figure": "decoding per subject"},
        ),
        comparison=report(
            "results/figures/{dataset}_comparison.png",
            caption="../workflow/report/intracranial_comparison.rst",
            category="Intracranial",
            labels={"dataset": "{dataset}", "figure": "method comparison"},
        ),
        tables=multiext(
            "results/figures/{dataset}_",
            *figure_companions(
                "electrodes", "pretraining", "objectives", "decoding", "comparison"
            ),
        ),
    log:
        "logs/draw_intracranial/{dataset}.log",
    benchmark:
        "logs/benchmarks/draw_intracranial/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("intracranial")),
    conda:
        "../envs/models.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        code=code("figures.intracranial", "figures.comparison"),
    message:
        "Draw the figures of {wildcards.dataset}"
    script:
        "../scripts/draw_intracranial.py"
