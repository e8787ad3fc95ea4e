"""Where the library lies, for jobs whose environment does not hold it."""

import os

from popflow.runtime.fingerprints import PACKAGE


def share_library() -> None:
    """Put this library on the path of all child processes.

    Jobs in an environment of conda find it there; it is not installed in theirs.
    """
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE.parent), known]))
