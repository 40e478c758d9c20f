"""The tasks of Bai et al. 2018: what `experiments.tcn` is made of."""
