"""popflow: learn the representation of a population of cells, genes, electrodes or place cells.

The library behind the Snakemake workflow. Importing it loads nothing heavy; each room
(`inputs`, `prepare`, `models`, `evaluate`, `figures`, `simulate`, `runtime`) is imported by name.
"""

__version__ = "0.1.0"
