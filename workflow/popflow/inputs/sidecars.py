"""Find and read the sidecar files of BIDS-iEEG."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.inputs.description import whole_file
from popflow.runtime.files import read_json
from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import pandas as pd


def _entities(stem: str) -> dict[str, str]:
    """Split ``sub-01_ses-02_task-rest_ieeg`` into its entities."""
    return dict(part.split("-", 1) for part in stem.split("_") if "-" in part)


def find_sidecar(
    recording: Path, suffix: str, extension: str, space: str | None = None, of: Path | None = None
) -> Path | None:
    """Find the sidecar of a recording by the inheritance rule of BIDS.

    Parameters
    ----------
    recording : Path
    suffix : str
        ``channels``, ``electrodes``, ``events``, ``coordsystem`` or ``ieeg``.
    extension : str
        With its dot.
    space : str, optional
        Of several ``space-`` files, the one to take.
    of : Path, optional
        A file whose ``space-`` entity the sidecar must share.

    Returns
    -------
    Path or None
        The nearest file whose entities all agree with the recording's; None when there is none.

    Raises
    ------
    Refusal
        When several spaces fit and none was chosen.
    """
    own = _entities(recording.stem)
    stems = (recording.stem, recording.stem.removesuffix("_ieeg"), recording.stem.split("_")[0])
    if of is not None:
        space = _entities(of.stem).get("space", space)
    for folder in [recording.parent, *recording.parents[1:4]]:
        fitting = []
        for file in sorted(folder.glob(f"*{suffix}{extension}")):
            theirs = _entities(file.stem)
            their_space = theirs.pop("space", None)
            agrees = all(own.get(key) == value for key, value in theirs.items())
            if not own or not theirs:
                # Names without entities agree with everything: then the stem must be the same.
                agrees = file.stem.removesuffix(f"_{suffix}") in stems
            if agrees and file.stem.endswith(suffix) and (space in (None, their_space)):
                fitting.append((len(theirs), their_space, file))
        if not fitting:
            continue
        best = max(count for count, _, _ in fitting)
        files = [(found, file) for count, found, file in fitting if count == best]
        if len(files) > 1:
            spaces = ", ".join(str(found) for found, _ in files)
            raise Refusal(
                f"folder {folder}",
                f"{len(files)} {suffix} files, of the spaces {spaces}",
                "one space",
                "write the one to use under 'space' in the sessions sheet",
            )
        return files[0][1]
    if space and suffix == "electrodes":
        raise Refusal(
            f"recording {recording}",
            f"no electrodes file of the space {space!r}",
            "a file *_space-<space>_electrodes.tsv beside the recording",
            "mend 'space' in the sessions sheet",
        )
    return None


def spaces_of(recording: Path) -> list[str]:
    """List the spaces in which the electrodes of a recording are given, sorted."""
    own, found = _entities(recording.stem), set()
    for file in recording.parent.glob("*_electrodes.tsv"):
        theirs = _entities(file.stem)
        space = theirs.pop("space", None)
        if space and all(own.get(key) == value for key, value in theirs.items()):
            found.add(space)
    return sorted(found)


def read_sidecar(path: str | Path, required: list[str]) -> "pd.DataFrame":
    """Read a BIDS table; ``n/a`` is missing, names are text.

    Raises
    ------
    Refusal
        When the file is absent or lacks a required column.
    """
    import pandas as pd

    path = Path(path)
    if not path.is_file():
        raise Refusal(f"file {path}", "no such file", "a BIDS table", "mend the path in the sheet")
    separator = "," if path.suffix == ".csv" else "\t"
    with whole_file(path, "a BIDS table, text in UTF-8", "export it again as text"):
        table = pd.read_csv(
            path,
            sep=separator,
            keep_default_na=False,
            na_values=["", "n/a"],
            dtype={"name": str},
            encoding="utf-8-sig",
        )
    absent = [column for column in required if column not in table]
    if absent:
        raise Refusal(
            f"file {path}",
            f"no column {', '.join(absent)} (columns: {', '.join(table.columns)})",
            f"the columns {', '.join(required)}",
            "add them to the table",
        )
    return table


def read_sidecar_json(path: Path | None) -> dict[str, Any]:
    """Read a JSON sidecar; empty when there is none."""
    if path is None:
        return {}
    try:
        held = read_json(path)
    except ValueError as error:
        raise Refusal(f"file {path}", f"not JSON ({error})", "JSON", "mend the file") from error
    if not isinstance(held, dict):
        found = f"it holds {type(held).__name__}, not keys"
        raise Refusal(f"file {path}", found, "a JSON object", "mend the file")
    return held
