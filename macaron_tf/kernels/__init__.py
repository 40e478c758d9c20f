"""Fast implementations of operations that are slow in TensorFlow or JAX, and their selection."""

from macaron_tf.kernels.choice import (
    NAMES,
    compiled_by_xla,
    implementation_scope,
    runs_fused,
    runs_native,
)
from macaron_tf.kernels.recurrence import GATES, gated
from macaron_tf.kernels.swish import swish_gate, swish_recurrence
