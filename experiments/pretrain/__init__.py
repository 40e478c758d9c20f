"""Commands of `python -m experiments.pretrain`."""
