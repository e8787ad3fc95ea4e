"""Expression: reading, preparing, evaluating."""

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from popflow.evaluate.expression import evaluate_expression
from popflow.inputs.expression import add_labels, check_source, describe, read_expression
from popflow.inputs.settings import resolve
from popflow.inputs.sheets import read_units
from popflow.models.urlost.embedding import fit_split
from popflow.prepare.expression import (
    kept_genes,
    model_input,
    prepare_expression,
    prepare_file,
    scan,
    state_of,
)
from popflow.prepare.rows import rows_of
from popflow.runtime.refusal import Refusal
from popflow.simulate.expression import simulate_expression
from tests.unit.test_urlost import tiny

SETTINGS = resolve("prepare-expression", {}, "test")


@pytest.fixture
def counts(tmp_path):
    path = tmp_path / "counts.h5ad"
    size = {"samples": 90, "modules": 12, "genes_per_module": 8, "classes": 3, "effect": 2.0}
    simulate_expression(resolve("simulate-expression", size, "test"), path)
    return path


def test_counts_become_log_values_of_a_fixed_depth(counts):
    prepared, report = prepare_expression(read_expression(counts), SETTINGS)
    whole = prepare_expression(read_expression(counts), SETTINGS | {"min_detected": 0, "n_top": 0})
    depth = np.expm1(whole[0].layers["lognorm"]).sum(1)
    assert depth == pytest.approx(10_000, rel=0.02)
    for item in ("samples", "genes"):
        count = report[report["item"] == item].set_index("kind")["count"]
        assert count["read"] == count["kept"] + count["dropped"]


def test_statistics_come_from_training_rows_only(counts):
    adata = read_expression(counts)
    prepared, _ = prepare_expression(adata, SETTINGS)
    for split in range(2):
        role = prepared.obs[f"split_{split}"].to_numpy()
        x = model_input(prepared, split)
        assert x[role == "train"].mean(0) == pytest.approx(0, abs=0.05)
        changed = adata.copy()
        rows = np.flatnonzero(role == "test")
        changed.X[rows] = changed.X[rows][:, ::-1] * 3
        again, _ = prepare_expression(changed, SETTINGS)
        assert kept_genes(again, split) == kept_genes(prepared, split)
        mean = [
            frame.var.loc[kept_genes(prepared, split), f"mean_{split}"]
            for frame in (prepared, again)
        ]
        assert mean[0].to_numpy() == pytest.approx(mean[1].to_numpy())


def test_groups_stay_on_one_side(counts):
    adata = read_expression(counts)
    adata.obs["patient"] = [f"p{i // 3}" for i in range(adata.n_obs)]
    prepared, _ = prepare_expression(adata, SETTINGS | {"group": "patient"})
    for split in range(5):
        assert prepared.obs.groupby("group")[f"split_{split}"].nunique().max() == 1


def test_dense_and_sparse_are_prepared_alike(counts):
    adata = read_expression(counts)
    dense, _ = prepare_expression(adata, SETTINGS)
    adata.X = sp.csc_matrix(adata.X)
    sparse, _ = prepare_expression(adata, SETTINGS)
    assert np.array_equal(dense.X, sparse.X)


def test_empty_samples_are_dropped_and_counted(counts):
    adata = read_expression(counts)
    adata.X[4] = 0
    prepared, report = prepare_expression(adata, SETTINGS)
    assert prepared.n_obs == 89 and "s4" not in prepared.obs_names
    dropped = report[(report["item"] == "samples") & (report["kind"] == "dropped")]
    assert dropped["count"].item() == 1


@pytest.mark.parametrize(
    "x, state",
    [
        (np.array([[0, 3.0], [1, 200]]), "counts"),
        (np.array([[0, 3.5], [1, 20.1]]), "log"),
        (np.array([[0, 3.5], [1, 2000.1]]), "normalised"),
        (np.array([[-1, 3.5], [1, 2]]), "scaled"),
    ],
)
def test_value_state_is_told_from_values(x, state):
    for values in (x, sp.csr_matrix(x)):
        rows = rows_of(anndata.AnnData(values))
        assert state_of(rows, scan(rows), state)[0] == state


def test_scaled_values_and_contradictions_are_refused(counts):
    adata = read_expression(counts)
    with pytest.raises(Refusal, match="whole numbers up to .*: counts, not log"):
        prepare_expression(adata, SETTINGS | {"value_state": "log"})
    adata.X = adata.X - adata.X.mean(0)
    with pytest.raises(Refusal, match="scaled over all samples"):
        prepare_expression(adata, SETTINGS)
    adata.X[0, 0] = np.nan
    with pytest.raises(Refusal, match="1 values are NaN"):
        prepare_expression(adata, SETTINGS)


def test_raw_values_are_preferred_to_scaled_ones(counts):
    adata = read_expression(counts)
    adata.X = np.log1p(adata.X)
    adata.raw = adata
    adata.X = (adata.X - adata.X.mean(0)) / (adata.X.std(0) + 1)
    _, report = prepare_expression(adata, SETTINGS)
    assert report["reason"][0].startswith("raw.X")


def test_labels_are_checked(counts):
    adata = read_expression(counts)
    with pytest.raises(Refusal, match="no column 'tissue'"):
        prepare_expression(adata, SETTINGS | {"label": "tissue"})
    adata.obs["label"] = "same"
    with pytest.raises(Refusal, match="holds one class"):
        prepare_expression(adata, SETTINGS)


def test_tables_are_turned_by_names_never_by_shape(tmp_path):
    frame = pd.DataFrame(
        np.arange(12).reshape(3, 4),
        index=["ENSG00000000001", "ENSG00000000002", "ENSG00000000003"],
        columns=["AAACCTGAGCAT", "AAACCTGAGCAA", "AAACCTGAGCAC", "AAACCTGAGCAG"],
    )
    frame.to_csv(tmp_path / "genes_in_rows.csv.gz")
    frame.T.to_csv(tmp_path / "samples_in_rows.tsv", sep="\t")
    for name in ("genes_in_rows.csv.gz", "samples_in_rows.tsv"):
        adata = read_expression(tmp_path / name)
        assert adata.shape == (4, 3) and adata.X[1, 2] == 9
    plain = frame.set_axis(list("abc")).set_axis(list("wxyz"), axis=1)
    plain.to_csv(tmp_path / "plain.csv")
    with pytest.raises(Refusal, match="the names do not tell genes from samples"):
        read_expression(tmp_path / "plain.csv")
    assert read_expression(tmp_path / "plain.csv", "genes_in_rows").shape == (4, 3)


@pytest.mark.parametrize(
    "write, message",
    [
        (lambda p: p.write_bytes(b""), "cannot be read"),
        (lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n" + b"0" * 100), "cannot be read"),
        (lambda p: anndata.AnnData(obs=pd.DataFrame(index=["a"])).write_h5ad(p), "no matrix X"),
        (lambda p: p.mkdir(), "no matrix.mtx"),
    ],
)
def test_broken_files_are_refused(tmp_path, write, message):
    path = tmp_path / "broken.h5ad"
    write(path)
    with pytest.raises(Refusal, match=message):
        read_expression(path)


def test_repeated_and_mangled_names_are_refused(tmp_path):
    for names, message in ((["g1", "g1"], "more than once"), (["2-Sep", "g1"], "changed: 2-Sep")):
        adata = anndata.AnnData(np.ones((3, 2), np.float32), var=pd.DataFrame(index=names))
        adata.write_h5ad(tmp_path / "names.h5ad")
        with pytest.raises(Refusal, match=message):
            read_expression(tmp_path / "names.h5ad")


def test_check_reads_no_matrix_and_finds_the_mistakes(counts, tmp_path):
    row = {"dataset": "mine", "source": counts}
    check_source(row, [], SETTINGS)
    with pytest.raises(Refusal, match="no column 'tissue'"):
        check_source(row, [], SETTINGS | {"label": "tissue"})
    anndata.AnnData(obs=pd.DataFrame({"label": ["a", "b"]})).write_h5ad(tmp_path / "empty.h5ad")
    with pytest.raises(Refusal, match="no matrix X"):
        check_source({"dataset": "mine", "source": tmp_path / "empty.h5ad"}, [], SETTINGS)


def test_describe_tells_shape_means_and_labels(counts):
    told = describe(counts).keys()
    adata = read_expression(counts)
    assert told["shape"] == list(adata.shape) and told["names"] == adata.var_names.tolist()
    assert told["raw_mean"] == pytest.approx(adata.X.mean(0).tolist(), rel=1e-5)
    assert told["labels"]["label"] == {"class0": 30, "class1": 30, "class2": 30}


def test_real_10x_and_h5ad_files_are_read(shared_data):
    folder = shared_data / "gene_expression"
    old = folder / "10x_formats" / "1.2.0" / "filtered_gene_bc_matrices" / "hg19_chr21"
    assert read_expression(old).shape == (12, 343)
    new = read_expression(folder / "10x_formats" / "3.0.0" / "filtered_feature_bc_matrix.h5")
    assert new.X.sum() > 0 and new.n_obs == 1107
    pbmc = read_expression(folder / "pbmc68k_reduced" / "10x_pbmc68k_reduced.h5ad")
    assert pbmc.shape == (700, 765) and pbmc.X.mean() == pytest.approx(-4.55e-4, abs=1e-6)


def test_evaluation_holds_every_method_on_the_same_rows(counts):
    prepared, _ = prepare_expression(read_expression(counts), SETTINGS)
    embeddings = [
        fit_split(prepared, tiny(epochs=0), seed, variant="untrained")[1] for seed in (0, 1)
    ]
    embeddings += [fit_split(prepared, tiny(), seed)[1] for seed in (0, 1)]
    options = resolve("evaluate-expression", {}, "test")
    table, predictions = evaluate_expression("mine", prepared, embeddings, options, 5)
    columns = ["dataset", "method", "variant", "seed", "fold", "task", "metric", "value", "n"]
    assert list(table.columns) == columns and table["value"].between(0, 1).all()
    label = table[(table["task"] == "label") & (table["metric"] == "accuracy")]
    assert set(label["method"]) == {"urlost", "raw", "pca", "majority class", "shuffled labels"}
    score = label.groupby("method")["value"].mean()
    assert score["raw"] > 0.8 and score["shuffled labels"] < 0.7
    truth = predictions.groupby(["method", "variant", "seed"])["sample"].apply(tuple)
    assert truth.groupby("seed").nunique().eq(1).all()


def plain_table(folder, rows=40):
    x = np.random.default_rng(0).poisson(3.0, (rows, 8))
    frame = pd.DataFrame(x, [f"GSM{i}" for i in range(rows)], [f"ENSG{i:011d}" for i in range(8)])
    frame.to_csv(folder / "table.csv")
    lines = [f"GSM{i}\t{'ab'[i % 2]}\tp{i // 4}" for i in range(rows)]
    (folder / "labels.tsv").write_text("sample\tlabel\tpatient\n" + "\n".join(lines) + "\n")
    return {"dataset": "d", "source": folder / "table.csv", "sheet": folder / "labels.tsv"}


def test_a_table_gets_its_labels_from_the_samples_sheet(tmp_path):
    row = plain_table(tmp_path) | {"modality": "expression"}
    units = read_units(row)
    check_source(row, units, SETTINGS | {"group": "patient"})
    adata = read_expression(row["source"])
    add_labels(adata, units, "labels.tsv")
    changed = SETTINGS | {"group": "patient", "min_detected": 0}
    prepared, _ = prepare_expression(adata, changed)
    assert set(prepared.obs["label"]) == {"a", "b"} and prepared.obs["group"].nunique() == 10
    with pytest.raises(Refusal, match="no column 'label'(.|\n)*samples sheet"):
        check_source(row, [], SETTINGS)
    with pytest.raises(Refusal, match="none of its samples"):
        add_labels(adata, [{"sample": "other", "label": "a"}], "labels.tsv")


def test_groups_without_a_value_and_too_few_groups_are_refused(tmp_path):
    row = plain_table(tmp_path) | {"modality": "expression"}
    units = read_units(row)
    with pytest.raises(Refusal, match="10 groups for 11 folds"):
        check_source(row, units, SETTINGS | {"group": "patient", "folds": 11})
    del units[3]["patient"]
    adata = read_expression(row["source"])
    add_labels(adata, units, "labels.tsv")
    with pytest.raises(Refusal, match="1 samples without a value under 'patient'"):
        prepare_expression(adata, SETTINGS | {"group": "patient"})


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x: np.zeros_like(x), "no sample with any expression"),
        (lambda x: np.ones_like(x), "no gene that varies"),
        (lambda x: np.where(np.arange(len(x))[:, None] == 4, np.nan, x), "row 5, gene"),
    ],
)
def test_matrices_without_use_are_refused_by_name(counts, change, message):
    adata = read_expression(counts)
    adata.X = change(adata.X.toarray() if hasattr(adata.X, "toarray") else adata.X)
    adata.layers.clear()
    with pytest.raises(Refusal, match=message) as refusal:
        prepare_expression(adata, SETTINGS)
    assert "counts.h5ad" in refusal.value.where


def test_a_matrix_without_samples_is_refused(tmp_path):
    anndata.AnnData(np.ones((0, 3), np.float32)).write_h5ad(tmp_path / "e.h5ad")
    with pytest.raises(Refusal, match="0 samples and 3 genes"):
        describe(tmp_path / "e.h5ad")


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_blocks_and_files_on_disk_give_what_memory_gives(tmp_path, counts, kind, monkeypatch):
    adata = read_expression(counts)
    labels = adata.obs[["label"]].copy()
    values = adata.X.toarray() if sp.issparse(adata.X) else np.asarray(adata.X)
    genes = pd.DataFrame(index=adata.var_names)
    plain = anndata.AnnData(kind(values), obs=labels, var=genes)
    plain.write_h5ad(tmp_path / "plain.h5ad")
    options = SETTINGS | {"n_top": 40}
    expected, report = prepare_expression(read_expression(tmp_path / "plain.h5ad"), options)
    monkeypatch.setattr("popflow.prepare.rows.BLOCK_ENTRIES", 1000)
    monkeypatch.setattr("popflow.prepare.expression.LARGEST_IN_MEMORY", 0)
    told = prepare_file(tmp_path / "plain.h5ad", options, tmp_path / "out.h5ad")
    found = anndata.read_h5ad(tmp_path / "out.h5ad")
    assert found.var_names.tolist() == expected.var_names.tolist()
    assert found.obs["split_1"].tolist() == expected.obs["split_1"].tolist()
    assert found.X == pytest.approx(expected.X, abs=1e-5)
    assert found.layers["lognorm"] == pytest.approx(expected.layers["lognorm"], abs=1e-6)
    assert told["count"].tolist() == report["count"].tolist()
