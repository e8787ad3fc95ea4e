"""A simulated retina: images seen through receptive fields that grow away from the centre.

The sampling of the URLOST paper's foveated CIFAR-10 (Yun et al., ICLR 2025), whose dimensions have
no grid that a convolution could use.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

_RINGS = 38
_ANGLES = 80
_LARGEST_FIELD = 7


@dataclass(frozen=True)
class Retina:
    """Receptive fields on an image.

    Attributes
    ----------
    positions : (n, 2) integer array
        Row and column of each receptive field's centre, in pixels of the upsampled image, ordered
        by size and then by raster.
    sizes : (n,) integer array
        Side of each receptive field, in pixels.
    shape : (int, int)
        Of the upsampled image.
    """

    positions: np.ndarray
    sizes: np.ndarray
    shape: tuple[int, int]


def retina_lattice(side: int = 96) -> Retina:
    """Return the lattice for a square image.

    38 rings at radius (side / 2) t^4, t from 0 to 1; floor(80 t) - 1 equally spaced receptive
    fields on each, of size max(floor(7 t), 1). Coordinates are truncated towards the centre; what
    falls outside the image or on a used pixel is left out. For 96 pixels these are the 1,038
    dimensions of the paper.

    Parameters
    ----------
    side : int
        Pixels of the (upsampled) image's side; rings and angles are those of 96 pixels.

    Returns
    -------
    Retina
    """
    centre = side // 2
    fields: dict[tuple[int, int], int] = {}
    for t in np.linspace(0, 1, _RINGS):
        angles = np.linspace(0, 2 * np.pi, int(_ANGLES * t))[:-1]
        rows = centre + np.trunc(side / 2 * t**4 * np.sin(angles)).astype(int)
        columns = centre + np.trunc(side / 2 * t**4 * np.cos(angles)).astype(int)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            if 0 <= row < side and 0 <= column < side:
                fields.setdefault((row, column), max(int(_LARGEST_FIELD * t), 1))
    ordered = sorted(fields.items(), key=lambda field: (field[1], field[0]))
    return Retina(
        positions=np.array([position for position, _ in ordered]),
        sizes=np.array([size for _, size in ordered]),
        shape=(side, side),
    )


def receptive_field(
    size: int, sigma: Literal["fixed", "proportional"] = "proportional"
) -> np.ndarray:
    """Return the normalised Gaussian kernel of a receptive field.

    Parameters
    ----------
    size : int
        Side, 1 to 7 pixels.
    sigma : 'fixed' or 'proportional'
        The standard deviation: size / 4, so that the blur grows with the field; or 0.5 pixels for
        every size, as in the paper's code.

    Returns
    -------
    (size, size) array
        Sums to one.
    """
    deviation = 0.5 if sigma == "fixed" else size / 4
    offsets = np.arange(size) - (size - 1) / 2
    weights = np.exp(-(offsets**2) / (2 * deviation**2))
    kernel = np.outer(weights, weights)
    return kernel / kernel.sum()


def see(
    images: np.ndarray, retina: Retina, sigma: Literal["fixed", "proportional"] = "proportional"
) -> np.ndarray:
    """Return what the receptive fields see.

    Parameters
    ----------
    images : (B, C, H, W) array
        Upsampled by a whole factor (nearest pixel) to the retina's shape.
    retina : Retina
    sigma : 'fixed' or 'proportional'
        See `receptive_field`.

    Returns
    -------
    (B, C, n) array of the images' floating type

    Raises
    ------
    ValueError
        If the retina's side is no multiple of the images' side.
    """
    factor, remainder = divmod(retina.shape[0], images.shape[-1])
    if remainder or images.shape[-1] != images.shape[-2]:
        raise ValueError(f"images of {images.shape[-2:]} do not fill a retina of {retina.shape}")
    upsampled = images.repeat(factor, axis=-2).repeat(factor, axis=-1)
    margin = _LARGEST_FIELD // 2
    padded = np.pad(upsampled, [(0, 0), (0, 0), (margin, margin), (margin, margin)])
    seen = np.empty((*images.shape[:2], len(retina.sizes)), dtype=images.dtype)
    for size in np.unique(retina.sizes).tolist():
        chosen = np.flatnonzero(retina.sizes == size)
        corner = retina.positions[chosen] + margin - size // 2
        windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(-2, -1))
        patches = windows[..., corner[:, 0], corner[:, 1], :, :]
        seen[..., chosen] = np.einsum("bcnij,ij->bcn", patches, receptive_field(size, sigma))
    return seen
