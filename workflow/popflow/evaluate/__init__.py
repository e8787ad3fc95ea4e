"""Hold a fitted representation against baselines and nulls, on splits that do not leak."""
