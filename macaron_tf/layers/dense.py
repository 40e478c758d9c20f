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
    """Computes the tanh approximation of GELU, which differs from the exact GELU by at most 5e-4.

    The formula is `x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`. GPT-2 and TensorFlow Model
    Garden use this approximation. Keras's `"gelu"` is the exact `x Phi(x)`, as in Hugging Face's
    BERT.

    References: Hendrycks and Gimpel 2016, section 2.
    """
    return 0.5 * x * (1.0 + ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def activation(identifier: str | dict | Callable | None) -> Callable:
    """Returns the activation function for a name, as Keras does, or for `"gelu_tanh"`."""
    if identifier in ("gelu_tanh", "macaron_tf>gelu_tanh"):
        return gelu_tanh
    return keras.activations.get(identifier)


def narrowed(initializer: Callable, columns: int, factor: float) -> Callable:
    """Returns an initializer that multiplies the first `columns` of another's output by `factor`.

    `MultiHeadAttention` with `scaled=False` uses it for the query matrix, alone or as the first
    columns of a fused matrix. With the factor 1/sqrt(d), scores at the start of training are as
    large as with `scaled=True`.

    References: Raffel et al. 2020 (T5), released code.
    """

    def initialize(shape, dtype=None):
        factors = np.where(np.arange(shape[-1]) < columns, factor, 1.0)
        values = initializer(shape, dtype)
        return ops.multiply(values, ops.cast(factors, values.dtype))

    return initialize


def policy_of(layer: keras.layers.Layer) -> keras.dtype_policies.DTypePolicy:
    """Returns the dtype policy of one layer, which in a loaded quantized model may hold a map."""
    policy = layer.dtype_policy
    return policy[layer.path] if isinstance(policy, DTypePolicyMap) else policy


@keras.saving.register_keras_serializable(package="macaron_tf")
class Dense(keras.layers.Dense):
    """Keras's `Dense`, with faster bias and GELU (exact or approximate) during training.

    If native kernels run (see `runs_native`), one of them computes bias and GELU in one pass over
    memory. On JAX, the backward pass recomputes the GELU from the matrix product, which XLA keeps
    in memory anyway. Without the recomputation, JAX would keep two more arrays of the same size.

    Without `training`, the layer runs only standard operations, so that every backend can export
    the model.
    """

    def build(self, input_shape):
        # Keras saves a `Dense` with the policy in `_dtype_policy`. If that policy is a map, Keras
        # would save the default policy of the map.
        self._dtype_policy = policy_of(self)
        super().build(input_shape)

    def call(self, inputs, training=None):
        approximate = {keras.activations.gelu: False, gelu_tanh: True}.get(self.activation)
        on_jax = keras.backend.backend() == "jax"
        is_faster = training and self.use_bias and approximate is not None
        if not (is_faster and (on_jax or runs_native(inputs))):
            return super().call(inputs, training=training)
        product = ops.matmul(inputs, self.kernel)  # (..., D) x (D, units) -> (..., units)
        if on_jax:
            import jax

            activate = jax.checkpoint(lambda product, bias: self.activation(product + bias))
            return activate(product, ops.cast(self.bias, product.dtype))
        from macaron_tf.kernels import native

        return native.bias_gelu(product, self.bias, approximate)

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras's type check rejects subclasses. Quantized layers run Keras's own call.
        super().quantize(mode, type_check=False, config=config)

    def matrix(self, dtype):
        """Returns the kernel `(D, units)` in the float dtype `dtype`, dequantized if it is int8."""
        kernel = ops.cast(ops.convert_to_tensor(self.kernel), dtype)
        return kernel / self.kernel_scale if self.quantization_mode == "int8" else kernel
