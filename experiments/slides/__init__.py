"""Commands of `python -m experiments.slides`."""
