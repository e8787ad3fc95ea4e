"""What every stage needs while it runs: refusals, files, seeds, logs, training, provenance."""
