"""Kernels: operations that TensorFlow's own are slow at, with interchangeable implementations."""

from macaron_tf.kernels.choice import (
    NAMES,
    compiled_by_xla,
    implementation_scope,
    runs_fused,
    runs_native,
)
from macaron_tf.kernels.recurrence import GATES, gated
from macaron_tf.kernels.swish import swish_gate, swish_recurrence
