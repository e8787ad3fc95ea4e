"""A simulated mass cytometry cohort whose cell types, proportions and phenotypes are known.

Subjects differ in cell-type proportions (Dirichlet), in small shifts of every type and marker,
and in four phenotypes that are independent of each other:

- ``rare_type``: a type of 2 % is doubled;
- ``marker_shift``: a state marker of a 10 % type is shifted by 0.7 standard deviations;
- ``correlation``: two state markers of a 15 % type correlate by +0.7 instead of -0.7;
- ``two_types``: two types are both frequent or both rare, or only one of them is frequent (XOR).

Some subjects are measured a second time in another batch. The cohort is written as FCS 3.1 with a
samples sheet and a panel, so that it takes the same way as a lab's files.
"""

from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popflow.runtime.files import atomic, write_tsv
from popflow.runtime.seeds import generator

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

PHENOTYPES = ("rare_type", "marker_shift", "correlation", "two_types")
COFACTOR = 5.0
WITHIN_TYPE_SD = 0.45
LINEAGES = ("T", "B", "M")
# Types in the order of the shares: the first five carry the phenotypes.
SHARES = (0.02, 0.08, 0.08, 0.10, 0.15, 0.15, 0.12, 0.09, 0.08, 0.06, 0.04, 0.03)
RARE, FIRST, SECOND, SHIFTED, CORRELATED = range(5)
STATE_MARKERS = 3
METALS = (
    "Pr141 Nd142 Nd143 Nd144 Nd145 Nd146 Sm147 Nd148 Sm149 Nd150 Eu151 Sm152 Eu153 Sm154 Gd155 "
    "Gd156 Gd158 Tb159 Gd160 Dy161 Dy162 Dy163 Dy164 Ho165 Er166 Er167 Er168 Tm169 Er170 Yb171"
).split()
MARKERS = (
    "CD45 CD3 CD4 CD8 CD19 CD20 CD14 CD16 CD56 CD11c CD123 HLA-DR CD27 CD28 CD45RA CD45RO CCR7 "
    "CD38 CD57 CD127 CD25 CXCR3 CXCR5 CCR6 CCR4 IgD CD161 TCRgd CD66b CD294"
).split()


def unit_ids(settings: dict[str, Any]) -> list[str]:
    """List the ids of the samples that `simulate_cytometry` writes."""
    first = [f"S{subject:03d}a" for subject in range(settings["subjects"])]
    again = [f"S{subject:03d}b" for subject in range(_repeats(settings))]
    return sorted(first + again)


def _repeats(settings: dict[str, Any]) -> int:
    return min(settings["repeats"], settings["subjects"])


def type_names() -> list[str]:
    """Name the cell types after their lineage, e.g. ``"B05"``."""
    return [f"{LINEAGES[number % 3]}{number + 1:02d}" for number in range(len(SHARES))]


def simulate_cytometry(settings: dict[str, Any], folder: str | Path) -> "pd.DataFrame":
    """Write the cohort.

    Parameters
    ----------
    settings : dict
        As `simulate-cytometry.schema.yaml` describes.
    folder : path
        Gets ``<sample>.fcs``, ``<sample>.cell_types.tsv`` (one row per event), ``samples.tsv``
        and ``panel.tsv``.

    Returns
    -------
    DataFrame
        The samples sheet.
    """
    import pandas as pd

    folder, seed = Path(folder), settings["seed"]
    folder.mkdir(parents=True, exist_ok=True)
    world = _world(settings)
    rows = []
    for sample in unit_ids(settings):
        subject, again = int(sample[1:-1]), sample.endswith("b")
        draw = generator(seed, "subject", subject)
        labels = {name: int(draw.integers(2)) for name in PHENOTYPES}
        batch = int(draw.integers(settings["batches"]))
        other = int(draw.integers(1, max(settings["batches"], 2)))
        batch = (batch + other) % settings["batches"] if again else batch
        shares = _proportions(labels, settings, draw)
        shift = settings["subject_noise"] * draw.standard_normal(world["centres"].shape)
        events, types = _events(world, labels, shares, shift, batch, settings, sample)
        _write_fcs(events, world["markers"], folder / f"{sample}.fcs")
        write_tsv(pd.DataFrame({"cell_type": types}), folder / f"{sample}.cell_types.tsv")
        words = {name: ("case" if label else "control") for name, label in labels.items()}
        paths = {"path": f"{sample}.fcs", "cell_types": f"{sample}.cell_types.tsv"}
        place = {"subject": f"S{subject:03d}", "batch": f"batch{batch + 1}"}
        rows.append({"sample": sample} | paths | place | words)
    samples = pd.DataFrame(rows)
    write_tsv(_panel(world["markers"]), folder / "panel.tsv")
    write_tsv(samples, folder / "samples.tsv")
    return samples


def _world(settings: dict[str, Any]) -> dict[str, Any]:
    """Draw what all samples share: type centres in within-type SD, skewed types, batches."""
    import numpy as np

    draw = generator(settings["seed"], "world")
    types, markers = len(SHARES), settings["markers"]
    low, high = 1.0, 1.0 + settings["separation"]
    lineage = draw.random((len(LINEAGES), markers)) < 0.4
    centres = np.empty((types, markers))
    for number in range(types):
        on = lineage[number % len(LINEAGES)].copy()
        flipped = draw.choice(markers, size=max(markers // 5, 1), replace=False)
        on[flipped] = ~on[flipped]
        centres[number] = np.where(on, high, low) + draw.normal(0, 0.5, markers)
    # State markers are alike in all types, as activation markers are.
    centres[:, -STATE_MARKERS:] = 2.5 + draw.normal(0, 0.2, (types, STATE_MARKERS))
    centres = np.maximum(centres, 0.5)
    gain = settings["batch_gain"]
    return {
        "centres": centres,
        "skewed": np.arange(types) % 2 == 1,
        "markers": MARKERS[:markers],
        "batch_shift": settings["batch_shift"] * draw.normal(size=(settings["batches"], markers)),
        "batch_gain": 1 + draw.uniform(-gain, gain, size=(settings["batches"], markers)),
    }


def _proportions(
    labels: dict[str, int], settings: dict[str, Any], draw: "np.random.Generator"
) -> "np.ndarray":
    """Draw a subject's proportions; the phenotypes' types vary little besides their phenotype."""
    import numpy as np

    shares = np.array(SHARES)
    free = np.setdiff1d(np.arange(len(shares)), [RARE, FIRST, SECOND])
    first = int(draw.integers(2))
    second = first ^ labels["two_types"]
    own = {
        RARE: (1 + labels["rare_type"]) * np.exp(0.25 * draw.standard_normal()),
        FIRST: np.exp(0.45 * (2 * first - 1) + 0.2 * draw.standard_normal()),
        SECOND: np.exp(0.45 * (2 * second - 1) + 0.2 * draw.standard_normal()),
    }
    for number, factor in own.items():
        shares[number] *= factor
    weights = draw.dirichlet(settings["concentration"] * shares[free] / shares[free].sum())
    left = 1 - shares[list(own)].sum()
    shares[free] = left * weights
    return shares


def _events(
    world: dict[str, Any],
    labels: dict[str, int],
    shares: "np.ndarray",
    shift: "np.ndarray",
    batch: int,
    settings: dict[str, Any],
    sample: str,
) -> "tuple[np.ndarray, list[str]]":
    """Draw the events of a sample: time, event length, markers and DNA as linear counts."""
    import numpy as np

    draw = generator(settings["seed"], "sample", sample)
    cells = round(settings["cells"] * draw.uniform(0.7, 1.3))
    markers = len(world["markers"])
    types = draw.choice(len(shares), size=cells, p=shares / shares.sum())
    noise = draw.standard_normal((cells, markers))
    skewed = world["skewed"][types]
    # A gamma of shape 4, centred and scaled: skewness 1.
    noise[skewed] = (draw.gamma(4.0, size=(int(skewed.sum()), markers)) - 4.0) / 2.0
    one, two = -3, -2
    chosen = types == CORRELATED
    rho = 0.7 if labels["correlation"] else -0.7
    noise[chosen, two] = rho * noise[chosen, one] + (1 - rho**2) ** 0.5 * noise[chosen, two]
    y = world["centres"][types] + shift[types] + noise
    y[types == SHIFTED, -1] += 0.7 * labels["marker_shift"]
    y = (y + world["batch_shift"][batch]) * world["batch_gain"][batch] * WITHIN_TYPE_SD
    counts = COFACTOR * np.sinh(y)
    debris = draw.binomial(cells, settings["debris"] * draw.uniform(0.5, 1.5))
    dirt = COFACTOR * np.sinh(np.abs(draw.normal(0, WITHIN_TYPE_SD, (debris, markers))))
    dna = np.concatenate([draw.lognormal(5.5, 0.2, cells), draw.lognormal(2.0, 0.4, debris)])
    names = np.array([*type_names(), "debris"])[np.append(types, np.full(debris, len(shares)))]
    events = np.column_stack([np.concatenate([counts, dirt]), dna])
    order = draw.permutation(len(events))
    time = np.sort(draw.uniform(0, 600_000, len(events)))
    length = draw.normal(30, 4, len(events)).clip(10)
    return np.column_stack([time, length, events[order]]).astype(np.float32), names[order].tolist()


def _write_fcs(events: "np.ndarray", markers: list[str], path: Path) -> None:
    """Write FCS 3.1: metals as channel names, markers beside them."""
    import flowio

    metals = [f"{metal}Di" for metal in METALS[: len(markers)]]
    names = ["Time", "Event_length", *metals, "Ir191Di"]
    keywords = {"cyt": "simulated mass cytometer"}
    for number in range(len(names)):
        keywords[f"p{number + 1}r"] = "1048576"
    with atomic(path) as temporary, open(temporary, "wb") as handle:
        values = array("f", events.tobytes())
        flowio.create_fcs(handle, values, names, ["", "", *markers, "DNA"], keywords)


def _panel(markers: list[str]) -> "pd.DataFrame":
    """Write which channel holds which marker, and the gate on DNA."""
    import pandas as pd

    rows = [
        {"channel": f"{metal}Di", "marker": marker, "class": "type"}
        for metal, marker in zip(METALS, markers, strict=False)
    ]
    for row in rows[-STATE_MARKERS:]:
        row["class"] = "state"
    panel = pd.DataFrame(rows).assign(cofactor=COFACTOR)
    gate = {"channel": "Ir191Di", "marker": "DNA", "class": "qc", "low": 40.0}
    ignored = [{"channel": name, "class": "ignore"} for name in ("Time", "Event_length")]
    return pd.concat([panel, pd.DataFrame([gate, *ignored])], ignore_index=True)
