"""A mesh of JAX devices: rows are dealt along its axis `data`, weights are cut along `model`."""

import math
import re
import warnings

import keras
import numpy as np

from macaron_tf.errors import UserError

Batch = dict[str, np.ndarray]

AXES = ("data", "model")
# Weights that are cut, by the ends of their paths, and the axis of the mesh along each dimension.
# The product before a cut dimension needs no exchange, the one after it adds over the devices.
LAYOUTS = {
    # Attention: heads. The columns of the fused projection are queries, keys and values.
    "(query|key_value|query_key_value)/kernel": (None, "model"),
    "(query|key_value|query_key_value)/bias": ("model",),
    "attention/output/kernel": ("model", None),
    # Feed-forward and SwishRNN: inner channels.
    "inner/kernel": (None, "model"),
    "inner/bias": ("model",),
    "outer/kernel": ("model", None),
    "(swish_rnn[^/]*|feed_forward[^/]*)/(alpha|beta|state_bias|gate_bias)": ("model",),
    # Vocabulary: embeddings, and the scores of tokens.
    "(tokens|embedding)/table": ("model", None),
    "(masked_language|language_head|adaptive_softmax)/bias": ("model",),
    "logits_bias": ("model",),
    "output_projection/kernel": (None, "model"),
}


class MeshParallel(keras.distribution.ModelParallel):
    """Keras's `ModelParallel` by `LAYOUTS`; a dimension that its devices do not divide stays whole.

    Optimizers lay their moments out as the weights.
    """

    def __init__(self, mesh: keras.distribution.DeviceMesh):
        layouts = keras.distribution.LayoutMap(mesh)
        for path, axes in LAYOUTS.items():
            layouts[f"(.*/)?{path}"] = axes
        super().__init__(layout_map=layouts, batch_dim_name="data")

    def get_variable_layout(self, variable) -> keras.distribution.TensorLayout:
        layout = super().get_variable_layout(variable)
        sizes = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))
        axes = [
            axis if axis and size % sizes[axis] == 0 else None
            for axis, size in zip(layout.axes, variable.shape, strict=True)
        ]
        return keras.distribution.TensorLayout(axes, self.device_mesh)


def parse_mesh(text: str) -> dict[str, int]:
    """The size of each axis in `data=4,model=2`; an axis that is left out is 1."""
    sizes = dict.fromkeys(AXES, 1)
    for part in text.split(","):
        found = re.fullmatch(rf"({'|'.join(AXES)})=([1-9][0-9]{{0,5}})", part.strip())
        if not found:
            raise UserError(
                f"--mesh {text}: write the number of devices along each axis, such as "
                "data=4,model=2"
            )
        sizes[found[1]] = int(found[2])
    return sizes


def use_mesh(sizes: dict[str, int]) -> None:
    """Makes the variables and batches from now on those of a mesh of this process's devices.

    One device alone is no mesh.
    """
    count, devices = math.prod(sizes.values()), keras.distribution.list_devices()
    if count > len(devices):
        axes = ",".join(f"{axis}={size}" for axis, size in sizes.items())
        raise UserError(
            f"--mesh {axes} wants {count} devices and JAX sees {len(devices)}: take a smaller one; "
            f"to try on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        )
    distribution = None
    if count > 1:
        mesh = keras.distribution.DeviceMesh(tuple(sizes.values()), list(sizes), devices[:count])
        distribution = MeshParallel(mesh)
    keras.distribution.set_distribution(distribution)


def spread(batch: Batch) -> Batch:
    """The batch on the mesh, if there is one, its rows dealt to the devices; no row is added.

    Where `data` does not divide the rows, every device computes all of them, with a warning. XLA
    can deal them unevenly, but on a mesh with `model` > 1 gives wrong gradients (JAX 0.10).
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return batch
    import jax

    count = distribution.num_model_replicas

    def placed(array: np.ndarray):
        axes = [None] * array.ndim
        if array.ndim and len(array) % count == 0:
            axes[0] = "data"
        elif array.ndim:
            warnings.warn(
                f"each of {count} devices computes all rows of batches of {len(array)}: a batch "
                f"size that is a multiple of {count} is shared, and faster",
                stacklevel=2,
            )
        layout = keras.distribution.TensorLayout(axes, distribution.device_mesh)
        return jax.device_put(array, layout.backend_layout)

    return {name: placed(array) for name, array in batch.items()}
