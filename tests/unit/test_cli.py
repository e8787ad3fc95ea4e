"""The command line: inspect, init and check at their edges."""

import json
import os

import pandas as pd
import pytest

from tests.conftest import run
from tests.contracts.test_readers import fcs, h5ad, nwb_units, table


def popflow(*arguments):
    return run("popflow.cli", *map(str, arguments), timeout=60)


def test_inspect_prints_json_that_any_program_reads(tmp_path):
    frame = pd.read_csv(table(tmp_path), index_col=0)
    frame.iloc[0, 0] = None
    frame.to_csv(tmp_path / "m.csv")
    done = popflow("inspect", tmp_path / "m.csv", "--json")
    held = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"found {name}"))
    keys = {"modality", "format", "version", "shape", "names", "labels", "rate_hz", "units"}
    assert keys | {"raw_mean", "first_row", "warnings", "sheet_row"} <= set(held)
    assert held["shape"] == [12, 5] and held["first_row"][0] is None


def test_a_refusal_is_one_message_on_standard_error(tmp_path):
    (tmp_path / "x.fcs").write_text("no")
    done = popflow("inspect", tmp_path / "x.fcs", "--json")
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("accepted:") == 1
    assert "Traceback" not in done.stderr


def test_options_that_do_not_apply_are_refused(tmp_path):
    done = popflow("inspect", h5ad(tmp_path), "--dataset", "1")
    assert done.returncode == 1 and "option --dataset: AnnData has none" in done.stderr


@pytest.mark.parametrize("command", ["inspect", "check"])
def test_a_pipe_is_refused_not_waited_for(tmp_path, command):
    os.mkfifo(tmp_path / "pipe.csv")
    done = popflow(command, tmp_path / "pipe.csv")
    assert done.returncode == 1 and "Traceback" not in done.stderr


def test_init_leaves_broken_files_out_and_keeps_ids_apart(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        fcs(tmp_path / name)
    (tmp_path / "broken.fcs").write_text("no")
    sheet = tmp_path / "sheet.tsv"
    done = popflow("init", tmp_path, "--modality", "cytometry", "--output", sheet)
    assert done.returncode == 0 and "broken.fcs" in done.stderr
    rows = pd.read_csv(sheet, sep="\t")
    assert rows["sample"].tolist() == ["sample", "two_sample"]
    assert rows["path"].tolist() == ["one/sample.fcs", "two/sample.fcs"]
    assert f"sheet={sheet}" in done.stdout
    again = popflow("init", tmp_path, "--modality", "cytometry", "--output", sheet)
    assert again.returncode == 1 and "exists already" in again.stderr


@pytest.mark.parametrize("modality, make", [("expression", h5ad), ("placecells", nwb_units)])
def test_init_writes_datasets_where_a_file_is_one(tmp_path, modality, make):
    make(tmp_path)
    sheet = tmp_path / "rows.tsv"
    popflow("init", tmp_path, "--modality", modality, "--output", sheet)
    rows = pd.read_csv(sheet, sep="\t")
    assert list(rows.columns) == ["dataset", "modality", "source"]
    assert rows["modality"].tolist() == [modality]


def test_init_takes_tables_of_events_and_writes_a_panel(tmp_path):
    (tmp_path / "a.csv").write_text("FSC-A,FITC-A :: CD3\n1,2\n3,4\n")
    done = popflow("init", tmp_path, "--modality", "cytometry", "--output", tmp_path / "sheet.tsv")
    assert done.returncode == 0, done.stderr
    panel = pd.read_csv(tmp_path / "panel.tsv", sep="\t")
    assert panel.to_numpy().tolist() == [
        ["FSC-A", "FSC-A", "ignore"],
        ["FITC-A", "CD3", "type"],
    ]
