"""Kernels: loops over positions, one function each, with interchangeable implementations."""

from macaron_tf.kernels.swish_recurrence import IMPLEMENTATIONS, swish_recurrence

__all__ = ["IMPLEMENTATIONS", "swish_recurrence"]
