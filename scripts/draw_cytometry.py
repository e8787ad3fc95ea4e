"""Draw quality, embedding, method comparison and training of a cytometry dataset."""

import anndata

from popflow.evaluate.cytometry import fits_from_paths
from popflow.figures import cytometry
from popflow.runtime.files import read_tsv
from popflow.runtime.job import job

with job(snakemake):
    inputs, output = snakemake.input, snakemake.output
    cohort = read_tsv(inputs.cohort)
    cytometry.draw_quality(read_tsv(inputs.qc), cohort, output.quality)
    fits = fits_from_paths(inputs.embeddings)
    first = {fit["variant"]: fit["path"] for fit in reversed(fits)}
    shown = {name: first[name] for name in ("default", "untrained") if name in first} or first
    cytometry.draw_embedding(
        {name: anndata.read_h5ad(path) for name, path in shown.items()}, output.embedding
    )
    cytometry.draw_comparison(read_tsv(inputs.evaluation), output.comparison)
    histories = {
        (fit["variant"], fit["seed"]): read_tsv(fit["path"])
        for fit in fits_from_paths(inputs.histories)
    }
    cytometry.draw_training(histories, output.training)
