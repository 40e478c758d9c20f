"""Kernels: what TensorFlow's own operations do slowly, with interchangeable implementations."""

from macaron_tf.kernels.choice import (
    NAMES,
    compiled_by_xla,
    implementation_scope,
    runs_native,
)
from macaron_tf.kernels.swish_gate import GATES, gated, swish_gate
from macaron_tf.kernels.swish_recurrence import swish_recurrence

__all__ = [
    "GATES",
    "NAMES",
    "compiled_by_xla",
    "gated",
    "implementation_scope",
    "runs_native",
    "swish_gate",
    "swish_recurrence",
]
