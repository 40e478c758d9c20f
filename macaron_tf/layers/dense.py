"""A matrix product with bias and activation, the last two in one where there are native kernels."""

import math
from collections.abc import Callable

import keras
import numpy as np
from keras import ops
from keras.dtype_policies import DTypePolicyMap

from macaron_tf.kernels import runs_native


@keras.saving.register_keras_serializable(package="macaron_tf", name="gelu_tanh")
def gelu_tanh(x):
    """`x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, at most 5e-4 from the exact GELU.

    GPT-2's and Model Garden's; Keras's `"gelu"` is the exact `x Phi(x)`, as in Hugging Face.

    References: Hendrycks and Gimpel 2016, section 2.
    """
    return 0.5 * x * (1.0 + ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def activation(identifier: str | dict | Callable | None) -> Callable:
    """The function of that name, `"gelu_tanh"` included, as `keras.activations.get`."""
    if identifier in ("gelu_tanh", "macaron_tf>gelu_tanh"):
        return gelu_tanh
    return keras.activations.get(identifier)


@keras.saving.register_keras_serializable(package="macaron_tf")
class NarrowColumns(keras.initializers.Initializer):
    """Another initializer's matrix, its first columns multiplied by a factor.

    For the query's part of a fused projection whose scores are not divided by sqrt(d): it starts
    1/sqrt(d) as wide, so that attention starts as it would with the division.

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
    """A layer's own dtype policy; a quantized model that was loaded has a map of all of them."""
    policy = layer.dtype_policy
    return policy[layer.path] if isinstance(policy, DTypePolicyMap) else policy


@keras.saving.register_keras_serializable(package="macaron_tf")
class Dense(keras.layers.Dense):
    """Keras's `Dense`; a bias and a GELU after it, of either form, are one pass in training.

    On JAX the gradient computes the GELU again from the product, which XLA has written already;
    else JAX would keep two more arrays of that size.

    Call arguments: `x (..., D)`; `training`: where it is not, stock operations only, so that a
    model can be exported from anywhere. Returns `(..., units)`.
    """

    def build(self, input_shape):
        # Keras saves a Dense by its own policy: of a map the default would count.
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
        # Keras refuses subclasses of its Dense; a quantized layer's call is Keras's own.
        super().quantize(mode, type_check=False, config=config)

    def matrix(self, dtype):
        """The kernel `(D, units)` as floats of a dtype, dequantized where it is int8."""
        kernel = ops.cast(ops.convert_to_tensor(self.kernel), dtype)
        return kernel / self.kernel_scale if self.quantization_mode == "int8" else kernel
