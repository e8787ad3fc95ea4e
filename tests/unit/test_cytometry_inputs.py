"""FCS files and panels: what is read, and what is refused with which words."""

from array import array

import numpy as np
import pandas as pd
import pytest

from popflow.inputs import fcs, panels, spillover
from popflow.inputs.settings import resolve
from popflow.runtime.refusal import Refusal, Refusals

flowio = pytest.importorskip("flowio")


def write_fcs(path, events, names, markers=None, keywords=None):
    with open(path, "wb") as handle:
        values = array("f", np.asarray(events, np.float32).tobytes())
        flowio.create_fcs(handle, values, names, markers, keywords or {})
    return path


def write_integers(path, rows, bits, ranges, keywords="", order="1,2,3,4"):
    """Write a small integer FCS 3.0 file byte by byte."""
    big = order.startswith("4")
    data = b"".join(
        int(v).to_bytes(b // 8, "big" if big else "little")
        for row in rows
        for v, b in zip(row, bits, strict=True)
    )
    text = f"/$BYTEORD/{order}/$DATATYPE/I/$MODE/L/$NEXTDATA/0/$PAR/{len(bits)}/$TOT/{len(rows)}/"
    for n, (b, r) in enumerate(zip(bits, ranges, strict=True), start=1):
        text += f"$P{n}B/{b}/$P{n}R/{r}/$P{n}N/C{n}/"
    text = text + keywords
    begin = 58 + len(text)
    head = "FCS3.0    " + "".join(
        f"{v:>8}" for v in (58, begin - 1, begin, begin + len(data) - 1, 0, 0)
    )
    path.write_bytes(head.encode() + text.encode() + data)
    return path


@pytest.fixture
def events():
    return np.random.default_rng(0).gamma(2.0, 100.0, size=(50, 3)).astype(np.float32)


def test_both_names_and_values_are_kept(tmp_path, events):
    path = write_fcs(tmp_path / "a.fcs", events, ["Time", "FL1", "FL2"], ["", "CD3", "CD4"])
    file = fcs.open_fcs(path)
    assert file.channels["name"].tolist() == ["Time", "FL1", "FL2"]
    assert file.channels["marker"].tolist() == ["", "CD3", "CD4"]
    np.testing.assert_array_equal(file.read(), events)


@pytest.mark.parametrize("order", ["1,2,3,4", "4,3,2,1"])
def test_integers_of_mixed_widths_are_masked_and_linearised(tmp_path, order):
    rows = [[5, 70000, 1023 + 2**12], [255, 2**24 - 1, 512]]
    keywords = "$P1E/0,0/$P2E/0,0/$P3E/4,0/"
    path = write_integers(
        tmp_path / "i.fcs", rows, [8, 24, 16], [256, 2**24, 1024], keywords, order
    )
    file = fcs.open_fcs(path)
    stored = file.read(linear=False)
    np.testing.assert_array_equal(stored, [[5, 70000, 1023], [255, 2**24 - 1, 512]])
    linear = file.read()
    np.testing.assert_allclose(linear[:, 2], 10 ** (4 * stored[:, 2] / 1024), rtol=1e-5)
    np.testing.assert_array_equal(linear[:, :2], stored[:, :2])


def test_gain_divides_and_time_is_scaled(tmp_path, events):
    keywords = {"p2g": "4.0", "p1g": "0.01", "timestep": "0.1"}
    file = fcs.open_fcs(write_fcs(tmp_path / "g.fcs", events, ["Time", "A", "B"], None, keywords))
    np.testing.assert_allclose(file.read()[:, 0], events[:, 0] * 0.1, rtol=1e-6)
    np.testing.assert_allclose(file.read()[:, 1], events[:, 1] / 4, rtol=1e-6)
    np.testing.assert_array_equal(file.read()[:, 2], events[:, 2])


def test_data_end_one_byte_too_far_gives_the_same_events(tmp_path, events):
    path = write_fcs(tmp_path / "a.fcs", events, ["A", "B", "C"])
    raw = path.read_bytes()
    end = int(raw[34:42])
    (tmp_path / "b.fcs").write_bytes(raw[:34] + f"{end + 1:>8}".encode() + raw[42:] + b"\0")
    np.testing.assert_array_equal(fcs.open_fcs(tmp_path / "b.fcs").read(), events)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"channel,marker\nA,B\n", "not with FCS"),
        (b"FCS3.1   ", "cut off after 9 bytes"),
        (b"FCS3.1" + b" " * 60, "unreadable"),
    ],
)
def test_no_fcs_file_is_refused(tmp_path, content, message):
    path = tmp_path / "x.fcs"
    path.write_bytes(content)
    with pytest.raises(Refusal, match=message) as refusal:
        fcs.open_fcs(path)
    assert "x.fcs" in refusal.value.where


@pytest.mark.parametrize("lost", [1, 300])
def test_truncated_file_is_refused(tmp_path, events, lost):
    path = write_fcs(tmp_path / "a.fcs", events, ["A", "B", "C"])
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(Refusal, match="cut off"):
        fcs.open_fcs(path)


def test_compensation_solves_the_mixture(tmp_path):
    truth = np.random.default_rng(1).uniform(10, 1000, size=(40, 3))
    spill = np.array([[1, 0.2], [0.05, 1]])
    observed = truth.copy()
    observed[:, 1:] = truth[:, 1:] @ spill
    keywords = {"spillover": "2,B,C,1,0.2,0.05,1"}
    file = fcs.open_fcs(write_fcs(tmp_path / "s.fcs", observed, ["A", "B", "C"], None, keywords))
    x = spillover.compensate(file.read(), ["A", "B", "C"], file.spillover, "file")
    np.testing.assert_allclose(x, truth, rtol=1e-4)


def test_spillover_with_an_unknown_channel_is_refused(tmp_path, events):
    keywords = {"spillover": "2,B,Z,1,0.2,0.05,1"}
    path = write_fcs(tmp_path / "s.fcs", events, ["A", "B", "C"], None, keywords)
    with pytest.raises(Refusal, match="names 'Z'"):
        fcs.open_fcs(path)
    assert fcs.open_fcs(path, matrix=False).spillover is None
    harmless = {"spillover": "2,B,Z,1,0,0,1"}
    path = write_fcs(tmp_path / "t.fcs", events, ["A", "B", "C"], None, harmless)
    assert fcs.open_fcs(path).spillover[0] == ["B"]


def test_flowsom_reference_values(shared_data):
    path = shared_data / "cytometry/flowsom_ff/not_preprocessed.fcs"
    file = fcs.open_fcs(path)
    assert (file.events, len(file.channels)) == (19225, 18)
    names, matrix = file.spillover
    assert len(names) == 11
    assert np.linalg.cond(matrix) == pytest.approx(2.469, abs=1e-3)
    listed = file.channels["name"].tolist()
    x = spillover.compensate(file.read(), listed, file.spillover, "file")
    first = dict(zip(listed, x[0], strict=True))
    expected = {"FITC-A": -6.313, "APC-Cy7-A": 3643.620, "Qdot 605-A": -63.678}
    for name, value in (expected | {"PE-Cy7-A": 10217.174}).items():
        assert first[name] == pytest.approx(value, abs=2e-3)
    columns = [listed.index(name) for name in names]
    means = np.arcsinh(x[:, columns].astype(float) / 150).mean(0)
    golden = [0.1645, 0.5963, 1.1971, 0.2432, 0.4040, 3.9480, 1.9373, 1.1181, 2.3915, 0.7710]
    np.testing.assert_allclose(means, [*golden, 2.7492], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "shape", "mean"),
    [
        ("FlowCal__Data003.fcs", (25000, 8), 730.584),
        ("cytoflow__Beckman_Coulter_-_Cyan.fcs", (5789, 12), 32515.3),
        ("cytoflow__Partec_-_PAS.FCS", (33649, 8), 1408.35),
        ("cytoflow__Stratedigm_-_S1400.fcs", (10000, 38), 60051.2),
        ("FlowKit__index_sorted_example.fcs", (384, 13), 85305.2),
    ],
)
def test_instrument_files(shared_data, name, shape, mean):
    x = fcs.open_fcs(shared_data / "cytometry/fcs_reading" / name).read(linear=False)
    assert x.shape == shape
    assert x[:, 0].astype(float).mean() == pytest.approx(mean, rel=1e-5)


def test_data_sets_of_a_file_are_told_apart(shared_data):
    path = shared_data / "cytometry/fcs_reading/cytoflow__Beckman_Coulter_-_Gallios.LMD"
    assert fcs.open_fcs(path).version == "3.0"
    first = fcs.open_fcs(path, data_set=0)
    assert (first.version, first.read(linear=False).shape) == ("2.0", (26383, 6))
    assert first.read(linear=False)[:, 0].mean() == pytest.approx(442.001, rel=1e-5)
    with pytest.raises(Refusal, match="no data set 2"):
        fcs.open_fcs(path, data_set=2)


def test_header_without_data_is_refused(shared_data):
    with pytest.raises(Refusal, match="cut off"):
        fcs.open_fcs(shared_data / "cytometry/fcs_reading/fcsparser__sample_header.fcs")


def channels(*pairs):
    return pd.DataFrame(pairs, columns=["name", "marker"])


def panel(*pairs):
    return [panels.PanelRow(channel, marker, "type", 5.0) for channel, marker in pairs]


def test_the_order_of_channels_does_not_matter():
    rows = panel(("Nd142", "CD3"), ("Nd143", "HLA-DR"))
    a = panels.match_panel(rows, channels(("Nd142", "CD3"), ("Nd143", "HLADR")), "f")
    b = panels.match_panel(rows, channels(("T", ""), ("X1", "hla-dr"), ("X2", "cd3")), "f")
    assert (a, b) == ([0, 1], [2, 1])


def test_marker_with_its_metal_in_one_field_is_found():
    rows = panel(("Nd142Di", "CD3"))
    assert panels.match_panel(rows, channels(("Nd142Di", "142Nd_CD3")), "f") == [0]


def test_a_missing_marker_is_named_with_its_file():
    rows = panel(("Nd142", "CD3"), ("Nd143", "CD19"))
    with pytest.raises(Refusal, match="no channel for the marker CD19") as refusal:
        panels.match_panel(rows, channels(("Nd142", "CD3"), ("Sm149", "CD56")), "file a.fcs")
    assert refusal.value.where == "file a.fcs"


def test_an_ambiguous_marker_is_refused_unless_the_channel_decides():
    two = channels(("A", "CD3"), ("B", "CD3"))
    with pytest.raises(Refusal, match="'CD3' stands at A, B"):
        panels.match_panel(panel(("Z", "CD3")), two, "f")
    assert panels.match_panel(panel(("B", "CD3")), two, "f") == [1]


def test_a_channel_that_holds_another_marker_is_refused():
    with pytest.raises(Refusal, match="holds marker 'CD4', the panel says 'CD3'"):
        panels.match_panel(panel(("A", "CD3")), channels(("A", "CD4")), "f")


def test_panel_sheet_refusals(tmp_path):
    path = tmp_path / "panel.tsv"
    path.write_text("channel\tmarker\nA\tHLA-DR\nB\thladr\n")
    with pytest.raises(Refusal, match="are the same"):
        panels.read_panel(path)
    path.write_text("channel\tmarker\tclass\nA\tCD3\tignore\n")
    with pytest.raises(Refusal, match="no marker to model"):
        panels.read_panel(path)


def test_describe_tells_what_is_in_a_file(tmp_path, events):
    path = write_fcs(tmp_path / "my file.fcs", events, ["T", "FL1", "FL2"], ["", "CD3", "CD4"])
    told = fcs.describe(path).keys()
    assert told["shape"] == [50, 3] and told["version"] == "3.1"
    assert told["labels"]["marker"] == {"FL1": "CD3", "FL2": "CD4"}
    assert told["raw_mean"] == pytest.approx(events.mean(0), rel=1e-5)
    assert told["sheet_row"]["sample"] == "my_file"


def test_check_finds_all_mistakes_at_once(tmp_path, events):
    write_fcs(tmp_path / "good.fcs", events, ["A", "B", "C"], ["CD3", "CD4", "CD8"])
    write_fcs(tmp_path / "other.fcs", events, ["A", "B", "C"], ["CD3", "CD4", "CD19"])
    (tmp_path / "cut.fcs").write_bytes((tmp_path / "good.fcs").read_bytes()[:-40])
    (tmp_path / "panel.tsv").write_text("channel\tmarker\nX\tCD3\nY\tCD8\n")
    row = {"source": tmp_path, "sheet": tmp_path / "samples.tsv", "panel": tmp_path / "panel.tsv"}
    names = ("good", "other", "cut")
    units = [{"sample": n, "path": str(tmp_path / f"{n}.fcs")} for n in names]
    units[0]["cell_types"] = "absent.tsv"
    with pytest.raises(Refusals) as refusals:
        fcs.check_source(row, units, resolve("prepare-cytometry", {}, "test"))
    text = str(refusals.value)
    assert len(refusals.value.refusals) == 3
    for part in ("absent.tsv: no such file", "no channel for the marker CD8", "it is cut off"):
        assert part in text


def test_a_file_without_events_is_read(tmp_path):
    file = fcs.open_fcs(write_fcs(tmp_path / "e.fcs", np.zeros((0, 2)), ["A", "B"]))
    assert file.read().shape == (0, 2)


@pytest.mark.parametrize(
    ("header", "cells", "message"),
    [
        ("channel\tcofactor", "A\t0", "cofactor is 0"),
        ("channel\tcofactor", "A\t-5", "cofactor is -5"),
        ("channel\tcofactor", "A\t..", "cofactor is '..'"),
        ("channel\tlow\thigh", "A\t5\t2", "low 5 is not below high 2"),
        ("channel\tklass", "A\tignore", "rename it to class"),
        ("channel\tClass", "A\tignore", "rename it to class"),
    ],
)
def test_panels_that_would_spoil_values_are_refused(tmp_path, header, cells, message):
    (tmp_path / "panel.tsv").write_text(f"{header}\n{cells}\n")
    with pytest.raises((Refusal, Refusals), match=message):
        panels.read_panel(tmp_path / "panel.tsv")
