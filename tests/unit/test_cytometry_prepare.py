"""The simulated cohort, its preparation, and what the evaluation reads from it."""

import numpy as np
import pytest

from popflow.evaluate import cytometry as evaluate
from popflow.inputs.settings import resolve
from popflow.prepare.cytometry import assign_splits, prepare_cytometry, read_cohort
from popflow.runtime.files import read_tsv
from popflow.runtime.refusal import Refusal
from popflow.simulate.cytometry import PHENOTYPES, simulate_cytometry, type_names, unit_ids
from tests.unit.test_cytometry_inputs import write_fcs

SIMULATE = {"subjects": 12, "repeats": 4, "cells": 300, "markers": 6, "batches": 2}


@pytest.fixture(scope="module")
def cohort_settings():
    return resolve("simulate-cytometry", SIMULATE, "test")


@pytest.fixture(scope="module")
def source(tmp_path_factory, cohort_settings):
    folder = tmp_path_factory.mktemp("source")
    simulate_cytometry(cohort_settings, folder)
    return {"source": str(folder), "sheet": str(folder / "samples.tsv")}


def prepared_with(source, folder, **given):
    settings = resolve("prepare-cytometry", {"min_cells": 100} | given, "test")
    prepare_cytometry(source, settings, folder)
    return read_cohort(folder)


@pytest.fixture(scope="module")
def cohort(source, tmp_path_factory):
    return prepared_with(source, tmp_path_factory.mktemp("prepared"))


def test_the_cohort_is_what_was_asked_for(source, cohort_settings):
    table = read_tsv(source["sheet"])
    assert table["sample"].tolist() == unit_ids(cohort_settings)
    assert len(table) == 16 and table["subject"].nunique() == 12
    again = table[table["sample"].str.endswith("b")].set_index("subject")
    first = table[table["sample"].str.endswith("a")].set_index("subject").loc[again.index]
    assert (again["batch"] != first["batch"]).all()
    assert (again[list(PHENOTYPES)] == first[list(PHENOTYPES)]).all().all()


def test_the_same_seed_writes_the_same_bytes(source, cohort_settings, tmp_path):
    simulate_cytometry(cohort_settings, tmp_path)
    for name in ("S000a.fcs", "S003b.fcs", "samples.tsv", "S000a.cell_types.tsv"):
        with open(f"{source['source']}/{name}", "rb") as handle:
            assert handle.read() == (tmp_path / name).read_bytes()


def test_phenotypes_are_planted(tmp_path):
    given = {"subjects": 40, "repeats": 0, "cells": 3000}
    simulate_cytometry(resolve("simulate-cytometry", given, "test"), tmp_path)
    source = {"source": str(tmp_path), "sheet": str(tmp_path / "samples.tsv")}
    cohort = prepared_with(source, tmp_path / "prepared")
    shares = evaluate.cell_type_proportions(cohort)
    case = (cohort.samples["rare_type"] == "case").to_numpy()
    rare = shares[type_names()[0]].to_numpy()
    assert rare[case].mean() / rare[~case].mean() == pytest.approx(2.0, rel=0.25)
    first, second = (shares[type_names()[i]].to_numpy() for i in (1, 2))
    unlike = (first > 0.08) != (second > 0.08)
    assert np.mean(unlike == (cohort.samples["two_types"] == "case").to_numpy()) > 0.85
    assert shares.to_numpy().sum(1) == pytest.approx(1)


def test_every_event_is_kept_or_counted(cohort, source):
    qc = read_tsv(cohort.folder / "qc.tsv")
    from popflow.inputs.fcs import open_fcs

    for sample, rows in qc.groupby("sample"):
        assert rows["events"].sum() == open_fcs(f"{source['source']}/{sample}.fcs").events
    kept = qc[qc["outcome"] == "kept"].set_index("sample")["events"]
    assert (kept.loc[cohort.samples["sample"]].to_numpy() == cohort.samples["cells"]).all()
    # Debris has no DNA: the gate takes all of it, and nothing else.
    assert set(np.concatenate([cohort.cell_types(s) for s in kept.index])) <= set(type_names())


def test_statistics_come_from_training_samples_only(cohort):
    train = cohort.samples.loc[cohort.samples["split"] == "train", "sample"]
    assert 0 < len(train) < len(cohort.samples)
    mean = np.mean([cohort.cells(s).mean(0, dtype=float) for s in train], axis=0)
    np.testing.assert_allclose(cohort.markers["mean"], mean, rtol=1e-5)


def test_cells_stay_on_disk(cohort):
    cells = cohort.cells(cohort.samples["sample"][0])
    assert isinstance(cells, np.memmap) and cells.dtype == np.float32
    import anndata

    adata = anndata.read_h5ad(cohort.folder / "samples" / f"{cohort.samples['sample'][0]}.h5ad")
    np.testing.assert_array_equal(adata.X, cells)
    assert "arcsinh(x / cofactor)" in list(adata.uns["steps"])
    assert {"event", "cell_type"} <= set(adata.obs)


def test_subjects_stay_in_one_split():
    units = [{"sample": f"{s}{r}", "subject": s} for s in "abcdefghij" for r in (1, 2)]
    splits = assign_splits(units, 0.3, 0)
    assert sum(split == "test" for split in splits.values()) == 6
    assert all(splits[f"{s}1"] == splits[f"{s}2"] for s in "abcdefghij")
    units[0]["split"], units[1]["split"] = "train", "test"
    with pytest.raises(Refusal, match="stands in train and in test"):
        assign_splits(units, 0.3, 0)


def lab(
    tmp_path, events, keywords=None, panel="channel\tmarker\tcofactor\nA\tCD3\t150\nB\tCD4\t150\n"
):
    write_fcs(tmp_path / "a.fcs", events, ["A", "B"], ["CD3", "CD4"], keywords)
    (tmp_path / "samples.tsv").write_text("sample\tpath\tsplit\ns1\ta.fcs\ttrain\n")
    (tmp_path / "panel.tsv").write_text(panel)
    return {"source": str(tmp_path), "sheet": str(tmp_path / "samples.tsv")}


def test_margin_and_nonfinite_events_are_dropped_and_counted(tmp_path):
    events = np.random.default_rng(0).uniform(1, 900, (500, 2))
    events[:3, 0], events[3, 1], events[4, 1] = 1023, np.nan, np.inf
    source = lab(tmp_path, events, {"p1r": "1024", "p2r": "1024"})
    cohort = prepared_with(source, tmp_path / "out")
    qc = read_tsv(tmp_path / "out/qc.tsv").set_index("outcome")["events"]
    # The infinite event is counted once, under the reason that comes first.
    assert qc.to_dict() == {"kept": 495, "non-finite": 2, "at the margin": 3}
    expected = np.arcsinh(events[5:] / 150)
    np.testing.assert_allclose(cohort.cells("s1"), expected, rtol=1e-5)


def test_transformed_values_are_not_transformed_again(tmp_path):
    events = np.random.default_rng(0).uniform(0, 6, (500, 2))
    source = lab(tmp_path, events)
    with pytest.raises(Refusal, match="seem transformed already") as refusal:
        prepared_with(source, tmp_path / "out")
    assert "transformed: true" in refusal.value.fix
    cohort = prepared_with(source, tmp_path / "out", transformed=True)
    np.testing.assert_allclose(cohort.cells("s1"), events, rtol=1e-5)


def test_compensation_is_applied_once_and_recorded(tmp_path):
    import anndata

    truth = np.random.default_rng(1).uniform(10, 1000, (500, 2))
    spill = np.array([[1, 0.2], [0.05, 1]])
    source = lab(tmp_path, truth @ spill, {"spillover": "2,A,B,1,0.2,0.05,1"})
    cohort = prepared_with(source, tmp_path / "out")
    np.testing.assert_allclose(cohort.cells("s1"), np.arcsinh(truth / 150), rtol=1e-4)
    adata = anndata.read_h5ad(tmp_path / "out/samples/s1.h5ad")
    np.testing.assert_allclose(adata.uns["spillover"], spill)
    plain = prepared_with(source, tmp_path / "off", compensate="off")
    np.testing.assert_allclose(plain.cells("s1"), np.arcsinh(truth @ spill / 150), rtol=1e-4)


def test_a_sample_of_few_cells_is_excluded_with_a_reason(tmp_path):
    source = lab(tmp_path, np.random.default_rng(0).uniform(1, 900, (50, 2)))
    with pytest.raises(Refusal, match="no training sample has 100 cells"):
        prepared_with(source, tmp_path / "out")
    write_fcs(tmp_path / "b.fcs", np.full((300, 2), 90.0), ["A", "B"], ["CD3", "CD4"])
    sheet = "sample\tpath\tsplit\ns1\ta.fcs\ttrain\ns2\tb.fcs\ttrain\n"
    (tmp_path / "samples.tsv").write_text(sheet)
    cohort = prepared_with(source, tmp_path / "out")
    assert cohort.samples["sample"].tolist() == ["s2"]
    status = read_tsv(tmp_path / "out/qc.tsv").drop_duplicates("sample").set_index("sample")
    assert status.loc["s1", "status"] == "excluded: fewer than 100 cells"


def test_cell_types_must_fit_the_events(tmp_path):
    source = lab(tmp_path, np.random.default_rng(0).uniform(1, 900, (200, 2)))
    (tmp_path / "samples.tsv").write_text("sample\tpath\tcell_types\ns1\ta.fcs\tt.tsv\n")
    (tmp_path / "t.tsv").write_text("cell_type\nT\nB\n")
    with pytest.raises(Refusal, match="2 rows"):
        prepared_with(source, tmp_path / "out")


def test_evaluation_compares_methods_on_the_same_folds(cohort, tmp_path):
    import anndata

    shares = evaluate.cell_type_proportions(cohort)
    adata = anndata.AnnData(shares.to_numpy())
    adata.obs_names = cohort.samples["sample"]
    adata.obsm["states"] = np.zeros((len(shares), 2))
    path = tmp_path / "default/seed-0/embedding.h5ad"
    path.parent.mkdir(parents=True)
    adata.write_h5ad(path)
    given = {"folds": 4, "few_subjects": 0, "clusters": 8, "phenotypes": ["rare_type"]}
    settings = resolve("evaluate-cytometry", given, "test")
    fits = evaluate.fits_from_paths([str(path)])
    table, predictions = evaluate.evaluate_cytometry(cohort.folder, fits, settings, "cohort")
    assert list(table.columns) == "dataset method variant seed fold task metric value n".split()
    r2 = table[(table["task"] == "proportions") & (table["metric"] == "r2")]
    r2 = r2.set_index("method")["value"]
    assert r2["maestro"] > 0.8 and r2["constant"] < 0.05
    assert set(table["task"]) == {"proportions", "phenotype_rare_type", "batch"}
    assert predictions.groupby("method")["sample"].nunique().eq(len(cohort.samples)).all()


def test_few_subjects_are_left_out_one_by_one(cohort):
    settings = resolve("evaluate-cytometry", {"phenotypes": ["rare_type"]}, "test")
    table, _ = evaluate.evaluate_cytometry(cohort.folder, [], settings, "cohort")
    rows = table[table["task"] == "phenotype_rare_type"]
    wide = rows.pivot(index="method", columns="metric", values="value")
    assert (wide["accuracy_low"] <= wide["accuracy"]).all()
    assert (wide["accuracy"] <= wide["accuracy_high"]).all()
    assert evaluate.wilson_interval(11, 11)[0] == pytest.approx(0.741, abs=1e-3)


def test_a_label_that_is_absent_or_constant_is_refused(cohort):
    for name, message in (("age", "no label column 'age'"), ("site", "one class only")):
        cohort.samples["site"] = "here"
        settings = resolve("evaluate-cytometry", {"phenotypes": [name]}, "test")
        with pytest.raises(Refusal, match=message):
            list(evaluate._class_tasks(np.zeros((16, 1)), cohort, settings, 0, True))
