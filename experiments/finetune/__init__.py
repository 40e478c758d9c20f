"""Commands of `python -m experiments.finetune`."""
