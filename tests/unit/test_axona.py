"""Sessions of Axona: true spike times, clusters and places, and what is refused."""

import numpy as np
import pytest
import scipy.io

from popflow.inputs.axona import read_axona
from popflow.inputs.registry import describe, find_files, format_of
from popflow.inputs.sheets import files_of
from popflow.inputs.spikes import read_session
from popflow.runtime.refusal import Refusal
from tests.contracts.test_readers import axona, cut, dacq, pos, spikes, tetrode

TICK = 1 / 96_000


def two_spots(frames=1000):
    """Give a walk of the big spot, while the small one is mostly unseen."""
    words = np.full((frames, 8), 1023)
    words[:, 0], words[:, 1] = np.arange(frames), 300
    words[:, 4:] = 40, 0, 40, 0
    words[::4, 2:4] = 7, 8
    return words


def test_spikes_are_put_to_their_clusters_without_noise(tmp_path):
    times, units = spikes()
    session = read_session(axona(tmp_path))
    assert (session.format, session.version) == ("Axona", "1.2.2.14")
    assert list(session.spikes) == ["1-1", "1-2"]
    for cluster in (1, 2):
        expected = np.round(times[units == cluster] / TICK) * TICK
        assert session.spikes[f"1-{cluster}"] == pytest.approx(expected, abs=1e-12)
    told = " ".join(session.warnings)
    assert f"{(units == 0).sum()} spikes of cluster 0" in told
    assert "tetrode 3 has no .cut or .clu file: its 20 spikes" in told


def test_neo_reads_the_same_time_stamps(tmp_path):
    axonaio = pytest.importorskip("neo.rawio.axonarawio")
    path = axona(tmp_path).rename(tmp_path / "rat.set")
    (tmp_path / "r1.d2.1").rename(tmp_path / "rat.1")
    cut(tmp_path / "rat_1.cut", np.ones(90, int))
    reader = axonaio.AxonaRawIO(str(path))
    reader.parse_header()
    stamps = reader.get_spike_timestamps(0, 0, 0)
    seconds = reader.rescale_spike_timestamp(stamps, "float64")
    assert read_session(path).spikes["1-1"].tolist() == seconds.tolist()


def test_clusters_of_klustakwik_count_from_one(tmp_path):
    path = axona(tmp_path)
    expected = read_session(path).spikes
    labels = spikes()[1] + 1
    (tmp_path / "r1.d2_1.cut").unlink()
    (tmp_path / "r1.d2.clu.1").write_text("\n".join(map(str, [3, *labels])) + "\n")
    session = read_session(path)
    assert {name: t.tolist() for name, t in session.spikes.items()} == {
        name: t.tolist() for name, t in expected.items()
    }
    assert "counts clusters from 1" in " ".join(session.warnings)


def test_a_cut_goes_before_a_clu(tmp_path):
    path = axona(tmp_path)
    (tmp_path / "r1.d2.clu.1").write_text("1\n" + "9\n" * 90)
    assert set(read_session(path).spikes) == {"1-1", "1-2"}


def test_time_stamps_of_a_long_recording_are_not_negative(tmp_path):
    path = axona(tmp_path)
    late = 30_000 + np.arange(90.0)
    tetrode(tmp_path / "r1.d2.1", late)
    (tmp_path / "r1.d2.pos").unlink()
    cut(tmp_path / "r1.d2_1.cut", np.ones(90, int))
    assert read_session(path).spikes["1-1"] == pytest.approx(late)


def test_without_any_clusters_it_is_refused(tmp_path):
    path = axona(tmp_path)
    (tmp_path / "r1.d2_1.cut").unlink()
    with pytest.raises(Refusal, match="2 tetrode files, none with clusters"):
        read_session(path)
    for number in (1, 3):
        (tmp_path / f"r1.d2.{number}").unlink()
    with pytest.raises(Refusal, match="no tetrode file beside it"):
        read_session(path)


def test_noise_alone_is_no_unit(tmp_path):
    path = axona(tmp_path)
    cut(tmp_path / "r1.d2_1.cut", np.zeros(90, int))
    with pytest.raises(Refusal, match="no units"):
        read_session(path)


@pytest.mark.parametrize("count", [89, 91])
def test_clusters_of_another_session_are_refused(tmp_path, count):
    path = axona(tmp_path)
    cut(tmp_path / "r1.d2_1.cut", np.ones(count, int))
    with pytest.raises(Refusal, match=rf"_1.cut: {count} spikes, but r1.d2.1 holds 90"):
        read_session(path)


def test_a_cut_that_is_no_cut_is_refused(tmp_path):
    path, file = axona(tmp_path), tmp_path / "r1.d2_1.cut"
    file.write_text("nothing of that kind")
    with pytest.raises(Refusal, match="no line Exact_cut_for"):
        read_session(path)
    file.write_text("Exact_cut_for: x spikes: 3\n1 -1 2\n")
    with pytest.raises(Refusal, match="'-1' among the clusters"):
        read_session(path)


def test_the_track_is_in_centimetres_by_the_clock_of_frames(tmp_path):
    path, words = axona(tmp_path), two_spots()
    words[5, :2] = 1023
    words[6, 0] = 1023
    pos(tmp_path / "r1.d2.pos", words)
    session = read_session(path)
    assert session.position_unit == "cm"
    assert session.position_t == pytest.approx(np.arange(1000) / 50)
    assert session.position[10] == pytest.approx([10 / 4, 300 / 4])
    assert np.flatnonzero(np.isnan(session.position).any(1)).tolist() == [5, 6]
    assert "spot 1 of 2, 2 of 1000 frames lost" in " ".join(session.warnings)


@pytest.mark.parametrize("scale", ["0", "not set", "-300", "nan"])
def test_without_a_scale_the_track_is_in_pixels(tmp_path, scale):
    path = axona(tmp_path)
    pos(tmp_path / "r1.d2.pos", two_spots(), pixels_per_metre=scale)
    session = read_session(path)
    assert session.position_unit == "px" and session.position[10].tolist() == [10, 300]


def test_of_four_colours_the_one_seen_most_is_followed(tmp_path):
    path, words = axona(tmp_path), np.full((1000, 8), 1023)
    words[:600, 0:2], words[:990, 4:6] = 1, (20, 30)
    pos(tmp_path / "r1.d2.pos", words, pos_format="t,x1,y1,x2,y2,x3,y3,x4,y4")
    session = read_session(path)
    assert session.position[0] == pytest.approx([5, 7.5])
    assert "spot 3 of 4, 10 of 1000 frames lost" in " ".join(session.warnings)


def test_a_track_of_the_sheet_replaces_a_broken_one(tmp_path):
    path = axona(tmp_path)
    (tmp_path / "r1.d2.pos").write_bytes(b"broken")
    with pytest.raises(Refusal, match=r"r1.d2.pos: no data_start"):
        read_session(path)
    (tmp_path / "t.csv").write_text("t,x,y\n0,1,2\n20,3,4\n")
    session = read_session(path, {"position": "t.csv", "position_unit": "m"})
    assert session.position.tolist() == [[1, 2], [3, 4]] and session.position_unit == "m"
    (tmp_path / "r1.d2.pos").unlink()
    assert read_session(path).position.shape == (0, 2)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ({"bytes_per_coord": "4"}, "bytes_per_coord 4"),
        ({"num_pos_samples": "many"}, "num_pos_samples many"),
        ({"num_pos_samples": "9" * 30}, "no data_end after"),
        ({"num_pos_samples": "999"}, "no data_end after 999 records"),
        ({"sample_rate": "0 hz"}, "sample_rate 0 hz"),
    ],
)
def test_headers_that_cannot_be_are_refused(tmp_path, header, found):
    path = axona(tmp_path)
    pos(tmp_path / "r1.d2.pos", two_spots(), **header)
    with pytest.raises(Refusal, match=found):
        read_session(path)


def test_spikes_without_their_number_or_end_are_refused(tmp_path):
    path, file = axona(tmp_path), tmp_path / "r1.d2.1"
    dacq(file, {"timebase": "96000 hz"}, b"")
    with pytest.raises(Refusal, match="num_spikes is not told"):
        read_session(path)
    dacq(file, {"timebase": "96000 hz", "num_spikes": "1"}, bytes(216), b"")
    with pytest.raises(Refusal, match="no data_end after 1 records of 216 bytes"):
        read_session(path)


def test_a_set_file_of_eeglab_is_told_by_its_content(tmp_path):
    path = axona(tmp_path)
    other = tmp_path / "eeg.set"
    scipy.io.savemat(tmp_path / "eeg.mat", {"EEG": {"srate": 100.0}})
    (tmp_path / "eeg.mat").rename(other)
    assert (format_of(path).name, format_of(other).name) == ("Axona", "EEGLAB")
    assert describe(path).modality == "placecells"
    assert find_files(tmp_path, "placecells") == [path]
    assert find_files(tmp_path, "intracranial") == [other]
    with pytest.raises(Refusal, match="not Axona's"):
        read_axona(other)


@pytest.mark.parametrize("sheet", [False, True])
def test_files_beside_the_session_are_watched(tmp_path, sheet):
    path = axona(tmp_path)
    (tmp_path / "other.1").write_bytes(b"")
    row = {"dataset": "a", "modality": "placecells", "source": str(path)}
    if sheet:
        (tmp_path / "sheet.tsv").write_text(f"path\n{path.name}\n")
        row |= {"source": str(tmp_path), "sheet": str(tmp_path / "sheet.tsv")}
    names = {file.rsplit("/", 1)[1] for file in files_of(row)} - {"sheet.tsv"}
    assert names == {"r1.d2.set", "r1.d2.1", "r1.d2.3", "r1.d2_1.cut", "r1.d2.pos"}
