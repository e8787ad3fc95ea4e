"""Draw the figures of a place-cell dataset."""

from pathlib import Path

from popflow.figures import placecells
from popflow.models.infinite_gpfa import InfiniteGPFA
from popflow.prepare.placecells import read_prepared
from popflow.runtime.files import read_tsv
from popflow.runtime.job import job

with job(snakemake):
    inputs, output = snakemake.input, snakemake.output
    session, association = read_prepared(inputs.session), read_tsv(inputs.association)
    folders = [Path(path).parent for path in inputs.models]
    fits = [
        (folder.parent.name, int(folder.name.removeprefix("seed-")), InfiniteGPFA.load(folder))
        for folder in folders
    ]
    variant, seed, model = fits[0]
    rows = association[(association["variant"] == variant) & (association["seed"] == seed)]
    placecells.draw_raster(session, output.raster)
    placecells.draw_latents(session, model, rows, output.latents)
    placecells.draw_factors(fits, output.factors)
    placecells.draw_maps(session, model, output.maps)
    placecells.draw_comparison(read_tsv(inputs.evaluation), output.comparison)
