"""Configuration, wildcards and the input and params functions that the rules share."""

import sys
from importlib import import_module
from pathlib import Path

from snakemake.exceptions import WorkflowError

from popflow.inputs import config as popflow_config
from popflow.inputs import packages, sheets
from popflow.runtime.fingerprints import code_fingerprint as code
from popflow.runtime.fingerprints import settings_fingerprint
from popflow.runtime.library import share_library
from popflow.runtime.refusal import Refusal, Refusals


def usable_interpreter():
    """Refuse a Python whose path Snakemake cannot call: it runs scripts without quoting it."""
    if any(character.isspace() for character in sys.executable):
        raise WorkflowError(
            f"Snakemake cannot run scripts with {sys.executable}: its path holds a space.\n"
            "Fix: move the repository to a folder without spaces and run make setup there."
        )


def resolved_config():
    """Check the configuration; a mistake ends the run with its message before any job starts.

    With ``--configfile`` only that file counts (Snakemake would lay it over config/config.yaml, with
    datasets that its own sheet does not know); ``--config key=value`` is laid over either.
    """
    chosen = [Path(file) for file in workflow.overwrite_configfiles]
    file = chosen[-1] if chosen else Path("config/config.yaml")
    try:
        given = popflow_config.read_yaml(file) | dict(workflow.config_settings.config)
        return popflow_config.resolve_config(given, file.parent, str(file))
    except (Refusal, Refusals) as refusal:
        raise WorkflowError(f"the configuration is refused.\n{refusal}") from None


usable_interpreter()
share_library()
CONFIG = resolved_config()


wildcard_constraints:
    dataset="[A-Za-z0-9]+",
    variant="[a-z0-9_]+",
    seed=r"\d+",
    sample="[A-Za-z0-9_.-]+",
    session="[A-Za-z0-9_.-]+",


def datasets_of(modality):
    """List the ids of the datasets of a modality, in the sheet's order."""
    return [name for name, row in CONFIG.datasets.items() if row["modality"] == modality]


def one_of(datasets):
    """Give a wildcard constraint that only these datasets meet."""
    return "|".join(datasets) or "no_dataset"


def is_simulated(dataset):
    return CONFIG.datasets[dataset]["source"] == sheets.SIMULATED


def sheet_path(dataset):
    """Give the modality's sheet; a simulated dataset brings its own."""
    row = CONFIG.datasets[dataset]
    if is_simulated(dataset):
        return f"results/{dataset}/source/{SHEETS[row['modality']]}"
    return str(row.get("sheet", ""))


SHEETS = {
    "cytometry": "samples.tsv",
    "expression": "expression.h5ad",
    "intracranial": "sessions.tsv",
    "placecells": "session.nwb",
}


def source_files(wildcards):
    """List the files that the preparation of a dataset reads."""
    if is_simulated(wildcards.dataset):
        return [sheet_path(wildcards.dataset)]
    return sheets.files_of(CONFIG.datasets[wildcards.dataset])


def source_row(wildcards):
    """Give the dataset's row of the datasets sheet as text, for a script that reads the source."""
    row = {key: str(value) for key, value in CONFIG.datasets[wildcards.dataset].items()}
    if is_simulated(wildcards.dataset):
        row["source"] = f"results/{wildcards.dataset}/source"
        row["sheet"] = sheet_path(wildcards.dataset)
    return row


def session_unit(wildcards):
    """Give the one session of a dataset of place cells: its row of the sheet, or its file alone."""
    row = CONFIG.datasets[wildcards.dataset]
    if is_simulated(wildcards.dataset):
        return {"path": sheet_path(wildcards.dataset)}
    return next(iter(sheets.read_units(row)), {"path": str(row["source"])})


def units_of(dataset):
    """List the samples or sessions of a dataset."""
    row = CONFIG.datasets[dataset]
    if is_simulated(dataset):
        simulator = import_module(f"popflow.simulate.{row['modality']}")
        return simulator.unit_ids(CONFIG.stages["simulate"][dataset])
    column = sheets.UNIT_COLUMNS[row["modality"]]
    return [unit[column] for unit in sheets.read_units(row)]


def prepare_settings(wildcards):
    return CONFIG.stages["prepare"][wildcards.dataset]


def simulate_settings(wildcards):
    return CONFIG.stages["simulate"][wildcards.dataset]


def evaluate_settings(wildcards):
    return CONFIG.stages["evaluate"][wildcards.dataset]


def fit_of(dataset, model, variant):
    """Give the first fit of a model's variant on a dataset."""
    wanted = (dataset, model, variant)
    for fit in CONFIG.fits:
        if (fit["dataset"], fit["model"], fit["variant"]) == wanted:
            return fit
    raise WorkflowError(f"config.yaml lists no fit of {model}, variant {variant}, on {dataset}")


def fit_settings(model):
    """Give a params function: the settings of the fit that the wildcards name."""

    def settings(wildcards):
        return fit_of(wildcards.dataset, model, wildcards.variant)["settings"]

    return settings


def fits_of(dataset, model):
    """List (variant, seed) of the fits of a model on a dataset."""
    fits = [fit for fit in CONFIG.fits if (fit["dataset"], fit["model"]) == (dataset, model)]
    return [(fit["variant"], fit["seed"]) for fit in fits]


def fit_files(model, name):
    """Give an input function: a file of every fit of a model on the wildcards' dataset."""

    def files(wildcards):
        folder = f"results/{wildcards.dataset}/{model}"
        return [
            f"{folder}/{variant}/seed-{seed}/{name}"
            for variant, seed in fits_of(wildcards.dataset, model)
        ]

    return files


def first_fit(model, name):
    """Give an input function: a file of the first fit, which figures of a single fit show."""

    def file(wildcards):
        return fit_files(model, name)(wildcards)[0]

    return file


def figure_companions(*figures):
    """List the suffixes of what is written beside each figure's PNG."""
    return [f"{figure}.{suffix}" for figure in figures for suffix in ("pdf", "tsv")]


def checkpoint_folder(model):
    """Give a params function: where a fit keeps its checkpoints.

    The hash of the fit's settings and of those of its preparation is in the path, so that a fit
    never goes on from another setting's state.
    """

    def folder(wildcards):
        fit = fit_of(wildcards.dataset, model, wildcards.variant)
        # Fine-tuning does not concern pretraining, and so not its checkpoints either.
        settings = {key: value for key, value in fit["settings"].items() if key != "finetune"}
        key = settings_fingerprint(
            [
                settings,
                CONFIG.stages["prepare"][wildcards.dataset],
                CONFIG.stages["simulate"].get(wildcards.dataset),
                code(f"models.{model}"),
                wildcards.seed,
            ]
        )
        return f"checkpoints/{model}/{wildcards.dataset}/{wildcards.variant}-{key}"

    return folder


def device():
    return CONFIG.settings["device"]


def trajectory_file(wildcards):
    """Give the path of a real animal on which place cells are simulated."""
    source = CONFIG.stages["simulate"][wildcards.dataset]["trajectory"]
    return str(packages.locate(source)) if source.startswith(packages.PREFIX) else source


def placecells_targets():
    """List the final files of every fitted place-cell dataset."""
    figures = ("raster", "latents", "factors", "maps", "comparison")
    return final_files("placecells", ["session.h5"], figures)


def expression_targets():
    """List the final files of every fitted expression dataset."""
    figures = ("clusters", "embedding", "confusion", "comparison", "training")
    return final_files("expression", ["expression.h5ad"], figures)


def fitted(modality):
    """List the datasets of a modality that are fitted; others are prepared on demand only."""
    named = {fit["dataset"] for fit in CONFIG.fits}
    return [dataset for dataset in datasets_of(modality) if dataset in named]


def final_files(modality, prepared, figures):
    """List what the fitted datasets of a modality end in: prepared files, scores and figures."""
    targets = []
    for dataset in fitted(modality):
        targets += [f"results/{dataset}/prepared/{name}" for name in prepared]
        targets += ends_of(dataset, figures)
    return targets


def ends_of(dataset, figures):
    """List the scores and the figures of a dataset."""
    drawn = [f"results/figures/{dataset}_{figure}.png" for figure in figures]
    return [f"results/{dataset}/evaluation.tsv", *drawn]


def has_cell_types(dataset):
    """Tell whether the events of a dataset are gated, so that proportions can be drawn."""
    if is_simulated(dataset):
        return True
    return all("cell_types" in unit for unit in sheets.read_units(CONFIG.datasets[dataset]))


def cytometry_targets():
    """List the final files of every fitted cytometry dataset."""
    targets = []
    for dataset in fitted("cytometry"):
        figures = ["quality", "embedding", "comparison", "training"]
        figures += ["proportions"] * has_cell_types(dataset)
        targets += [f"results/{dataset}/prepared/cohort.tsv", *ends_of(dataset, figures)]
    return targets


def prepared_sessions(wildcards):
    """List meta.json of every prepared session of a dataset; it holds the hashes of the others."""
    folder = f"results/{wildcards.dataset}/prepared"
    return [f"{folder}/{session}/meta.json" for session in units_of(wildcards.dataset)]


def preset_of_first_fit(wildcards):
    """Give the settings of the first fit: baselines score the pairs that its sampler draws."""
    variant, _ = fits_of(wildcards.dataset, "popt")[0]
    return fit_of(wildcards.dataset, "popt", variant)["settings"]


def pretraining_settings(wildcards):
    """Give a fit's settings without those of fine-tuning, which do not concern pretraining."""
    settings = fit_settings("popt")(wildcards)
    return {key: value for key, value in settings.items() if key != "finetune"}


def intracranial_targets():
    """List the final files of every fitted intracranial dataset."""
    figures = ("electrodes", "pretraining", "objectives", "decoding", "comparison")
    targets = []
    for dataset in fitted("intracranial"):
        sessions = units_of(dataset)
        targets += [f"results/{dataset}/prepared/{session}/meta.json" for session in sessions]
        targets += ends_of(dataset, figures)
    return targets


def evaluation_tables():
    """List evaluation.tsv of every dataset that is fitted, in the sheet's order."""
    named = {fit["dataset"] for fit in CONFIG.fits}
    return [f"results/{dataset}/evaluation.tsv" for dataset in CONFIG.datasets if dataset in named]


def lab_files(wildcards):
    """List the files of every fitted dataset that is not simulated."""
    named = {fit["dataset"] for fit in CONFIG.fits}
    rows = [
        row for name, row in CONFIG.datasets.items() if name in named and not is_simulated(name)
    ]
    return sorted({file for row in rows for file in sheets.files_of(row)})


def resolved_settings(wildcards):
    """Give the resolved configuration, without machine paths."""
    return {"config": CONFIG.settings, "stages": CONFIG.stages, "fits": CONFIG.fits}


def figures_targets():
    """List what a whole run leaves beside its datasets."""
    return ["results/provenance.json", "results/benchmarks.tsv"]


def experiments():
    """Read config/experiments.yaml, of the working directory or else of the repository."""
    own = Path("config/experiments.yaml")
    file = own if own.is_file() else Path(workflow.basedir) / "config/experiments.yaml"
    try:
        return popflow_config.read_experiments(file)
    except (Refusal, Refusals) as refusal:
        raise WorkflowError(f"the experiments are refused.\n{refusal}") from None


def scenario_settings(wildcards):
    return experiments()["scenarios"][wildcards.scenario]


def scenario_tables(wildcards):
    """List the tables of all scenarios and seeds."""
    chosen = experiments()
    return expand(
        "results/experiments/infinite_gpfa/{scenario}_{seed}.tsv",
        scenario=chosen["scenarios"],
        seed=chosen["seeds"],
    )
