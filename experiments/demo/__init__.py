"""The command of `python -m experiments.demo`."""
