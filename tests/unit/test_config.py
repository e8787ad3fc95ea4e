"""Configuration, sheets and presets: defaults, and one clear message for every mistake."""

import shutil

import pytest
import yaml

from popflow.inputs import packages
from popflow.inputs.config import MODALITY_OF, preset, read_yaml, resolve_config
from popflow.inputs.settings import SCHEMAS, defaults, resolve, schema
from popflow.inputs.sheets import files_of, read_datasets, read_sheet, read_units
from popflow.runtime.refusal import Refusal, Refusals


def rewrite(path, change):
    """Change a YAML file."""
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content))


def told(folder):
    """Resolve the configuration of a folder; give what it says."""
    with pytest.raises((Refusal, Refusals)) as refused:
        resolve_config(read_yaml(folder / "config.yaml"), folder, "config.yaml")
    return str(refused.value)


def objects(rules, path=""):
    """Walk the objects of a schema that name their keys."""
    if rules.get("type") == "object" and "properties" in rules:
        yield path, rules
        for key, rule in rules["properties"].items():
            yield from objects(rule, f"{path}.{key}")
    if isinstance(rules.get("items"), dict):
        yield from objects(rules["items"], f"{path}[]")


def test_the_default_configuration_resolves(root):
    config = resolve_config(read_yaml(root / "config" / "config.yaml"), root / "config")
    assert {row["modality"] for row in config.datasets.values()} == set(MODALITY_OF.values())
    assert all(
        len({f["seed"] for f in config.fits if f["dataset"] == d}) >= 3 for d in config.datasets
    )
    assert set(config.stages["prepare"]) == set(config.datasets)


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.schema.yaml")), ids=lambda p: p.stem)
def test_schemas_are_closed_and_described(path):
    rules = yaml.safe_load(path.read_text())
    sheet = path.name.startswith(("sheet-", "datasets"))
    for place, part in objects(rules):
        if not sheet:
            assert part.get("additionalProperties") is False or place == "", f"{place} is open"
        for key, rule in part["properties"].items():
            nested = rule.get("type") == "object" and "properties" in rule
            assert nested or rule.get("description"), f"{place}.{key} has no description"
            if not sheet and not nested and key not in part.get("required", []):
                assert "default" in rule or key == "fits", f"{place}.{key} has no default"


@pytest.mark.parametrize("model", sorted(MODALITY_OF))
def test_every_preset_and_variant_resolves(root, model):
    book = yaml.safe_load((root / "config" / "presets" / f"{model}.yaml").read_text())
    assert {"small", "paper"} <= set(book["presets"]) and "default" in book["variants"]
    for name in book["presets"]:
        for variant in book["variants"]:
            settings = preset(model, name, variant)
            assert settings == resolve(f"preset-{model}", settings, "again")


def test_nested_defaults_are_filled():
    rules = schema("preset-urlost")
    assert (
        defaults(rules, {})["affinity"]["neighbours"]
        == defaults(rules, {"affinity": {}})["affinity"]["neighbours"]
    )


@pytest.mark.parametrize(
    "change, messages",
    [
        (lambda c: c.update(devise="cpu"), ["unknown key 'devise'", "rename 'devise' -> 'device'"]),
        (lambda c: c.update(device="gpu"), ["key 'device': found 'gpu'", "one of auto, cpu, cuda"]),
        (
            lambda c: c["fits"][0].update(sedes=[1]),
            ["key 'fits.0': unknown key 'sedes'", "'sedes' -> 'seeds'"],
        ),
        (
            lambda c: c["fits"][0].update(dataset="nobody"),
            ["key 'fits.0': unknown dataset 'nobody'", "one of cohort"],
        ),
        (
            lambda c: c["fits"][0].update(model="popt"),
            ["popt is for intracranial, and cohort is cytometry", "accepted: maestro"],
        ),
        (lambda c: c["fits"][0].update(variants=["best"]), ["no 'best'", "one of default"]),
        (lambda c: c["fits"][0].update(preset="huge"), ["no 'huge'", "paper, small"]),
        (lambda c: c["fits"].append(dict(c["fits"][0])), ["stands there twice"]),
        (
            lambda c: c["prepare"].update(pbmc68k={"lable": "x"}),
            ["key 'prepare.pbmc68k': unknown key 'lable'", "'lable' -> 'label'"],
        ),
        (lambda c: c["prepare"].update(other={}), ["key 'prepare': unknown dataset 'other'"]),
        (
            lambda c: c.update(simulate={"pbmc68k": {}}),
            ["pbmc68k is not simulated", "remove the block"],
        ),
        (lambda c: c["fits"][0].update(seeds=[-1]), ["found -1", "at least 0"]),
    ],
)
def test_mistakes_in_config_yaml_are_told(config_folder, change, messages):
    rewrite(config_folder / "config.yaml", change)
    text = told(config_folder)
    for message in messages:
        assert message in text


def test_every_mistake_is_told_at_once(config_folder):
    def change(config):
        config["fits"][0]["dataset"] = "nobody"
        config["fits"][1]["variants"] = ["best"]
        config["prepare"]["pbmc68k"] = {"clip": "ten"}

    rewrite(config_folder / "config.yaml", change)
    text = told(config_folder)
    assert "nobody" in text and "'best'" in text and "found 'ten'" in text


def sheet_with(folder, *rows):
    lines = ["dataset\tmodality\tsource\tsheet", *("\t".join(row) for row in rows)]
    path = folder / "datasets.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "row, message",
    [
        (("a b", "expression", "x.h5ad", ""), "row 2, key 'dataset': found 'a b'"),
        (("mine", "expresion", "x.h5ad", ""), "write expression"),
        (("mine", "expression", "x.h5ad", ""), "row 2, column 'source'"),
        (("mine", "expression", "package:nothing/x", ""), "the package nothing is not installed"),
        (("mine", "expression", "package:scanpy/x", ""), "carries no x"),
    ],
)
def test_mistakes_in_the_datasets_sheet_are_told(tmp_path, row, message):
    with pytest.raises((Refusal, Refusals)) as refused:
        read_datasets(sheet_with(tmp_path, row))
    assert message in str(refused.value)


def test_a_repeated_id_is_told_with_both_rows(tmp_path):
    row = ("mine", "expression", "simulated", "")
    with pytest.raises(Refusals, match="row 3, column 'dataset': the id 'mine' stands in row 2"):
        read_datasets(sheet_with(tmp_path, row, row))


def test_sheets_without_a_file_column_or_rows_are_told(tmp_path):
    with pytest.raises(Refusal, match="no such file"):
        read_sheet(tmp_path / "nothing.tsv", "sheet-cytometry")
    (tmp_path / "wide.tsv").write_text("sample\tfile\ns1\tx.fcs\n")
    with pytest.raises(Refusal, match=r"no column path \(columns: sample, file\)"):
        read_sheet(tmp_path / "wide.tsv", "sheet-cytometry")
    (tmp_path / "short.tsv").write_text("sample\tpath\tsubject\n\n")
    with pytest.raises((Refusal, Refusals), match="no rows|no column"):
        read_sheet(tmp_path / "short.tsv", "sheet-cytometry")


def test_paths_are_absolute_or_relative_to_the_sheet(tmp_path, root):
    shutil.copy(
        packages.locate("package:scanpy/scanpy/datasets/10x_pbmc68k_reduced.h5ad"), tmp_path
    )
    name = "10x_pbmc68k_reduced.h5ad"
    sheet = sheet_with(
        tmp_path,
        ("one", "expression", name, ""),
        ("two", "expression", str(tmp_path / name), ""),
    )
    datasets = read_datasets(sheet)
    assert datasets["one"]["source"] == datasets["two"]["source"] == tmp_path / name
    assert files_of(datasets["one"]) == [str(tmp_path / name)]
    assert read_units(datasets["one"]) == []


def test_a_modality_that_needs_a_sheet_says_so(tmp_path):
    (tmp_path / "fcs").mkdir()
    datasets = read_datasets(sheet_with(tmp_path, ("mine", "cytometry", "fcs", "")))
    with pytest.raises(Refusal, match="popflow init"):
        read_units(datasets["mine"])


def test_commas_and_byte_order_marks_are_read(tmp_path):
    path = tmp_path / "datasets.csv"
    path.write_bytes(b"\xef\xbb\xbfdataset,modality,source\nmine, expression ,simulated\n")
    assert read_datasets(path)["mine"]["modality"] == "expression"


def test_yaml_is_read_safely(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("!!python/object/apply:os.system ['true']")
    with pytest.raises(Refusal, match="not YAML"):
        read_yaml(path)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"- a\n- b\n", "it holds a list"),
        (b"hello\n", "it holds 'hello'"),
        ("fits: []  # Größe\n".encode("latin-1"), "is no UTF-8"),
        ("fits: []\n".encode("utf-16"), "is no UTF-8"),
        (b"prepare: {a: {}}\nprepare: {b: {}}\n", "the key 'prepare' stands there twice"),
        (b"prepare: {a: {folds: 2, folds: 3}}\n", "the key 'folds' stands there twice"),
        (b"a: !!python/object:os.system {}\n", "not YAML"),
    ],
)
def test_text_that_is_no_configuration_is_refused(tmp_path, content, message):
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(Refusal, match=message):
        read_yaml(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    "content",
    ["- a\n", "presets: [small]\n", "presets: {small: 3}\nvariants: {default: {}}\n",
     "presets: {small: {}}\nvariants: {default: abc}\n"],
)  # fmt: skip
def test_presets_of_the_wrong_shape_are_refused(tmp_path, content):
    (tmp_path / "urlost.yaml").write_text(content)
    with pytest.raises(Refusal, match="keys with values"):
        preset("urlost", folder=tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(value):
    with pytest.raises(Refusals, match="'target_sum'.*\n  accepted: a finite number"):
        resolve("prepare-expression", {"target_sum": value}, "test")


SHEET = "dataset\tmodality\tsource\n"


@pytest.mark.parametrize(
    "content, message",
    [
        ((SHEET + "a\texpression\tgrün\n").encode("latin-1"), "no text in UTF-8"),
        ((SHEET + "a\texpression\tx\n").encode("utf-16"), "no text in UTF-8"),
        (b"PK\x03\x04\x14\x00\x06\x00\xff\xfe", "no text in UTF-8"),
        ((SHEET + "a\texpression\tx\tmore\n").encode(), "row 2: 4 cells under 3 columns"),
        ((SHEET + 'a\texpression\t"x\nb\texpression\ty\n').encode(), "an open quote"),
        (b"dataset\tdataset\tmodality\tsource\na\tb\tc\td\n", "column dataset stands there twice"),
        ((SHEET + "\n\n\na\texpression\n").encode(), "row 5"),
    ],
)
def test_sheets_that_are_no_tables_are_refused(tmp_path, content, message):
    (tmp_path / "datasets.tsv").write_bytes(content)
    with pytest.raises((Refusal, Refusals), match=message):
        read_datasets(tmp_path / "datasets.tsv")


def cytometry_sheet(folder, header, *rows):
    for name in ("a.fcs", "b.fcs", "types.tsv", "panel.tsv"):
        (folder / name).write_text("x")
    lines = ["\t".join(cells) for cells in (header, *rows)]
    (folder / "samples.tsv").write_text("\n".join(lines) + "\n")
    return {"dataset": "d", "modality": "cytometry", "source": folder} | {
        "sheet": folder / "samples.tsv"
    }


def test_every_file_that_is_read_is_watched(tmp_path):
    row = cytometry_sheet(tmp_path, ["sample", "path", "cell_types"], ["s", "a.fcs", "types.tsv"])
    names = {path.rsplit("/", 1)[1] for path in files_of(row)}
    assert names == {"samples.tsv", "panel.tsv", "a.fcs", "types.tsv"}


def test_one_file_under_two_samples_is_refused(tmp_path):
    row = cytometry_sheet(tmp_path, ["sample", "path"], ["s", "a.fcs"], ["t", "a.fcs"])
    with pytest.raises(Refusals, match="is that of 's' already"):
        read_units(row)


@pytest.mark.parametrize("name", [".", "..", ".hidden"])
def test_ids_that_are_paths_are_refused(tmp_path, name):
    row = cytometry_sheet(tmp_path, ["sample", "path"], [name, "a.fcs"])
    with pytest.raises(Refusals, match="text that matches"):
        read_units(row)


@pytest.mark.parametrize("column", ["Path", "Subject", "cell types", "Data-set"])
def test_columns_that_are_misspelt_are_refused(tmp_path, column):
    row = cytometry_sheet(tmp_path, ["sample", "path", column], ["s", "a.fcs", "x"])
    with pytest.raises(Refusal, match="rename it to"):
        read_units(row)
