"""Place cells -> infinite GPFA."""


rule simulate_placecells:
    input:
        trajectory=trajectory_file,
    output:
        nwb="results/{dataset}/source/session.nwb",
        truth="results/{dataset}/source/truth.h5",
    log:
        "logs/simulate_placecells/{dataset}.log",
    benchmark:
        "logs/benchmarks/simulate_placecells/{dataset}.tsv"
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=1500,
    params:
        settings=simulate_settings,
        code=code("simulate.placecells"),
    message:
        "Simulate place cells: {wildcards.dataset}"
    script:
        "../scripts/simulate_placecells.py"


rule prepare_placecells:
    input:
        source=source_files,
    output:
        session="results/{dataset}/prepared/session.h5",
        qc="results/{dataset}/prepared/qc.tsv",
    log:
        "logs/prepare_placecells/{dataset}.log",
    benchmark:
        "logs/benchmarks/prepare_placecells/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("placecells")),
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        unit=session_unit,
        settings=prepare_settings,
        code=code("inputs.spikes", "prepare.placecells"),
    message:
        "Bin spikes and tracking: {wildcards.dataset}"
    script:
        "../scripts/prepare_placecells.py"


rule fit_infinite_gpfa:
    input:
        session="results/{dataset}/prepared/session.h5",
    output:
        model="results/{dataset}/infinite_gpfa/{variant}/seed-{seed}/model.safetensors",
        description="results/{dataset}/infinite_gpfa/{variant}/seed-{seed}/model.json",
        history="results/{dataset}/infinite_gpfa/{variant}/seed-{seed}/history.tsv",
        posterior="results/{dataset}/infinite_gpfa/{variant}/seed-{seed}/posterior.h5",
    log:
        "logs/fit_infinite_gpfa/{dataset}_{variant}_{seed}.log",
    benchmark:
        "logs/benchmarks/fit_infinite_gpfa/{dataset}_{variant}_{seed}.tsv"
    conda:
        "../envs/models.yaml"
    threads: 1
    resources:
        mem_mb=3000,
    params:
        settings=fit_settings("infinite_gpfa"),
        checkpoints=checkpoint_folder("infinite_gpfa"),
        code=code("models.infinite_gpfa", "prepare.placecells"),
    message:
        "Fit infinite GPFA: {wildcards.dataset}, {wildcards.variant}, seed {wildcards.seed}"
    script:
        "../scripts/fit_infinite_gpfa.py"


rule evaluate_placecells:
    input:
        session="results/{dataset}/prepared/session.h5",
        models=fit_files("infinite_gpfa", "model.json"),
        weights=fit_files("infinite_gpfa", "model.safetensors"),
    output:
        evaluation="results/{dataset}/evaluation.tsv",
        association="results/{dataset}/association.tsv",
    log:
        "logs/evaluate_placecells/{dataset}.log",
    benchmark:
        "logs/benchmarks/evaluate_placecells/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("placecells")),
    conda:
        "../envs/analysis.yaml"
    threads: 1
    resources:
        mem_mb=3000,
    params:
        settings=evaluate_settings,
        code=code("evaluate.placecells"),
    message:
        "Evaluate factors of {wildcards.dataset}"
    script:
        "../scripts/evaluate_placecells.py"


rule draw_placecells:
    input:
        session="results/{dataset}/prepared/session.h5",
        evaluation="results/{dataset}/evaluation.tsv",
        association="results/{dataset}/association.tsv",
        models=fit_files("infinite_gpfa", "model.json"),
        weights=fit_files("infinite_gpfa", "model.safetensors"),
    output:
        raster=report(
            "results/figures/{dataset}_raster.png",
            caption="../workflow/report/placecells_raster.rst",
            category="Place cells",
            labels={"dataset": "{dataset}", "figure": "spikes and position"},
        ),
        latents=report(
            "results/figures/{dataset}_latents.png",
            caption="../workflow/report/placecells_latents.rst",
            category="Place cells",
            labels={"dataset": "{dataset}", "figure": "factors and masks over time"},
        ),
        factors=report(
            "results/figures/{dataset}_factors.png",
            caption="../workflow/report/placecells_factors.rst",
            category="Place cells",
            labels={"dataset": "{dataset}", "figure": "number of factors"},
        ),
        maps=report(
            "results/figures/{dataset}_maps.png",
            caption="../workflow/report/placecells_maps.rst",
            category="Place cells",
            labels={"dataset": "{dataset}", "figure": "rate maps"},
        ),
        comparison=report(
            "results/figures/{dataset}_comparison.png",
            caption="../workflow/report/placecells_comparison.rst",
            category="Place cells",
            labels={"dataset": "{dataset}", "figure": "method comparison"},
        ),
        tables=multiext(
            "results/figures/{dataset}_",
            *figure_companions("raster", "latents", "factors", "maps", "comparison"),
        ),
    log:
        "logs/draw_placecells/{dataset}.log",
    benchmark:
        "logs/benchmarks/draw_placecells/{dataset}.tsv"
    wildcard_constraints:
        dataset=one_of(datasets_of("placecells")),
    conda:
        "../envs/models.yaml"
    threads: 1
    resources:
        mem_mb=2000,
    params:
        code=code("figures.placecells"),
    message:
        "Draw the figures of {wildcards.dataset}"
    script:
        "../scripts/draw_placecells.py"
