"""Dense layers with fused bias and GELU, activations by name, and an initializer."""

import math
from collections.abc import Callable

import keras
import numpy as np
from keras import ops
from keras.dtype_policies import DTypePolicyMap

from macaron_tf.kernels import runs_native


@keras.saving.register_keras_serializable(package="macaron_tf", name="gelu_tanh")
def gelu_tanh(x):
    """GELU's tanh approximation, at most 5e-4 from the exact GELU.

    It is `x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, which GPT-2 and Model Garden use.
    Keras's `"gelu"` is the exact `x Phi(x)`, as in Hugging Face's BERT.

    References: Hendrycks and Gimpel 2016, section 2.
    """
    return 0.5 * x * (1.0 + ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def activation(identifier: str | dict | Callable | None) -> Callable:
    """Returns the activation of that name, like `keras.activations.get`, also for `"gelu_tanh"`."""
    if identifier in ("gelu_tanh", "macaron_tf>gelu_tanh"):
        return gelu_tanh
    return keras.activations.get(identifier)


@keras.saving.register_keras_serializable(package="macaron_tf")
class NarrowColumns(keras.initializers.Initializer):
    """Initializer that multiplies the first columns of another initializer's matrix by a factor.

    Attention whose scores are not divided by sqrt(d) uses it for the query's columns of a fused
    projection. With the factor 1/sqrt(d), training starts as if scores were divided.

    References: Raffel et al. 2020 (T5), its released code.
    """

    def __init__(self, initializer, columns: int, factor: float):
        self.initializer = keras.initializers.get(initializer)
        self.columns = columns
        self.factor = factor

    def __call__(self, shape, dtype=None):
        factors = np.where(np.arange(shape[-1]) < self.columns, self.factor, 1.0)
        values = self.initializer(shape, dtype)
        return ops.multiply(values, ops.cast(factors, values.dtype))

    def get_config(self):
        return {
            "initializer": keras.initializers.serialize(self.initializer),
            "columns": self.columns,
            "factor": self.factor,
        }


def policy_of(layer: keras.layers.Layer) -> keras.dtype_policies.DTypePolicy:
    """A layer's own dtype policy; a loaded quantized model shares a map of all layers' policies."""
    policy = layer.dtype_policy
    return policy[layer.path] if isinstance(policy, DTypePolicyMap) else policy


@keras.saving.register_keras_serializable(package="macaron_tf")
class Dense(keras.layers.Dense):
    """Keras's `Dense`, with bias and GELU (exact or approximate) in one pass during training.

    On JAX, the backward pass computes the GELU again from the matrix product, which XLA keeps
    anyway. Otherwise JAX would keep two more arrays of that size.

    Call arguments: `x (..., D)`; `training`: if False or None, only stock operations run, so that
    models can be exported on every backend. Returns `(..., units)`.
    """

    def build(self, input_shape):
        # Keras saves a Dense by its own policy; of a map it would take the default.
        self._dtype_policy = policy_of(self)
        super().build(input_shape)

    def call(self, inputs, training=None):
        approximate = {keras.activations.gelu: False, gelu_tanh: True}.get(self.activation)
        if training and self.use_bias and approximate is not None and runs_native(inputs):
            from macaron_tf.kernels import native

            product = ops.matmul(inputs, self.kernel)  # (..., D) x (D, units) -> (..., units)
            return native.bias_gelu(product, self.bias, approximate)
        on_jax = keras.backend.backend() == "jax"
        if training and self.use_bias and approximate is not None and on_jax:
            import jax

            product = ops.matmul(inputs, self.kernel)  # (..., D) x (D, units) -> (..., units)
            biased = jax.checkpoint(lambda product, bias: self.activation(product + bias))
            return biased(product, ops.cast(self.bias, product.dtype))
        return super().call(inputs, training=training)

    def quantize(self, mode=None, type_check=True, config=None):
        # Without the type check, which rejects subclasses. Quantized layers run Keras's own call.
        super().quantize(mode, type_check=False, config=config)

    def matrix(self, dtype):
        """The kernel `(D, units)` in a float dtype, dequantized if it is int8."""
        kernel = ops.cast(ops.convert_to_tensor(self.kernel), dtype)
        return kernel / self.kernel_scale if self.quantization_mode == "int8" else kernel
