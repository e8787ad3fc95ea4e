"""Weights in the layout of the published checkpoints."""

import re
from pathlib import Path

from torch import Tensor

from popflow.runtime.refusal import Refusal


def read_published(path: str | Path, stack: str) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Read a safetensors file of published weights and the sizes that its shapes imply.

    Parameters
    ----------
    path : str or Path
    stack : str
        Name of the stack of layers: ``transformer_encoder`` (PopT), ``transformer`` (BrainBERT).

    Returns
    -------
    tensors : dict of str to Tensor
    sizes : dict of str to int
        input_dim, width, layers, feedforward.

    Raises
    ------
    Refusal
        When the file is no safetensors file, or lacks the names of the layout.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise Refusal(
            f"file {path}",
            f"not readable as safetensors ({error})",
            "published weights as .safetensors",
            "convert a .pth file once, where it is trusted, to a .safetensors file of its tensors",
        ) from error
    layers = [re.match(rf"{stack}\.layers\.(\d+)\.", name) for name in tensors]
    numbers = {int(match.group(1)) for match in layers if match}
    needed = ["input_encoding.in_proj.weight", f"{stack}.layers.0.linear1.weight"]
    absent = [name for name in needed if name not in tensors]
    if absent:
        raise Refusal(
            f"file {path}",
            f"no tensor {', '.join(absent)}",
            f"the published names (input_encoding.*, {stack}.layers.*)",
            "give the file of the right model",
        )
    width, input_dim = tensors[needed[0]].shape
    feedforward = tensors[needed[1]].shape[0]
    sizes = {"input_dim": input_dim, "width": width, "layers": len(numbers)}
    return tensors, sizes | {"feedforward": feedforward}
