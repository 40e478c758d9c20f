"""The commands of `python -m experiments.swish_rnn`, one a file."""
