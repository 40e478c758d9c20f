"""A mesh of JAX devices: rows are dealt along its axis `data`, weights are cut along `model`."""

import math
import re
import warnings
from typing import TYPE_CHECKING

import keras
import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.variables import spec_of

if TYPE_CHECKING:
    import jax

Batch = dict[str, np.ndarray]

AXES = ("data", "model")
# Named axes of weights that are cut, see `WeightSpec`. The product before a cut dimension needs no
# exchange, the one after it adds over the devices. The columns of a fused projection to heads are
# queries, keys and values.
CUT = ("heads", "mlp", "vocab")


class MeshParallel(keras.distribution.ModelParallel):
    """Cuts weights by their named axes; a dimension that its devices do not divide stays whole.

    Optimizers lay their moments out as the weights.
    """

    def __init__(self, mesh: keras.distribution.DeviceMesh):
        super().__init__(layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name="data")

    def get_variable_layout(self, variable) -> keras.distribution.TensorLayout:
        count = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))["model"]
        named = zip(spec_of(variable).axes, variable.shape, strict=True)
        axes = ["model" if name in CUT and size % count == 0 else None for name, size in named]
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


def use_mesh(sizes: dict[str, int] | None = None) -> None:
    """Makes the variables and batches from now on those of a mesh of devices.

    One device alone is no mesh. Several processes have all of their devices in it.

    Args:
        sizes: of the axes; None = one device, or all of several processes along `data`.
    """
    import jax

    devices, several = keras.distribution.list_devices(), jax.process_count() > 1
    sizes = sizes or dict(zip(AXES, (len(devices) if several else 1, 1), strict=True))
    count = math.prod(sizes.values())
    axes = ",".join(f"{axis}={size}" for axis, size in sizes.items())
    if several and count != len(devices):
        raise UserError(
            f"--mesh {axes} is of {count} devices, and the {jax.process_count()} processes have "
            f"{len(devices)}: give a mesh of all of them"
        )
    if count > len(devices):
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
        # A process takes the rows of its own devices.
        return jax.make_array_from_callback(
            array.shape, layout.backend_layout, lambda index: array[index]
        )

    return {name: placed(array) for name, array in batch.items()}


def whole() -> "jax.sharding.Sharding | None":
    """The layout on the mesh of arrays that every device holds whole; None without a mesh."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return None
    import jax

    return jax.sharding.NamedSharding(
        distribution.device_mesh.backend_mesh, jax.sharding.PartitionSpec()
    )
