"""The commands of `python -m experiments.translate`, one a file."""
