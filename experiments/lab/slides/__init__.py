"""Commands of `python -m experiments.lab.slides`."""
