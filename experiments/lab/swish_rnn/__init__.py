"""The commands of `python -m experiments.lab.swish_rnn`, one a file."""
