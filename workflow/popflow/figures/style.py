"""One style for all figures: size, type, colours, and a deterministic way to save."""

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from popflow.runtime.files import atomic, write_tsv  # noqa: E402

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe & Ito, "Color Universal Design": told apart with every common colour vision.
COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#8C6D31",
    "#000000",
)
NEUTRAL = "#8A8A8A"
SEQUENTIAL = "viridis"
DIVERGING = "RdBu_r"
WIDTH_MM = {"single": 89, "double": 183}
DPI = 200

RC = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.0,
    "lines.markersize": 3,
    "image.interpolation": "nearest",
    "pdf.fonttype": 42,
    "svg.hashsalt": "popflow",
    "figure.constrained_layout.use": True,
}


def figure(width: str = "double", height_mm: float = 70) -> "Figure":
    """Start a figure in the project's style.

    Parameters
    ----------
    width : {"single", "double"}
        Column of a journal page, 89 or 183 mm.
    height_mm : float
    """
    plt.close("all")
    matplotlib.rcdefaults()
    matplotlib.use("Agg")
    matplotlib.rcParams.update(RC)
    return plt.figure(figsize=(WIDTH_MM[width] / 25.4, height_mm / 25.4), layout="constrained")


def colour_map(categories: list[str]) -> dict[str, str]:
    """Give each category a colour, in order; beyond eight the palette lightens and repeats."""
    colours = {}
    for number, category in enumerate(categories):
        turn, place = divmod(number, len(COLOURS))
        base = matplotlib.colors.to_rgb(COLOURS[place])
        mixed = tuple(channel + (1 - channel) * 0.45 * (turn % 2) for channel in base)
        colours[category] = matplotlib.colors.to_hex(mixed)
    return colours


def panel_letter(axes: "Axes", letter: str) -> None:
    """Write the letter of a panel left above its axes."""
    axes.annotate(
        letter,
        (0, 1),
        xytext=(-22, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=9,
        fontweight="bold",
    )


def save(fig: "Figure", png_path: str | Path, table: "pd.DataFrame") -> None:
    """Write a figure as PNG and PDF and the numbers that it draws as TSV, beside each other.

    The files hold no date, no version and no wall time, so that equal numbers give equal bytes.
    """
    png_path = Path(png_path)
    for suffix, metadata in ((".png", {"Software": None}), (".pdf", {"CreationDate": None})):
        with atomic(png_path.with_suffix(suffix)) as temporary:
            fig.savefig(temporary, dpi=DPI, metadata=metadata)
    table = table.drop(columns="seconds", errors="ignore")
    write_tsv(table, png_path.with_suffix(".tsv"))
    plt.close(fig)


def say(png_path: str | Path, text: str, table: "pd.DataFrame") -> None:
    """Write a figure that says why there is nothing to draw."""
    fig = figure("single", 30)
    fig.text(0.5, 0.5, text, ha="center", va="center", wrap=True, fontsize=8)
    save(fig, png_path, table)
