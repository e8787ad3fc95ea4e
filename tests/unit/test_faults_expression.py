"""Public faults of reading and normalising expression data, one test per fault."""

import gzip

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse

from popflow.inputs.expression import read_expression
from popflow.inputs.registry import describe
from popflow.inputs.settings import resolve
from popflow.prepare.expression import prepare_expression
from popflow.prepare.rows import rows_of
from popflow.runtime.files import write_h5ad
from popflow.runtime.refusal import Refusal


def settings(**changes):
    changes = {"folds": 2, "min_class": 2, "min_detected": 0.0, "n_top": 0} | changes
    return resolve("prepare-expression", changes, "test")


def counts(rows=40, genes=6, seed=0):
    x = np.random.default_rng(seed).poisson(3.0, (rows, genes)).astype(np.float32)
    obs = pd.DataFrame({"label": ["a", "b"] * (rows // 2)}, index=[f"c{i}" for i in range(rows)])
    var = pd.DataFrame(index=[f"ENSG{i:011d}" for i in range(genes)])
    return anndata.AnnData(x, obs=obs, var=var)


def folder_10x(path, features, values, prefix="", zipped=False):
    path.mkdir()
    scipy.io.mmwrite(str(path / f"{prefix}matrix.mtx"), scipy.sparse.coo_matrix(values))
    lines = ["\t".join(row) for row in features]
    (path / f"{prefix}features.tsv").write_text("\n".join(lines) + "\n")
    cells = [f"CELL{i}-1" for i in range(values.shape[1])]
    (path / f"{prefix}barcodes.tsv").write_text("\n".join(cells) + "\n")
    for file in list(path.iterdir()) if zipped else []:
        (path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    return path


def matrix_v2(file, genome, values, names):
    """Write a genome's group as Cell Ranger 2 does; values (genes, cells)."""
    csc = scipy.sparse.csc_matrix(values)
    group = file.create_group(genome)
    for name, data in (("data", csc.data), ("indices", csc.indices), ("indptr", csc.indptr)):
        group[name] = data
    group["shape"] = np.array(values.shape)
    group["barcodes"] = np.array([f"c{i}-1".encode() for i in range(values.shape[1])])
    group["genes"] = np.array([f"{n}".encode() for n in names])
    group["gene_names"] = np.array([f"sym{n}".encode() for n in names])


def test_exp_01_copies_of_symbols_are_indexed_by_stable_id(tmp_path):
    features = [("ENSG00000000001", "TBCE", "Gene Expression")] * 1
    features += [("ENSG00000000002", "TBCE", "Gene Expression")]
    read = read_expression(folder_10x(tmp_path / "f", features, np.array([[1, 2, 0], [0, 3, 1]])))
    assert read.var_names.tolist() == ["ENSG00000000001", "ENSG00000000002"]
    assert read.var["gene_symbol"].tolist() == ["TBCE", "TBCE"]


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("prefix, zipped", [("", False), ("GSM1_s1_", True)])
def test_exp_02_feature_files_of_one_to_three_columns(tmp_path, columns, prefix, zipped):
    features = [(f"ENSG0000000000{i}", f"G{i}", "Gene Expression")[:columns] for i in range(3)]
    values = np.arange(12).reshape(3, 4)
    read = read_expression(folder_10x(tmp_path / "f", features, values, prefix, zipped))
    assert np.array_equal(read.X.toarray(), values.T)
    missing = [note for note in read.uns["reading"] if "has no column" in note]
    assert len(missing) == 3 - columns


def test_exp_03_numeric_ids_stay_text(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("id,0123,4567\n001,1,2\n002,3,4\n")
    read = read_expression(path, "samples_in_rows")
    assert read.obs_names.tolist() == ["001", "002"] and read.var_names.tolist() == ["0123", "4567"]


def test_exp_04_two_genomes_are_asked_for_and_differ(tmp_path):
    path = tmp_path / "two.h5"
    with h5py.File(path, "w") as file:
        matrix_v2(file, "hg19", np.array([[1, 0], [0, 2]]), ["h1", "h2"])
        matrix_v2(file, "mm10", np.array([[5, 6], [7, 8], [9, 9]]), ["m1", "m2", "m3"])
    with pytest.raises(Refusal, match="2 genomes\n  accepted: one of hg19, mm10"):
        read_expression(path)
    assert read_expression(path, genome="hg19").X.sum() == 3
    assert read_expression(path, genome="mm10").X.sum() == 44
    with pytest.raises(Refusal, match="no genome 'rn6'"):
        read_expression(path, genome="rn6")


def test_exp_04_a_molecule_file_is_named_as_such(tmp_path):
    with h5py.File(tmp_path / "molecule_info.h5", "w") as file:
        file["barcode_idx"], file["count"] = np.arange(3), np.arange(3)
    with pytest.raises(Refusal, match="molecule file"):
        read_expression(tmp_path / "molecule_info.h5")


def test_exp_05_antibodies_are_left_out_and_counted(tmp_path):
    features = [("ENSG00000000001", "A", "Gene Expression"), ("CD3", "CD3", "Antibody Capture")]
    read = read_expression(folder_10x(tmp_path / "f", features, np.array([[1, 2], [90, 80]])))
    assert read.var_names.tolist() == ["ENSG00000000001"]
    assert "1 features of type Antibody Capture left out" in read.uns["reading"]


def test_exp_06_variable_genes_are_not_chosen_from_the_wrong_state():
    with pytest.raises(Refusal, match="whole numbers up to .*: counts, not log"):
        prepare_expression(counts(), settings(value_state="log", n_top=3))


def test_exp_07_a_nearly_empty_gene_does_not_break_the_choice():
    data = counts(genes=8)
    data.X[:, 0] = 0
    data.X[0, 0] = 1
    prepared, _ = prepare_expression(data, settings(n_top=4))
    assert prepared.n_vars >= 4 and np.isfinite(prepared.layers["lognorm"]).all()


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_matrix, scipy.sparse.csc_matrix])
def test_exp_08_dense_and_sparse_agree_and_empty_samples_are_listed(kind):
    data, plain = counts(), counts()
    data.X[3] = plain.X[3] = 0
    data.X = kind(data.X)
    prepared, report = prepare_expression(data, settings())
    expected, _ = prepare_expression(plain, settings())
    assert np.array_equal(prepared.X, expected.X) and prepared.n_obs == 39
    empty = report[(report["reason"] == "no expression at all") & (report["kind"] == "dropped")]
    assert empty["count"].tolist() == [1]


def test_exp_09_the_source_is_not_changed():
    data = counts()
    data.layers["counts"], data.raw = data.X.copy(), data
    before = data.X.copy()
    prepare_expression(data, settings())
    assert np.array_equal(data.X, before) and np.array_equal(data.layers["counts"], before)
    assert np.array_equal(data.raw.X, before)


def test_exp_10_log_values_are_not_logged_again(tmp_path):
    data = counts()
    data.X = np.log1p(data.X / data.X.sum(1, keepdims=True) * 1e4)
    data.uns["log1p"] = {"base": None}
    data.write_h5ad(tmp_path / "log.h5ad")
    prepared, _ = prepare_expression(read_expression(tmp_path / "log.h5ad"), settings())
    assert prepared.layers["lognorm"] == pytest.approx(data.X, rel=1e-6)


def test_exp_10_whole_numbers_that_claim_to_be_logged_are_refused():
    data = counts()
    data.uns["log1p"] = {}
    with pytest.raises(Refusal, match="says that X holds logarithms"):
        prepare_expression(data, settings())
    prepare_expression(data, settings(value_state="counts"))


def test_exp_11_orientation_comes_from_names_or_is_refused(tmp_path):
    frame = pd.DataFrame(counts(6, 6).X, columns=counts(6, 6).var_names)
    frame.index = [f"GSM{i}" for i in range(6)]
    frame.to_csv(tmp_path / "a.csv")
    frame.T.to_csv(tmp_path / "b.csv")
    assert read_expression(tmp_path / "a.csv").var_names[0].startswith("ENSG")
    assert np.array_equal(
        read_expression(tmp_path / "a.csv").X, read_expression(tmp_path / "b.csv").X
    )
    frame.columns, frame.index = list("abcdef"), list("uvwxyz")
    frame.to_csv(tmp_path / "c.csv")
    with pytest.raises(Refusal, match="do not tell genes from samples"):
        read_expression(tmp_path / "c.csv")


def test_exp_12_old_categories_come_back_as_text(shared_data):
    old = read_expression(shared_data / "gene_expression/pbmc68k_reduced/10x_pbmc68k_reduced.h5ad")
    assert "Dendritic" in set(old.obs["bulk_labels"].astype(str))


def test_exp_13_a_newer_encoding_is_named(tmp_path):
    counts().write_h5ad(tmp_path / "new.h5ad")
    with h5py.File(tmp_path / "new.h5ad", "a") as file:
        file.attrs["encoding-version"] = "9.0.0"
        file["obs"].attrs["encoding-version"] = "9.0.0"
    with pytest.raises(Refusal, match=f"9.0.0.*\n.*anndata {anndata.__version__}"):
        read_expression(tmp_path / "new.h5ad")


def test_exp_14_overflowed_row_pointers_are_refused(tmp_path):
    data = counts()
    data.X = scipy.sparse.csr_matrix(data.X)
    data.write_h5ad(tmp_path / "x.h5ad")
    with h5py.File(tmp_path / "x.h5ad", "a") as file:
        pointers = file["X/indptr"][:]
        pointers[-3:] = [-5, -3, -1]
        file["X/indptr"][:] = pointers
    with pytest.raises(Refusal, match="X/indptr falls"):
        read_expression(tmp_path / "x.h5ad")


def test_exp_15_mixed_missing_and_boolean_labels_are_written_as_text(tmp_path):
    data = counts()
    data.obs["label"] = pd.Series(["1", None, "True", "x"] * 10, index=data.obs_names, dtype=object)
    prepared, report = prepare_expression(data, settings())
    write_h5ad(prepared, tmp_path / "out.h5ad")
    back = anndata.read_h5ad(tmp_path / "out.h5ad")
    assert set(back.obs["label"].astype(str)) == {"1", "", "True", "x"}
    assert report.loc[report["kind"] == "kept without label", "count"].tolist() == [10]


def test_exp_16_the_order_of_genes_in_a_file_does_not_matter(tmp_path):
    data = counts()
    data.write_h5ad(tmp_path / "a.h5ad")
    data[:, ::-1].copy().write_h5ad(tmp_path / "b.h5ad")
    first, second = (
        prepare_expression(read_expression(tmp_path / f"{n}.h5ad"), settings())[0] for n in "ab"
    )
    order = [second.var_names.get_loc(name) for name in first.var_names]
    assert np.allclose(first.X, second.X[:, order])


def test_exp_17_cells_without_counts_are_dropped_before_normalising():
    data = counts()
    data.X[[0, 5]] = 0
    prepared, _ = prepare_expression(data, settings())
    assert "c0" not in prepared.obs_names and np.isfinite(prepared.X).all()


def test_exp_19_versions_move_to_a_column_and_par_y_stays_apart(tmp_path):
    data = counts(genes=3)
    data.var_names = ["ENSG00000002586.18", "ENSG00000002586.18_PAR_Y", "ENSG00000000003.10"]
    data.write_h5ad(tmp_path / "v.h5ad")
    read = read_expression(tmp_path / "v.h5ad")
    expected = ["ENSG00000002586", "ENSG00000002586.18_PAR_Y", "ENSG00000000003"]
    assert read.var_names.tolist() == expected
    assert read.var["gene_version"].tolist() == ["18", "", "10"]


@pytest.mark.parametrize("name", ["2-Sep", "1-Mar", "Dec-1", "2.31E+13"])
def test_exp_20_names_that_a_spreadsheet_changed_are_listed(tmp_path, name):
    data = counts(genes=3)
    data.var_names = [name, "TP53", "ACTB"]
    data.write_h5ad(tmp_path / "x.h5ad")
    with pytest.raises(Refusal, match="spreadsheet changed"):
        read_expression(tmp_path / "x.h5ad")


def test_repeated_genes_are_merged_when_told(tmp_path):
    data = counts(genes=3)
    data.var_names = ["A", "B", "A"]
    data.write_h5ad(tmp_path / "x.h5ad")
    with pytest.raises(Refusal, match="duplicates"):
        read_expression(tmp_path / "x.h5ad")
    summed = read_expression(tmp_path / "x.h5ad", duplicates="sum")
    assert summed.var_names.tolist() == ["A", "B"]
    assert np.array_equal(summed.X[:, 0], data.X[:, 0] + data.X[:, 2])
    mean = read_expression(tmp_path / "x.h5ad", duplicates="mean")
    assert np.allclose(mean.X[:, 0], (data.X[:, 0] + data.X[:, 2]) / 2)


def test_zarr_and_loom_give_what_h5ad_gives(tmp_path):
    data = counts()
    data.write_zarr(tmp_path / "x.zarr")
    with h5py.File(tmp_path / "x.loom", "w") as file:
        file["matrix"] = data.X.T
        file["row_attrs/Accession"] = np.array(data.var_names.tolist(), dtype="S")
        file["row_attrs/Gene"] = np.array([f"sym{i}" for i in range(data.n_vars)], dtype="S")
        file["col_attrs/CellID"] = np.array(data.obs_names.tolist(), dtype="S")
        file["col_attrs/label"] = np.array(data.obs["label"].tolist(), dtype="S")
    zarr, loom = read_expression(tmp_path / "x.zarr"), read_expression(tmp_path / "x.loom")
    assert np.array_equal(zarr.X, data.X) and np.array_equal(loom.X.toarray(), data.X)
    assert loom.var_names.tolist() == data.var_names.tolist()
    assert loom.var["gene_symbol"].tolist()[0] == "sym0"
    assert loom.obs["label"].tolist() == data.obs["label"].tolist()


@pytest.mark.parametrize("place, value", [(0, 6), (3, -1), (-1, 2**31 - 1)])
def test_indices_outside_of_the_matrix_are_refused(tmp_path, place, value):
    data = counts()
    data.X = scipy.sparse.csr_matrix(data.X)
    data.write_h5ad(tmp_path / "x.h5ad")
    with h5py.File(tmp_path / "x.h5ad", "a") as file:
        file["X/indices"][place] = value
    with pytest.raises(Refusal, match="indices from 0 to 5"):
        read_expression(tmp_path / "x.h5ad")
    with h5py.File(tmp_path / "two.h5", "w") as file:
        matrix_v2(file, "hg19", np.array([[1, 0], [0, 2], [3, 1]]), ["h1", "h2", "h3"])
        file["hg19/indices"][0] = value
    with pytest.raises(Refusal, match="indices from 0 to 2"):
        read_expression(tmp_path / "two.h5")


@pytest.mark.parametrize("name", ["tissue_positions.csv", "tissue_positions_list.csv"])
@pytest.mark.parametrize("header", [True, False])
def test_exp_18_places_of_spots_under_both_names(name, header, tmp_path):
    path = tmp_path / "filtered_feature_bc_matrix"
    folder_10x(path, [("ENSG01", "A"), ("ENSG02", "B")], np.arange(6).reshape(2, 3))
    (tmp_path / "spatial").mkdir()
    lines = [
        "CELL2-1,0,2,5,30,40",
        "CELL0-1,1,0,1,10,20",
        "CELL1-1,1,1,3,20,30",
        "CELL9-1,0,9,9,90,95",
    ]
    columns = "barcode,in_tissue,array_row,array_col,pxl_row_in_fullres,pxl_col_in_fullres"
    (tmp_path / "spatial" / name).write_text("\n".join([columns] * header + lines) + "\n")
    read = read_expression(path)
    assert read.obs["spatial_x"].tolist() == [20, 30, 40]
    assert read.obs["spatial_y"].tolist() == [10, 20, 30]
    assert read.obs["in_tissue"].tolist() == [1, 1, 0]
    assert "places of 3 spots" in read.uns["reading"][-1]
    (tmp_path / "spatial" / name).write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(Refusal, match="1 of 3 spots have no place"):
        read_expression(path)


def test_repeated_genes_merge_the_counts_and_not_their_logs(tmp_path):
    draw = np.random.default_rng(0)
    values = draw.poisson(3.0, (30, 4)).astype("float32")
    data = anndata.AnnData(np.log1p(values), var=pd.DataFrame(index=list("ABCA")))
    data.layers["counts"] = values
    data.write_h5ad(tmp_path / "a.h5ad")
    read = read_expression(tmp_path / "a.h5ad", duplicates="sum")
    merged = np.asarray(read.layers["counts"])[:, list(read.var_names).index("A")]
    assert np.array_equal(merged, values[:, 0] + values[:, 3])
    del data.layers["counts"]
    data.write_h5ad(tmp_path / "b.h5ad")
    with pytest.raises(Refusal, match="no counts"):
        read_expression(tmp_path / "b.h5ad", duplicates="sum")


@pytest.mark.parametrize("names", [["A", "A", "C"], ["A", "1-Mar", "C"]])
def test_names_in_raw_are_checked_like_those_of_x(names):
    raw = anndata.AnnData(counts(genes=3).X, var=pd.DataFrame(index=names))
    data = anndata.AnnData(raw.X[:, :2], obs=raw.obs, var=pd.DataFrame(index=["A", "B"]))
    data.raw = raw
    with pytest.raises(Refusal, match="more than once|spreadsheet"):
        rows_of(data)


def test_two_samples_in_a_10x_folder_are_refused(tmp_path):
    path = tmp_path / "f"
    features = [("ENSG01", "A"), ("ENSG02", "B")]
    folder_10x(path, features, np.arange(6).reshape(2, 3), "GSM1_")
    folder_10x(tmp_path / "g", features, np.arange(6).reshape(2, 3), "GSM2_")
    for file in (tmp_path / "g").iterdir():
        file.rename(path / file.name)
    with pytest.raises(Refusal, match="2 samples: GSM1_, GSM2_"):
        read_expression(path)


def test_h5ad_with_counts_in_a_layer_only(tmp_path):
    data = counts()
    data.layers["counts"], data.X = data.X.copy(), None
    data.write_h5ad(tmp_path / "a.h5ad")
    assert describe(tmp_path / "a.h5ad").raw_mean == pytest.approx(
        np.asarray(data.layers["counts"].mean(0)).ravel()
    )


@pytest.mark.parametrize("total", [1.0, 1000.0])
def test_rows_of_one_sum_are_normalised_and_not_logs(total):
    draw = np.random.default_rng(0)
    values = draw.gamma(1.0, 1.0, (40, 400))
    values *= total / values.sum(1, keepdims=True)
    data = anndata.AnnData(values, obs=pd.DataFrame({"label": ["a", "b"] * 20}))
    data.obs_names, data.var_names = data.obs_names.astype(str), [f"G{i}" for i in range(400)]
    _, report = prepare_expression(data, settings())
    assert report.loc[report["item"] == "genes", "reason"].iloc[0] == "normalised"
    _, report = prepare_expression(data, settings(value_state="log"))
    assert report.loc[report["item"] == "genes", "reason"].iloc[0] == "log"


@pytest.mark.parametrize("name", ["2021-09-02", "3/1/2023", "2023-03-01 00:00:00", "2-sept"])
def test_exp_20_dates_of_other_spreadsheets(tmp_path, name):
    frame = pd.DataFrame(np.ones((3, 3)), index=["s1", "s2", "s3"], columns=["A", name, "B"])
    frame.to_csv(tmp_path / "a.csv")
    with pytest.raises(Refusal, match="spreadsheet"):
        read_expression(tmp_path / "a.csv", "samples_in_rows")


@pytest.mark.parametrize("text", ["id,s1,s2\nA,1,2,\nB,3,4,\n", 'id\ts1\n"A\t1\nB\t2\nC"\t3\n'])
def test_tables_whose_cells_shift_are_refused(tmp_path, text):
    path = tmp_path / ("a.csv" if "," in text else "a.tsv")
    path.write_text(text)
    with pytest.raises(Refusal):
        read_expression(path, "genes_in_rows")
