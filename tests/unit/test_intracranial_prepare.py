"""Filters, references, encoders and the feature store."""

import numpy as np
import pytest

from popflow.inputs.recordings import Recording
from popflow.inputs.settings import resolve
from popflow.prepare.encoders import BandPower, Spectrogram, StftCenter, stft_image
from popflow.prepare.intracranial import channel_statistics, load_session, prepare_session
from popflow.prepare.montage import lip_coordinates, parse_contact, rereference
from popflow.runtime.refusal import Refusal


def recording(x, rate=256.0, names=None, events=None, line=50.0):
    import pandas as pd

    names = names or [f"A{i + 1}" for i in range(len(x))]
    channels = pd.DataFrame({"name": names, "kind": "SEEG", "status": "good", "reason": ""})
    electrodes = pd.DataFrame({"name": names, "y": 0.0, "z": 0.0, "region": "unknown"})
    electrodes["x"] = -50.0 + 4.0 * np.arange(len(names))
    events = pd.DataFrame({"onset": [], "duration": []}) if events is None else events

    def read(chosen, start, stop):
        return x[[names.index(name) for name in chosen], start:stop].astype(float)

    return Recording("made.vhdr", rate, x.shape[1], channels, electrodes, "MNI", line, events, read)


def prepared(folder, made, **more):
    settings = resolve("prepare-intracranial", more, "test")
    prepare_session(made, {"session": "one"}, settings, folder)
    return load_session(folder)


def test_contact_names_are_split_at_the_last_digits():
    assert parse_contact("T2bHa10") == ("T2bHa", 10)
    assert parse_contact("*LT1a#3") == ("LT1a", 3)
    assert parse_contact("MISC") == ("MISC", None)


def test_laplacian_of_a_line_is_zero_and_ends_and_gaps_are_lost():
    names = ["A1", "A2", "A3", "A4", "B1", "B2", "B4", "B5"]
    reference = rereference(names, np.zeros((8, 3)), ["SEEG"] * 8, "laplacian")
    assert [names[i] for i in reference.kept] == ["A2", "A3"]
    assert "neighbours absent" in reference.reasons[5]
    ramp = np.array([1.0, 2, 3, 4, 1, 2, 4, 5])
    np.testing.assert_allclose(reference.weights @ ramp, 0, atol=1e-12)


def test_average_and_nearest_references():
    xyz = np.array([[0.0, 0, 0], [1, 0, 0], [5, 0, 0], [6, 0, 0]])
    kinds = ["SEEG", "SEEG", "ECOG", "ECOG"]
    average = rereference(["A1", "A2", "G1", "G2"], xyz, kinds, "car")
    np.testing.assert_allclose(average.weights @ np.array([1.0, 3, 10, 20]), [-1, 1, -5, 5])
    nearest = rereference(["A1", "A2", "G1", "G2"], xyz, ["SEEG"] * 4, "nearest", 1)
    np.testing.assert_allclose(nearest.weights @ np.array([1.0, 3, 10, 20]), [-2, 2, -10, 10])


def test_coordinates_are_turned_into_left_inferior_posterior():
    lip = lip_coordinates(np.array([[-10.0, 20.0, 30.0]]), "MNI152NLin2009bAsym", "here")
    assert lip.tolist() == [[138.0, 98.0, 108.0]]
    assert lip_coordinates(np.array([[1.0, 2, 3]]), "LIP", "here").tolist() == [[1.0, 2.0, 3.0]]
    with pytest.raises(Refusal, match="1 electrodes lie outside the head"):
        lip_coordinates(np.array([[200.0, 0, 0]]), "MNI", "here")


@pytest.mark.parametrize(("seconds", "frames"), [(5, 186), (3, 104), (1.5, 43), (1, 22)])
def test_image_has_the_published_frames(seconds, frames):
    x = np.random.default_rng(0).standard_normal((2, int(seconds * 2048)))
    assert stft_image(x, 2048.0).shape == (2, frames, 40)


def test_central_frames_at_five_seconds_are_88_to_97():
    x = np.random.default_rng(0).standard_normal((1, 1, 10240))
    centre = StftCenter(2048.0, 5.0).encode(x).reshape(10, 40)
    np.testing.assert_array_equal(centre, stft_image(x, 2048.0)[0, 0, 88:98])


def test_image_agrees_with_the_published_code(shared_data):
    golden = np.load(shared_data / "golden" / "stft_zscore_2048hz_io.npz")
    for length in ("5s", "1s"):
        image = stft_image(golden[f"x_{length}"], 2048.0)
        np.testing.assert_allclose(image, golden[f"spec_{length}"], atol=2e-5)


def test_image_of_a_constant_is_finite_and_low_rates_are_padded():
    assert np.isfinite(stft_image(np.full((1, 2048), 3.0), 2048.0)).all()
    image = stft_image(np.random.default_rng(0).standard_normal((1, 256)), 256.0)
    assert image.shape[-1] == 40 and (image[..., 26:] == 0).all()
    with pytest.raises(Refusal, match="a window of 200 samples"):
        stft_image(np.zeros((1, 200)), 2048.0)


def test_band_power_finds_the_band_and_the_power():
    time = np.arange(512) / 256.0
    x = 10 * np.sin(2 * np.pi * 10 * time)[None, None]
    encoder = BandPower(256.0, 2.0)
    values = dict(zip(encoder.bands, encoder.encode(x)[0, 0], strict=True))
    assert max(values, key=values.get) == "alpha"
    assert values["alpha"] == pytest.approx(np.log10(50.0), abs=0.05)
    assert encoder.bands["high_gamma"][1] == pytest.approx(115.2)
    assert Spectrogram(256.0, 1.0).encode(np.ones((3, 2, 256))).shape == (3, 2, 40)


def test_notch_takes_the_line_and_leaves_the_rest(tmp_path):
    time = np.arange(30 * 256) / 256.0
    noise = np.random.default_rng(0).normal(0, 0.1, (4, len(time)))
    signal = 20 * np.sin(2 * np.pi * 10 * time) + 20 * np.sin(2 * np.pi * 50 * time) + noise
    with_line = prepared(tmp_path / "a", recording(signal), reference="none")
    bands = list(BandPower(256.0, 1.0).bands)
    middle = with_line.features[40:-5].mean(axis=(0, 1))
    assert middle[bands.index("alpha")] == pytest.approx(np.log10(200), abs=0.1)
    assert middle[bands.index("low_gamma")] < 0
    assert with_line.meta["notch_hz"] == [50.0, 100.0]
    raw = prepared(tmp_path / "b", recording(signal, line=None), reference="none")
    assert raw.features[40:-5].mean(axis=(0, 1))[bands.index("low_gamma")] > 1


def test_ieeg_03_chunks_do_not_change_the_features(tmp_path):
    """memory is bounded by a chunk, and the result does not depend on it."""
    import pandas as pd

    x = np.random.default_rng(0).normal(0, 30, (6, 40 * 256))
    events = pd.DataFrame({"onset": [0.3, 9.7, 21.05, 38.0], "duration": 1.0, "kind": "a"})
    stores = [
        prepared(tmp_path / str(chunk), recording(x, events=events), chunk_s=chunk)
        for chunk in (3, 7, 60)
    ]
    for other in stores[1:]:
        np.testing.assert_allclose(stores[0].features, other.features, atol=1e-5)
        np.testing.assert_allclose(stores[0].event_features, other.event_features, atol=1e-5)
    assert stores[0].features.shape == (157, 4, 8) and stores[0].event_features.shape[0] == 4


def test_windows_and_events_at_the_same_sample_are_equal(tmp_path):
    import pandas as pd

    x = np.random.default_rng(0).normal(0, 30, (6, 20 * 256))
    events = pd.DataFrame({"onset": [2.0, 5.25], "duration": 1.0})
    store = prepared(tmp_path, recording(x, events=events))
    at = [int(np.flatnonzero(store.windows["t_s"] == t)[0]) for t in (2.0, 5.25)]
    np.testing.assert_allclose(store.features[at], store.event_features, atol=1e-6)


def test_parts_do_not_share_samples(tmp_path):
    x = np.random.default_rng(0).normal(0, 30, (6, 40 * 256))
    windows = prepared(tmp_path, recording(x)).windows
    ends = {p: (w["t_s"].min(), w["t_s"].max() + 1) for p, w in windows.groupby("part")}
    assert ends["train"][1] <= 24.0 <= ends["validation"][0]
    assert ends["validation"][1] <= 28.0 <= ends["test"][0]
    assert (windows["part"] == "purged").sum() > 0


def test_everything_read_is_kept_or_dropped_with_a_reason(tmp_path):
    import pandas as pd

    x = np.random.default_rng(0).normal(0, 30, (7, 40 * 256 + 100))
    x[3] = 0.0
    events = pd.DataFrame({"onset": [2.0, 39.9, np.nan], "duration": 1.0})
    prepared(tmp_path, recording(x, events=events), reference="car")
    (file,) = tmp_path.rglob("qc.tsv")
    table = pd.read_csv(file, sep="\t", keep_default_na=False)
    sums = table.groupby(["item", "kind"])["count"].sum().unstack(fill_value=0)
    assert set(sums.index) == {"samples", "windows", "events", "channels"}
    assert (sums["read"] == sums["kept"] + sums["dropped"]).all()
    assert sums.loc["events", "kept"] == 1 and sums.loc["samples", "read"] == x.shape[1]
    reasons = set(table.loc[table["kind"] == "dropped", "reason"])
    assert {"flat", "no onset", "outside the recording"} <= reasons


def test_ieeg_10_the_rate_comes_from_the_recording(tmp_path):
    """windows are in seconds, whatever the rate."""
    x = np.random.default_rng(0).normal(0, 30, (4, 20 * 1019))
    store = prepared(tmp_path, recording(x, 1019.0), encoder="stft-center", reference="car")
    assert store.meta["window_s"] == pytest.approx(1.0) and store.features.shape[2] == 400


def test_statistics_look_at_training_rows_only():
    x = np.random.default_rng(0).normal(5, 2, (50, 3, 4))
    changed = x.copy()
    changed[30:] = 1e6
    for a, b in zip(
        channel_statistics(x, np.arange(30)),
        channel_statistics(changed, np.arange(30), chunk=7),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(channel_statistics(x, np.arange(30))[0], x[:30].mean(0), rtol=1e-5)


def test_too_few_channels_are_refused(tmp_path):
    x = np.random.default_rng(0).normal(0, 30, (3, 20 * 256))
    with pytest.raises(Refusal, match="1 usable channels"):
        prepared(tmp_path, recording(x))


def test_an_unknown_target_is_refused(tmp_path):
    x = np.random.default_rng(0).normal(0, 30, (8, 20 * 256))
    with pytest.raises(Refusal, match="no channel 'FORCE'"):
        prepared(tmp_path, recording(x), targets=["FORCE"])


def test_a_missing_sample_of_a_target_spoils_its_own_windows_only(tmp_path):
    x = np.random.default_rng(0).normal(0, 30, (7, 20 * 256))
    x[6] = 1.0
    x[6, 700] = np.nan
    made = recording(x)
    made.channels.loc[6, "kind"] = "MISC"
    store = prepared(tmp_path, made, targets=["A7"])
    target = store.windows["target_A7"].to_numpy()
    start = store.windows["start_sample"].to_numpy()
    assert np.array_equal(np.isnan(target), (start <= 700) & (700 < start + 256))
    assert np.allclose(target[np.isfinite(target)], 1.0)


def test_a_contact_without_a_place_is_still_a_neighbour(tmp_path):
    x = np.random.default_rng(0).normal(0, 30, (8, 20 * 256))
    made = recording(x)
    made.electrodes.loc[3, "x"] = np.nan
    store = prepared(tmp_path, made)
    assert store.electrodes["name"].tolist() == ["A2", "A3", "A5", "A6", "A7"]
