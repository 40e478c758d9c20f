"""The demo: `python -m experiments.demo`."""
