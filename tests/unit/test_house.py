"""The house: pins, imports between rooms, generated documentation, style, messages at the door."""

import ast
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from docs.generate import PAGES, render

from popflow.runtime.fingerprints import PACKAGE
from tests.conftest import ROOT, run

ROOMS = ["inputs", "prepare", "models", "evaluate", "figures"]
NAMES_IN_CONDA = {
    "pytorch": "torch",
    "matplotlib-base": "matplotlib",
    "linear_operator": "linear-operator",
}


def pins(lines):
    """Read name==version lines."""
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {name.strip().lower().replace("_", "-"): version.strip() for name, version in pairs}


LOCK = pins((ROOT / "requirements" / "lock.txt").read_text().splitlines())


def test_pyproject_pins_equal_the_lock():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = pins(project["dependencies"] + project["optional-dependencies"]["dev"])
    assert {name: LOCK.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("path", sorted((ROOT / "envs").glob("*.yaml")), ids=lambda p: p.name)
def test_conda_pins_equal_the_lock_and_the_file_is_used(path):
    env = yaml.safe_load(path.read_text())
    assert "defaults" not in env["channels"]
    names = [item for item in env["dependencies"] if isinstance(item, str) and "=" in item]
    nested = [item["pip"] for item in env["dependencies"] if isinstance(item, dict)]
    found = pins([name.replace("=", "==", 1) for name in names] + sum(nested, []))
    found.pop("python")
    found = {NAMES_IN_CONDA.get(name, name): version for name, version in found.items()}
    assert {name: LOCK.get(name) for name in found} == found
    rules = "".join(file.read_text() for file in (ROOT / "rules").glob("*.smk"))
    assert f"../envs/{path.name}" in rules


def test_every_script_has_its_rule():
    rules = "".join(file.read_text() for file in (ROOT / "rules").glob("*.smk"))
    for script in (ROOT / "scripts").glob("*.py"):
        assert f"rule {script.stem}:" in rules and f"../scripts/{script.name}" in rules


def test_data_walk_one_way():
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0]
        allowed = ROOMS[: ROOMS.index(room) + 1] if room in ROOMS else []
        if room.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("popflow."):
                other = node.module.split(".")[1]
                assert other in [*allowed, "runtime", room], f"{path} imports {other}"


def test_nothing_is_unpickled_or_executed():
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        text = path.read_text()
        for word in ("pickle.load", "allow_pickle=True", "weights_only=False", "yaml.load("):
            assert word not in text, f"{path} holds {word}"


def test_importing_the_library_loads_nothing_heavy():
    code = "import popflow, popflow.cli, popflow.inputs.config, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "numpy", "pandas", "anndata", "scanpy", "sklearn", "mne", "matplotlib"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(PAGES))
def test_generated_documentation_is_current(page):
    text = (ROOT / page).read_text()
    assert render(page, text) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("snakefmt", "--check", "Snakefile", "rules"),
        ("snakemake", "--lint"),
    ],
    ids=" ".join,
)
def test_style_is_clean(command):
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr


def test_check_and_inspect_tell_mistakes_without_a_trace(config_folder):
    path = config_folder / "config.yaml"
    path.write_text(path.read_text().replace("device:", "devise:"))
    done = run("popflow.cli", "check", str(path))
    assert done.returncode == 1 and done.stdout == ""
    assert "unknown key 'devise'" in done.stderr and "Traceback" not in done.stderr
    done = run("popflow.cli", "inspect", "nowhere.fcs")
    assert done.returncode == 1 and "no such file" in done.stderr and done.stdout == ""


def test_the_default_configuration_passes_the_check():
    done = run("popflow.cli", "check", str(ROOT / "config" / "config.yaml"))
    assert done.returncode == 0, done.stderr
    assert "is in order" in done.stdout


def test_setup_in_a_folder_with_a_space_is_refused_at_once(tmp_path):
    folder = tmp_path / "my lab"
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    done = subprocess.run(["make", "setup"], cwd=folder, capture_output=True, text=True)
    assert done.returncode != 0 and not (folder / ".venv").exists()
    assert "Move the repository to a folder without one" in done.stderr
