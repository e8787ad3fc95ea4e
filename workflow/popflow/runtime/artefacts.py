"""A fitted model on disk: weights as safetensors, everything else as JSON."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.runtime.files import atomic, read_json, write_json
from popflow.runtime.refusal import Refusal

if TYPE_CHECKING:
    import torch


def save_model(
    folder: str | Path, tensors: "dict[str, torch.Tensor]", description: dict[str, Any]
) -> None:
    """Write ``model.safetensors`` and ``model.json`` into a folder.

    Parameters
    ----------
    folder : str or Path
        Created when absent.
    tensors : dict of str to Tensor
        Weights and buffers.
    description : dict
        What JSON holds: architecture, settings, data and code fingerprints, names of units.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic(folder / "model.safetensors") as temporary:
        save_file(plain, temporary)
    write_json(description, folder / "model.json")


def load_model(folder: str | Path) -> "tuple[dict[str, torch.Tensor], dict[str, Any]]":
    """Read what `save_model` wrote.

    Raises
    ------
    Refusal
        When one of the two files is absent or unreadable.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(folder)
    for name in ("model.safetensors", "model.json"):
        if not (folder / name).is_file():
            raise Refusal(
                f"folder {folder}",
                f"no file {name}",
                "a folder that save() wrote: model.safetensors and model.json",
                "give the folder of a finished fit, or fit the model again",
            )
    try:
        return load_file(folder / "model.safetensors"), read_json(folder / "model.json")
    except (SafetensorError, ValueError) as error:
        raise Refusal(
            f"folder {folder}",
            f"unreadable model ({error})",
            "the files that save() wrote, whole",
            "fit the model again",
        ) from error
