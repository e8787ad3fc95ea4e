"""Figures of datasets that lack what they usually show: a sentence, not a stack trace."""

import numpy as np
import pandas as pd
import pytest

from popflow.figures import comparison, intracranial, placecells
from popflow.models.infinite_gpfa import InfiniteGPFA
from popflow.runtime.provenance import gather_benchmarks

COLUMNS = ["dataset", "method", "variant", "seed", "fold", "task", "metric", "value", "n"]


def session(position):
    draw = np.random.default_rng(0)
    bins = len(position)
    return {
        "counts": draw.poisson(1.0, (bins, 4)),
        "t": np.arange(bins) * 0.2,
        "bin_s": 0.2,
        "position": position,
        "position_unit": "cm",
        "label": np.array(["run"] * bins),
        "epoch": np.zeros(bins, int),
        "unit": np.array(list("abcd")),
        "kind": "spikes",
    }


@pytest.mark.parametrize(
    "position, drawn",
    [
        (np.full((80, 2), np.nan), False),
        (np.empty((80, 0)), False),
        (np.linspace(0, 100, 80)[:, None], True),
    ],
)
def test_place_cells_without_positions_or_on_a_line(tmp_path, position, drawn):
    held = session(position)
    model = InfiniteGPFA(n_factors=2, seed=0)
    model.settings |= {"iterations": 2, "inducing": 10}
    model.fit(held["counts"], 0.2)
    placecells.draw_raster(held, tmp_path / "raster.png")
    placecells.draw_maps(held, model, tmp_path / "maps.png")
    assert (tmp_path / "raster.png").stat().st_size > 5000
    assert bool(len(pd.read_csv(tmp_path / "maps.tsv", sep="\t"))) is drawn


def test_a_comparison_of_nothing_and_decoding_of_nothing(tmp_path):
    empty = pd.DataFrame(columns=COLUMNS)
    panel = comparison.Panel("label", "accuracy", "accuracy")
    comparison.draw(empty, [panel], tmp_path / "a.png")
    intracranial.draw_decoding(empty, {}, tmp_path / "b.png")
    assert (tmp_path / "a.png").is_file() and (tmp_path / "b.png").is_file()


def test_benchmarks_before_any_job(tmp_path):
    assert gather_benchmarks(tmp_path / "absent").empty
