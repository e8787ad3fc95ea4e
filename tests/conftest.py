"""What the tests share: the folder of real data, and small configurations."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the project."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data with true values; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no folder of real data at {SHARED}")
    return SHARED


@pytest.fixture
def config_folder(tmp_path: Path) -> Path:
    """A copy of the default configuration, to be changed."""
    folder = tmp_path / "config"
    shutil.copytree(ROOT / "config", folder)
    return folder


def run(
    *command: str, cwd: Path = ROOT, timeout: float = 600, **variables: str
) -> subprocess.CompletedProcess:
    """Run a command of this environment; give its exit code and its output as text."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore", **variables)
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
