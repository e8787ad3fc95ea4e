"""Tell which modality a Neurodata Without Borders file holds."""

from pathlib import Path

from popflow.inputs.description import Description, whole_file


def has_units(path: str | Path) -> bool:
    """Tell whether an NWB file holds sorted units."""
    import h5py

    with whole_file(path), h5py.File(path) as file:
        return "units" in file and len(file["units"].get("id", [])) > 0


def version_of(path: str | Path) -> str | None:
    """Give the version of the schema; files before 2.0 final keep it as a dataset."""
    import h5py

    with h5py.File(path) as file:
        found = file.attrs.get("nwb_version", file.get("nwb_version"))
        found = found[()] if isinstance(found, h5py.Dataset) else found
    return found.decode() if isinstance(found, bytes) else found


def describe(path: str | Path) -> Description:
    """Describe the units of a file, or its voltages where it has no units."""
    from popflow.inputs import recordings, spikes

    told = spikes.describe(path) if has_units(path) else recordings.describe(path)
    told.version = version_of(path)
    return told
