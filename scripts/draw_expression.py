"""Draw the figures of an expression dataset."""

import anndata
import numpy as np

from popflow.figures import expression
from popflow.runtime.files import read_json, read_tsv
from popflow.runtime.job import job

with job(snakemake):
    inputs, output = snakemake.input, snakemake.output
    evaluation, model = read_tsv(inputs.evaluation), read_json(inputs.model)
    with np.load(inputs.affinity) as stored:
        expression.draw_clusters(model, dict(stored), output.clusters)
    expression.draw_embedding(anndata.read_h5ad(inputs.embedding), output.embedding)
    expression.draw_confusion(read_tsv(inputs.predictions), output.confusion)
    expression.draw_comparison(evaluation, output.comparison)
    histories = {str(path): read_tsv(path) for path in inputs.histories}
    expression.draw_training(histories, output.training)
