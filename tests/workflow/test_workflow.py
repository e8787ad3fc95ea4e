"""The workflow as a user meets it, on a small simulated dataset."""

import hashlib
import shutil

import pytest
import yaml

from tests.conftest import ROOT, run

TINY = {
    "presets": {
        "small": {
            "clusters": {"number": 6},
            "network": {"width": 16, "encoder_depth": 1, "head_width": 8},
            "training": {"epochs": 1, "min_updates": 20, "batch": 16},
        }
    },
    "variants": {"default": {}, "untrained": {"training": {"epochs": 0}}},
}
CONFIG = {
    "fits": [{"dataset": "tiny", "model": "urlost", "variants": ["default"], "seeds": [0, 1, 2]}],
    "simulate": {"tiny": {"samples": 60, "modules": 6, "genes_per_module": 8, "classes": 2}},
    "prepare": {"tiny": {"folds": 3, "min_class": 5}},
}


def snakemake(folder, *options, **variables):
    """Run the workflow in a folder of its own."""
    return run(
        "snakemake",
        "--snakefile",
        str(ROOT / "Snakefile"),
        "--configfile",
        str(folder / "config" / "config.yaml"),
        "--directory",
        str(folder),
        "--cores",
        "2",
        *options,
        **variables,
    )


def write(folder, **changes):
    (folder / "config" / "presets").mkdir(parents=True, exist_ok=True)
    (folder / "config" / "datasets.tsv").write_text(
        "dataset\tmodality\tsource\ntiny\texpression\tsimulated\n"
    )
    (folder / "config" / "config.yaml").write_text(yaml.safe_dump(CONFIG | changes))
    (folder / "config" / "presets" / "urlost.yaml").write_text(yaml.safe_dump(TINY))


def planned(done):
    """List the rules of a dry run, from its table of jobs."""
    lines = (done.stdout + done.stderr).splitlines()
    start = next(i for i, line in enumerate(lines) if line.split() == ["job", "count"])
    rows = [line.split() for line in lines[start + 2 :]]
    stop = next(i for i, row in enumerate(rows) if row[:1] == ["total"])
    return {row[0] for row in rows[:stop]} - {"all"}


def changed(folder, module):
    """Copy the library and change one module of the copy; give the folder that holds it."""
    place = folder / module.replace("/", "-")
    for name in ("workflow", "config"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    with open(place / "workflow" / "popflow" / f"{module}.py", "a") as file:
        file.write("\n\nCHANGED = True\n")
    return str(place / "workflow")


def digests(folder, *patterns):
    files = sorted(file for pattern in patterns for file in folder.glob(f"results/{pattern}"))
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.mark.slow
def test_a_run_its_repetition_its_changes_and_its_report(tmp_path):
    folder = tmp_path / "a run"
    write(folder)
    done = snakemake(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "results" / "provenance.json").is_file()
    assert "Nothing to be done" in (text := snakemake(folder, "-n")).stdout + text.stderr
    first = digests(folder, "*/evaluation.tsv", "figures/*.png", "figures/*.tsv")
    assert len(first) == 11

    write(folder, evaluate={"tiny": {"components": 5}})
    assert planned(snakemake(folder, "-n")) == {
        "evaluate_expression",
        "draw_expression",
        "write_provenance",
        "gather_benchmarks",
    }
    write(folder)
    after = snakemake(folder, "-n", PYTHONPATH=changed(tmp_path, "models/urlost/network"))
    assert planned(after) == {
        "fit_urlost",
        "evaluate_expression",
        "draw_expression",
        "write_provenance",
        "gather_benchmarks",
    }
    after = snakemake(folder, "-n", PYTHONPATH=changed(tmp_path, "figures/comparison"))
    assert planned(after) == {"draw_expression"}
    report = snakemake(folder, "--report", "results/report.zip")
    assert report.returncode == 0 and (folder / "results" / "report.zip").stat().st_size > 50_000

    again = snakemake(folder, "--forceall")
    assert again.returncode == 0, again.stderr
    assert digests(folder, "*/evaluation.tsv", "figures/*.png", "figures/*.tsv") == first


def test_a_mistake_ends_the_run_before_any_job(tmp_path):
    write(tmp_path, prepare={"tiny": {"fold": 3}})
    done = snakemake(tmp_path, "-n")
    assert done.returncode == 1
    text = done.stdout + done.stderr
    assert "key 'prepare.tiny': unknown key 'fold'" in text and "rename 'fold' -> 'folds'" in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_a_refusal_in_a_job_is_one_message(tmp_path):
    write(tmp_path, prepare={"tiny": {"folds": 3, "label": "tissue"}})
    done = snakemake(tmp_path, "results/tiny/prepared/expression.h5ad")
    text = done.stdout + done.stderr
    assert done.returncode == 1 and "prepare_expression stops:" in text
    assert "no column 'tissue'" in text and "Traceback" not in text
    assert not (tmp_path / "results" / "tiny" / "prepared" / "expression.h5ad").exists()
