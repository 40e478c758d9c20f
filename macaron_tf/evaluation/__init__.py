"""Evaluation: metrics of a set of outputs."""
