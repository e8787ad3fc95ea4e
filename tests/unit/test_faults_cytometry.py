"""Public faults of reading cytometry files, one test or more per fault, on files built here."""

import numpy as np
import pandas as pd
import pytest

from popflow.inputs import fcs, panels, spillover
from popflow.inputs.settings import resolve
from popflow.prepare.cytometry import prepare_sample
from popflow.runtime.refusal import Refusal

VALUES = np.random.default_rng(0).gamma(2.0, 100.0, (20, 3)).astype(np.float32)
FLOATS = VALUES.astype("<f4").tobytes()


def keywords(count, events, kind="F", order="1,2,3,4", bits=32, **more):
    """Give the required keywords of a data set."""
    found = {"$BYTEORD": order, "$DATATYPE": kind, "$MODE": "L", "$NEXTDATA": "0"}
    found |= {"$PAR": str(count), "$TOT": str(events)}
    for n in range(1, count + 1):
        found |= {f"$P{n}B": str(bits), f"$P{n}R": "262144", f"$P{n}N": f"C{n}", f"$P{n}E": "0,0"}
    return found | {f"${key.upper()}": str(value) for key, value in more.items()}


def build(
    words,
    data=FLOATS,
    version="3.0",
    delimiter="/",
    text=None,
    header=None,
    tail=b"",
):
    """Give the bytes of a data set; `header` overrides the two offsets of DATA in HEADER."""
    if text is None:
        text = delimiter + "".join(
            f"{key}{delimiter}{value}{delimiter}" for key, value in words.items()
        )
    encoded = text.encode("latin-1")
    begin = 58 + len(encoded)
    first, last = header or (begin, begin + len(data) - 1)
    offsets = "".join(f"{v:>8}" for v in (58, begin - 1, first, last, 0, 0))
    return f"FCS{version}    {offsets}".encode() + encoded + data + tail


def opened(tmp_path, content, name="x.fcs", **options):
    (tmp_path / name).write_bytes(content)
    return fcs.open_fcs(tmp_path / name, **options)


def begin_of(words, **more):
    """Give where DATA begins in what `build` makes."""
    content = build(words, **more)
    return int(content[26:34])


def with_text_offsets(words, begin, end):
    """Set $BEGINDATA and $ENDDATA in eight digits, so that lengths do not depend on them."""
    return words | {"$BEGINDATA": f"{begin:08d}", "$ENDDATA": f"{end:08d}"}


@pytest.mark.parametrize("wrong", ["header", "text"])
def test_cyt_01_of_two_places_the_one_outside_of_text_is_used(tmp_path, wrong):
    base = with_text_offsets(keywords(3, 20), 0, 0)
    begin = begin_of(base)
    right, shifted = (begin, begin + 239), (begin - 40, begin + 199)
    places = {"header": right, "text": right} | {wrong: shifted}
    words = with_text_offsets(base, *places["text"])
    file = opened(tmp_path, build(words, header=places["header"]))
    assert np.array_equal(file.read(), VALUES)


def test_cyt_01_header_wins_over_a_later_place_in_text(tmp_path):
    base = with_text_offsets(keywords(3, 20), 0, 0)
    begin = begin_of(base)
    words = with_text_offsets(base, begin + 46, begin + 285)
    file = opened(tmp_path, build(words, tail=b"\0" * 60))
    assert np.array_equal(file.read(), VALUES)
    assert "HEADER and TEXT place the events" in file.warnings[0]


@pytest.mark.parametrize("more", [0, 1])
def test_cyt_02_an_end_one_byte_too_far(tmp_path, more):
    begin = begin_of(keywords(3, 20))
    content = build(keywords(3, 20), header=(begin, begin + 239 + more), tail=b"\0")
    assert np.array_equal(opened(tmp_path, content).read(), VALUES)


def test_cyt_03_an_end_that_equals_the_begin(tmp_path):
    begin = begin_of(keywords(3, 20))
    file = opened(tmp_path, build(keywords(3, 20), header=(begin, begin)))
    assert np.array_equal(file.read(), VALUES) and "$TOT is used" in file.warnings[0]


def test_cyt_04_a_doubled_delimiter_is_an_escape(tmp_path):
    words = keywords(3, 20) | {"$CYT": "LSR//II"}
    file = opened(tmp_path, build(words))
    assert file.text["cyt"] == "LSR/II" and np.array_equal(file.read(), VALUES)


def test_cyt_04_a_doubled_delimiter_is_an_empty_value(tmp_path):
    words = keywords(3, 20)
    words = {"$FIL": ""} | words | {"$OP": ""}
    file = opened(tmp_path, build(words))
    assert file.channels["name"].tolist() == ["C1", "C2", "C3"]
    assert np.array_equal(file.read(), VALUES)


@pytest.mark.parametrize("surplus", ["   ", "/", "\0\0"])
def test_cyt_05_surplus_at_the_end_of_text(tmp_path, surplus):
    words = keywords(3, 20)
    text = "/" + "".join(f"{key}/{value}/" for key, value in words.items()) + surplus
    file = opened(tmp_path, build(words, text=text))
    assert np.array_equal(file.read(), VALUES) and file.text["tot"] == "20"


def test_cyt_05_keys_and_numbers_with_blanks(tmp_path):
    words = {f"{key} ": f" {value} " for key, value in keywords(3, 20).items()}
    file = opened(tmp_path, build(words))
    assert file.channels["name"].tolist() == ["C1", "C2", "C3"]
    assert np.array_equal(file.read(), VALUES)


def test_cyt_06_text_that_is_not_utf8(tmp_path):
    words = keywords(3, 20) | {"$CYT": "FACSCalibur\xaa", "$OP": "Müller"}
    file = opened(tmp_path, build(words))
    assert "FACSCalibur" in file.text["cyt"] and np.array_equal(file.read(), VALUES)


@pytest.mark.parametrize("delimiter", ["|", "\\", "*", "\f", "\r", "!"])
def test_any_delimiter(tmp_path, delimiter):
    file = opened(tmp_path, build(keywords(3, 20), delimiter=delimiter))
    assert np.array_equal(file.read(), VALUES)


def integers(rows, bits, ranges, order="1,2,3,4", container=None, **more):
    """Build integers of given widths, in containers of `container` bytes (default: bits / 8)."""
    end = "big" if order.startswith("4") else "little"
    sizes = [container or b // 8 for b in bits]
    data = b"".join(
        int(value).to_bytes(size, end)
        for row in rows
        for value, size in zip(row, sizes, strict=True)
    )
    words = keywords(len(bits), len(rows), "I", order)
    for n, (b, r) in enumerate(zip(bits, ranges, strict=True), start=1):
        words |= {f"$P{n}B": str(b), f"$P{n}R": str(r)}
    return build(words | more, data)


def test_cyt_07_flag_bits_above_the_range_are_masked_and_floats_never(tmp_path):
    content = integers([[44817, 785]], [16, 16], [1024, 1000])
    assert opened(tmp_path, content).read(False).tolist() == [[44817 & 1023, 785]]
    words = keywords(3, 20) | {"$P1R": "8", "$P2R": "8", "$P3R": "8"}
    assert np.array_equal(opened(tmp_path, build(words)).read(), VALUES)


@pytest.mark.parametrize("order", ["1,2,3,4", "4,3,2,1"])
def test_cyt_08_channels_of_several_widths(tmp_path, order):
    rows = [[200, 60000, 4_000_000_000], [7, 8, 9]]
    content = integers(rows, [8, 16, 32], [256, 65536, 2**32], order)
    assert np.allclose(opened(tmp_path, content).read(False), rows)


@pytest.mark.parametrize("order", ["1,2,3,4", "4,3,2,1"])
def test_cyt_09_integers_of_24_bits(tmp_path, order):
    rows = [[16_777_215, 65_537], [1, 2]]
    content = integers(rows, [24, 24], [2**24, 2**24], order)
    assert opened(tmp_path, content).read(False).tolist() == rows


def test_ten_bits_in_words_of_sixteen(tmp_path):
    rows = [[1023, 512], [44817, 3]]
    content = integers(rows, [10, 10], [1024, 1024], container=2)
    assert opened(tmp_path, content).read(False).tolist() == [[1023, 512], [785, 3]]


def test_packed_bits_are_refused(tmp_path):
    words = keywords(4, 4, "I") | {f"$P{n}B": "10" for n in range(1, 5)}
    with pytest.raises(Refusal, match="integers of 10 bits|cut off"):
        opened(tmp_path, build(words, bytes(20)))


def test_cyt_10_doubles(tmp_path):
    content = build(keywords(3, 20, "D", bits=64), VALUES.astype("<f8").tobytes())
    assert np.array_equal(opened(tmp_path, content).read(), VALUES)


def test_cyt_10_types_per_channel_of_fcs_3_2(tmp_path):
    kind = np.dtype([("a", "<u2"), ("b", "<f4"), ("c", "<f8")])
    rows = np.zeros(5, kind)
    rows["a"], rows["b"], rows["c"] = [1, 2, 3, 4, 5], 0.5, 1e5
    words = keywords(3, 5, "I") | {"$P1B": "16", "$P2DATATYPE": "F", "$P3DATATYPE": "D"}
    words |= {"$P1R": "65536", "$P3B": "64"}
    file = opened(tmp_path, build(words, rows.tobytes(), version="3.2"))
    assert file.read().tolist() == [[n, 0.5, 1e5] for n in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize("kind, mode", [("A", "L"), ("F", "C"), ("F", "U")])
def test_cyt_10_other_types_are_refused(tmp_path, kind, mode):
    with pytest.raises(Refusal, match="list mode with integers or floats"):
        opened(tmp_path, build(keywords(3, 20) | {"$DATATYPE": kind, "$MODE": mode}))


@pytest.mark.parametrize("zero, offset", [("0", 1.0), ("1", 1.0), ("0.1", 0.1)])
def test_cyt_11_log_amplifiers_of_integers(tmp_path, zero, offset):
    more = {"$P1E": f"4,{zero}", "$P1G": "8"}
    content = integers([[512], [0]], [16], [1024], **more)
    assert opened(tmp_path, content).read().ravel() == pytest.approx([100 * offset, offset])


def test_cyt_11_log_settings_of_floats_are_ignored(tmp_path):
    words = keywords(3, 20) | {"$P1E": "4,1"}
    assert np.array_equal(opened(tmp_path, build(words)).read(), VALUES)


@pytest.mark.parametrize("gain, divisor", [("4", 4), ("0", 1), ("1", 1), ("", 1), ("2.5", 2.5)])
def test_cyt_12_gain_is_divided_out(tmp_path, gain, divisor):
    words = keywords(3, 20) | ({"$P2G": gain} if gain else {})
    assert opened(tmp_path, build(words)).read()[:, 1] == pytest.approx(VALUES[:, 1] / divisor)


def test_cyt_13_each_data_set_has_its_own_keywords(tmp_path):
    first = integers([[1, 2], [3, 4]], [16, 16], [1024, 1024])
    first = first.replace(b"FCS3.0", b"FCS2.0").replace(b"$NEXTDATA/0/", b"$NEXTDATA/00000/")
    first = first.replace(b"$NEXTDATA/00000/", f"$NEXTDATA/{len(first):05d}/".encode())
    offsets = [int(first[i : i + 8]) + 4 * (i > 10) for i in range(10, 42, 8)]
    first = first[:10] + "".join(f"{v:>8}" for v in offsets).encode() + first[42:]
    content = first + build(keywords(3, 20))
    default = opened(tmp_path, content)
    assert default.version == "3.0" and np.array_equal(default.read(), VALUES)
    other = opened(tmp_path, content, data_set=0)
    assert other.version == "2.0" and other.read(False).tolist() == [[1, 2], [3, 4]]
    assert default.data_sets == 2
    with pytest.raises(Refusal, match="no data set 2\n  accepted: 0 to 1"):
        opened(tmp_path, content, data_set=2)


def matrix_of(value, names=("A", "B")):
    return spillover.read_spillover({"spillover": value}, list(names), "x.fcs")


@pytest.mark.parametrize(
    "value",
    ["2,A,B,1,0.1,0.05,1", "2,1,2,1,0.1,0.05,1", "2,A,B,1,0,0,1,0,05,1,0", "2;A;B;1;0,1;0,05;1"],
)
def test_cyt_14_numbers_for_names_and_decimal_commas(value):
    names, matrix = matrix_of(value)
    assert names == ["A", "B"]
    assert matrix == pytest.approx(np.array([[1, 0.1], [0.05, 1]]))


def test_cyt_15_a_channel_that_the_file_lacks():
    with pytest.raises(Refusal, match="names 'X'"):
        matrix_of("3,A,B,X,1,0,0.2,0,1,0,0,0,1")
    names, matrix = matrix_of("3,A,B,X,1,0.1,0,0,1,0,0,0,1")
    assert names == ["A", "B"] and matrix.shape == (2, 2)


@pytest.mark.parametrize(
    "value, message",
    [
        ("2,A,B,1,0.1,0.05", "3 numbers for 2 channels"),
        ("2,A,B,1,0,0,2,1", "5 numbers for 2 channels"),
        ("2,A,B,1,nan,0.2,1", "no numbers"),
        ("2,A,A,1,0.1,0.2,1", "names a channel twice"),
    ],
)
def test_cyt_15_a_matrix_that_is_not_square_is_refused(value, message):
    with pytest.raises(Refusal, match=message):
        spillover.read_spillover({"spillover": value}, ["A", "B"], "x.fcs")


PANEL = [panels.PanelRow(f"C{n}", f"M{n}", "type", 150.0, None, None) for n in (1, 2, 3)]
SETTINGS = resolve("prepare-cytometry", {"min_cells": 1}, "test")


def prepared(tmp_path, words, values=VALUES, **changes):
    content = build(words, values.astype("<f4").tobytes())
    (tmp_path / "x.fcs").write_bytes(content)
    unit = {"sample": "s", "path": str(tmp_path / "x.fcs")}
    return prepare_sample(unit, PANEL, SETTINGS | changes)


@pytest.mark.parametrize(
    "matrix, told",
    [
        ("3,C1,C2,C3,1,0.2,0,0,1,0,0,0,1", True),
        ("3,C1,C2,C3,1,0,0,0,1,0,0,0,1", False),
        (None, False),
    ],
)
def test_cyt_16_what_was_done_is_recorded_and_true(tmp_path, matrix, told):
    words = keywords(3, 20) | ({"$SPILLOVER": matrix} if matrix else {})
    sample = prepared(tmp_path, words)
    expected = VALUES.astype(float).copy()
    if told:
        expected[:, 1] -= 0.2 * expected[:, 0]
    assert sample.cells == pytest.approx(np.arcsinh(expected / 150), rel=1e-4, abs=1e-5)
    assert any("compensated" in step for step in sample.steps)
    assert any("not compensated" in step for step in sample.steps) is not told


def test_cyt_17_channel_and_marker_are_both_kept(tmp_path):
    words = keywords(3, 20) | {"$P1S": "CD3", "$P2S": " "}
    file = opened(tmp_path, build(words))
    assert file.channels[["name", "marker"]].to_numpy().tolist() == [
        ["C1", "CD3"],
        ["C2", ""],
        ["C3", ""],
    ]
    panel = [panels.PanelRow("C9", "CD3", "type", 5.0, None, None)]
    assert panels.match_panel(panel, file.channels, "x") == [0]


def test_cyt_18_a_panel_that_does_not_fit_lists_names_and_near_ones(tmp_path):
    file = opened(tmp_path, build(keywords(3, 20) | {"$P1S": "CD45RA"}))
    panel = [panels.PanelRow("Z1", "CD45RO", "type", 5.0, None, None)]
    with pytest.raises(Refusal, match="CD45RO \\(near: CD45RA\\)\n.*the file has CD45RA, C2, C3"):
        panels.match_panel(panel, file.channels, "file x.fcs")


def test_cyt_19_values_that_are_transformed_already_are_refused(tmp_path):
    with pytest.raises(Refusal, match="transformed"):
        prepared(tmp_path, keywords(3, 20), np.arcsinh(VALUES / 150))


def test_cyt_19_the_cofactor_is_that_of_the_marker(tmp_path):
    (tmp_path / "x.fcs").write_bytes(build(keywords(3, 20)))
    panel = [panels.PanelRow(f"C{n}", f"M{n}", "type", 5.0 * n, None, None) for n in (1, 2, 3)]
    sample = prepare_sample({"sample": "s", "path": str(tmp_path / "x.fcs")}, panel, SETTINGS)
    assert sample.cells == pytest.approx(np.arcsinh(VALUES / np.array([5.0, 10.0, 15.0])), rel=1e-5)


def test_a_singular_matrix_is_refused(tmp_path):
    words = keywords(3, 20) | {"$SPILLOVER": "2,C1,C2,1,1,1,1"}
    with pytest.raises(Refusal, match="condition number"):
        prepared(tmp_path, words)


def test_absent_total_is_counted_from_the_segment(tmp_path):
    words = keywords(3, 20)
    del words["$TOT"]
    file = opened(tmp_path, build(words))
    assert np.array_equal(file.read(), VALUES) and "$TOT is absent" in file.warnings[0]


def test_copies_of_a_name_are_numbered(tmp_path):
    file = opened(tmp_path, build(keywords(3, 20) | {"$P3N": "C1"}))
    assert file.channels["name"].tolist() == ["C1", "C2", "C1.2"]
    assert "more than once" in file.warnings[0]


def test_events_as_text_give_what_fcs_gives(tmp_path):
    (tmp_path / "x.fcs").write_bytes(build(keywords(3, 20)))
    table = pd.DataFrame(VALUES, columns=["C1 :: M1", "C2 :: M2", "C3 :: M3"])
    table.to_csv(tmp_path / "x.csv", index=False)
    first, second = (
        prepare_sample({"sample": "s", "path": str(tmp_path / n)}, PANEL, SETTINGS)
        for n in ("x.fcs", "x.csv")
    )
    assert first.cells == pytest.approx(second.cells, rel=1e-5)


@pytest.mark.parametrize(
    "content, message", [("1,2,3\n4,5,6\n", "no header"), ("A,B\n1,x\n", "text")]
)
def test_tables_of_events_without_header_or_with_text_are_refused(tmp_path, content, message):
    (tmp_path / "x.csv").write_text(content)
    panel = [panels.PanelRow("A", "A", "type", 5.0, None, None)]
    with pytest.raises(Refusal, match=message):
        prepare_sample({"sample": "s", "path": str(tmp_path / "x.csv")}, panel, SETTINGS)


@pytest.mark.parametrize("empty", ["/$P2S//", "/$OP//", "/$OP//$P3S//"])
def test_cyt_04_an_empty_value_does_not_swallow_the_keyword_behind_it(tmp_path, empty):
    words = keywords(3, 20, "I") | {"$P2E": "4,1", "$P2R": "1024"}
    rest = "/".join(f"{k}/{v}" for k, v in words.items() if k not in ("$P2E", "$P2R"))
    text = f"/{rest}{empty}$P2E/4,1/$P2R/1024/"
    data = np.full((20, 3), 512, "<i4").tobytes()
    file = opened(tmp_path, build(words, data, text=text))
    assert file.channels["decades"].tolist() == [0, 4, 0]
    assert file.read()[0] == pytest.approx([512, 100, 512])


@pytest.mark.parametrize("private", ["P2E/0,0/", "TOT/1/", "MODE/fast/", "SPILLOVER/1,C1,9/"])
def test_a_private_keyword_does_not_override_the_standard_one(tmp_path, private):
    words = keywords(3, 20, spillover="2,C1,C2,1,0.1,0,1") | {"$P2E": "4,1"}
    text = "/" + private + "/".join(f"{k}/{v}" for k, v in words.items()) + "/"
    file = opened(tmp_path, build(words, text=text))
    assert file.events == 20 and file.channels["decades"][1] == 4
    assert file.spillover[1].tolist() == [[1, 0.1], [0, 1]]


@pytest.mark.parametrize("key", ["$PAR", "$TOT", "$P1B", "$BEGINDATA"])
@pytest.mark.parametrize("value", ["0", "-2", "inf", "nan", "1e400", "x"])
def test_numbers_that_are_none_end_in_a_refusal_or_the_right_events(tmp_path, key, value):
    try:
        file = opened(tmp_path, build(keywords(3, 20) | {key: value}))
    except Refusal as refusal:
        assert "x.fcs" in str(refusal)
    else:
        assert np.array_equal(file.read(), VALUES) or file.events == 0


def test_events_behind_the_segment_are_not_read(tmp_path):
    content = build(keywords(3, 22), tail=b"\1" * 200)
    with pytest.raises(Refusal, match="22 events"):
        opened(tmp_path, content)


def test_a_segment_longer_than_tot_tells_is_read_whole(tmp_path):
    begin = begin_of(with_text_offsets(keywords(3, 15), 0, 0))
    words = with_text_offsets(keywords(3, 15), begin, begin + 239)
    file = opened(tmp_path, build(words))
    assert file.events == 20 and "15 events, the segment holds 20" in file.warnings[0]


def test_cyt_13_files_written_behind_each_other_are_data_sets(tmp_path):
    one, two = build(keywords(3, 20)), build(keywords(3, 10), FLOATS[:120])
    assert opened(tmp_path, one + b"00000000" + two, data_set=0).events == 20
    file = opened(tmp_path, one + two)
    assert file.data_sets == 2 and file.events == 10


def test_floats_are_not_at_the_margin_of_a_range_that_is_their_maximum(tmp_path):
    top = float(VALUES[:, 0].max())
    words = keywords(3, 20, p1r=int(np.ceil(top)) + 1)
    assert opened(tmp_path, build(words)).limits.tolist() == [np.inf, 262143, 262143]


def test_rows_longer_than_the_header_shift_no_column(tmp_path):
    from popflow.inputs.event_tables import open_events

    (tmp_path / "a.csv").write_text("FSC-A,FITC-A\n1,2,\n3,4,\n")
    assert open_events(tmp_path / "a.csv").read().tolist() == [[1, 2], [3, 4]]
    (tmp_path / "a.csv").write_text("FSC-A,FITC-A\n100,5,200,5\n1,5,2,5\n")
    with pytest.raises(Refusal, match="a.csv"):
        open_events(tmp_path / "a.csv").read()
