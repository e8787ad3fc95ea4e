"""Gates of the Gating-ML reference on compensated and plain channels: each event as its truth says.

Simple rectangles, ranges and polygons without transformation or parent; gating itself is no part of
the workflow, the values that gates see are.
"""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from popflow.inputs.fcs import open_fcs
from popflow.inputs.spillover import compensate
from tests.conftest import SHARED

FOLDER = SHARED / "cytometry" / "gatingml_reference"
GATING = "{http://www.isac-net.org/std/Gating-ML/v2.0/gating}"
TRANSFORMS = "{http://www.isac-net.org/std/Gating-ML/v2.0/transformations}"
TYPES = "{http://www.isac-net.org/std/Gating-ML/v2.0/datatypes}"


def simple_gates():
    """List (file, gate id) of gates that need nothing but values."""
    found = []
    for file in sorted(FOLDER.glob("gml/*.xml")):
        root = ET.parse(file).getroot()
        for gate in [*root.iter(f"{GATING}RectangleGate"), *root.iter(f"{GATING}PolygonGate")]:
            name = gate.get(f"{GATING}id")
            dimensions = list(gate.iter(f"{GATING}dimension"))
            plain = all(
                d.get(f"{GATING}transformation-ref") is None
                and d.find(f"{TYPES}fcs-dimension") is not None
                for d in dimensions
            )
            truth = FOLDER / "truth" / f"Results_{name}.txt"
            if plain and gate.get(f"{GATING}parent_id") is None and truth.is_file():
                found.append((file.name, name))
    return sorted({name: (file, name) for file, name in found}.values())


GATES = simple_gates()


def values_of(root, dimensions):
    """Give (events, dimensions): plain, by the file's matrix, or by the gate file's."""
    fcs = open_fcs(FOLDER / "data1.fcs")
    names = fcs.channels["name"].tolist()
    columns = []
    for dimension in dimensions:
        x = fcs.read().astype(float)
        wanted = dimension.find(f"{TYPES}fcs-dimension").get(f"{TYPES}name")
        reference = dimension.get(f"{GATING}compensation-ref")
        place = names
        if reference == "FCS" and fcs.spillover is not None:
            compensate(x, names, fcs.spillover, "test")
        elif reference not in ("FCS", "uncompensated", None):
            fluorochromes, matrix = matrix_of(root, reference)
            compensate(x, names, matrix, "test")
            place = [
                dict(zip(matrix[0], fluorochromes, strict=True)).get(name, name) for name in names
            ]
        columns.append(x[:, place.index(wanted)])
    return np.column_stack(columns)


def matrix_of(root, name):
    matrix = next(m for m in root.iter(f"{TRANSFORMS}spectrumMatrix")
                  if m.get(f"{TRANSFORMS}id") == name)  # fmt: skip

    def listed(kind):
        return [d.get(f"{TYPES}name") for d in matrix.find(f"{TRANSFORMS}{kind}")]

    rows = [
        [float(c.get(f"{TRANSFORMS}value")) for c in row]
        for row in matrix.iter(f"{TRANSFORMS}spectrum")
    ]
    return listed("fluorochromes"), (listed("detectors"), np.array(rows))


def inside_rectangle(gate, x):
    inside = np.ones(len(x), bool)
    for column, dimension in enumerate(gate.iter(f"{GATING}dimension")):
        low, high = dimension.get(f"{GATING}min"), dimension.get(f"{GATING}max")
        inside &= x[:, column] >= float(low) if low is not None else True
        inside &= x[:, column] < float(high) if high is not None else True
    return inside


def inside_polygon(gate, x):
    """Count crossings of a ray; a corner belongs to the edge below it."""
    corners = np.array(
        [
            [float(c.get(f"{TYPES}value")) for c in vertex.iter(f"{GATING}coordinate")]
            for vertex in gate.iter(f"{GATING}vertex")
        ]
    )
    inside = np.zeros(len(x), bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, 0), strict=True):
        spans = (ay > x[:, 1]) != (by > x[:, 1])
        with np.errstate(divide="ignore", invalid="ignore"):
            inside ^= spans & (x[:, 0] < (bx - ax) * (x[:, 1] - ay) / (by - ay) + ax)
    return inside


@pytest.mark.parametrize("file, name", GATES, ids=[name for _, name in GATES])
def test_events_fall_into_gates_as_the_truth_says(file, name, shared_data):
    root = ET.parse(FOLDER / "gml" / file).getroot()
    gates = [*root.iter(f"{GATING}RectangleGate"), *root.iter(f"{GATING}PolygonGate")]
    gate = next(gate for gate in gates if gate.get(f"{GATING}id") == name)
    x = values_of(root, list(gate.iter(f"{GATING}dimension")))
    found = inside_rectangle(gate, x) if "Rectangle" in gate.tag else inside_polygon(gate, x)
    truth = np.loadtxt(FOLDER / "truth" / f"Results_{name}.txt") > 0
    assert (found != truth).sum() == 0


def test_spillover_of_flowcore_compensates_its_single_stains(shared_data):
    folder = shared_data / "cytometry" / "compensation_calibur"
    lines = (folder / "compref").read_text().split("\n")
    names = [name.strip('"') for name in lines[0].split()]
    matrix = np.array([line.split()[1:] for line in lines[1:5]], float)
    stains = {"060909.002": "FL1-H", "060909.003": "FL2-H", "060909.004": "FL4-H"}
    for file, stain in stains.items():
        fcs = open_fcs(folder / "data" / file)
        x = fcs.read().astype(float)
        channels = fcs.channels["name"].tolist()
        bright = x[:, channels.index(stain)] > np.quantile(x[:, channels.index(stain)], 0.8)
        before = x[bright].copy()
        after = compensate(x, channels, (names, matrix), "test")[bright]
        assert np.linalg.solve(matrix.T, before[:, [channels.index(n) for n in names]].T).T == (
            pytest.approx(after[:, [channels.index(n) for n in names]], rel=1e-6)
        )
        for other in set(names) - {stain}:
            column = channels.index(other)
            share = np.median(after[:, column]) / np.median(after[:, channels.index(stain)])
            assert abs(share) < 0.05
