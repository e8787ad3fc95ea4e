"""Simulate place cells on a real path, as NWB, with the truth beside."""

import h5py

from popflow.runtime.files import atomic
from popflow.runtime.job import job
from popflow.simulate.placecells import simulate_placecells

with job(snakemake):
    truth = simulate_placecells(
        snakemake.params.settings, snakemake.input.trajectory, snakemake.output.nwb
    )
    with atomic(snakemake.output.truth) as temporary, h5py.File(temporary, "w") as file:
        for name in ("t", "factors", "masks", "loadings"):
            file.create_dataset(name, data=getattr(truth, name), track_times=False)
