"""Metrics of a model's outputs on a data set."""
