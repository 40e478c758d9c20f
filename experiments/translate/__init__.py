"""Commands of `python -m experiments.translate`."""
