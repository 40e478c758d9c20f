"""Meshes of JAX devices: rows are sharded along the axis `data`, weights along `model`."""

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
# Named axes of weights that are sharded, see `WeightSpec`. A product whose output dimension is
# sharded needs no communication, and one whose input dimension is sharded adds over the devices.
CUT = ("heads", "mlp", "vocab")


class MeshParallel(keras.distribution.ModelParallel):
    """Shards weights along their named axes `CUT`.

    A dimension that is no multiple of the number of devices is replicated. Optimizers shard their
    moments as the weights.
    """

    def __init__(self, mesh: keras.distribution.DeviceMesh):
        super().__init__(layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name="data")

    def get_variable_layout(self, variable) -> keras.distribution.TensorLayout:
        count = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))["model"]
        named = zip(spec_of(variable).axes, variable.shape, strict=True)
        axes = ["model" if name in CUT and size % count == 0 else None for name, size in named]
        return keras.distribution.TensorLayout(axes, self.device_mesh)


def parse_mesh(text: str) -> dict[str, int]:
    """Parses the sizes of the axes in `data=4,model=2`; an axis that is left out has size 1."""
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
    """Places the variables and batches that are made from now on on a mesh of devices.

    With a single device no mesh is used. A mesh of several processes must have all their devices.

    Args:
        sizes: sizes of the axes; None: one device, or with several processes all devices along
            `data`.

    Raises:
        UserError: the sizes do not match the devices.
    """
    import jax

    devices, several = keras.distribution.list_devices(), jax.process_count() > 1
    sizes = sizes or dict(zip(AXES, (len(devices) if several else 1, 1), strict=True))
    count = math.prod(sizes.values())
    axes = ",".join(f"{axis}={size}" for axis, size in sizes.items())
    if several and count != len(devices):
        raise UserError(
            f"--mesh {axes} has {count} devices, but the {jax.process_count()} processes have "
            f"{len(devices)}: give a mesh of all their devices"
        )
    if count > len(devices):
        raise UserError(
            f"--mesh {axes} needs {count} devices, but JAX sees {len(devices)}: give fewer; "
            f"to try on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        )
    distribution = None
    if count > 1:
        mesh = keras.distribution.DeviceMesh(tuple(sizes.values()), list(sizes), devices[:count])
        distribution = MeshParallel(mesh)
    keras.distribution.set_distribution(distribution)


def spread(batch: Batch) -> Batch:
    """Shards the rows of a batch over the mesh, if there is one; no row is added.

    If the number of rows is no multiple of the axis `data`, every device computes all rows, with a
    warning. XLA could shard them unevenly, but then gives wrong gradients on a mesh with
    `model` > 1 (JAX 0.10).
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
        # Each process provides the rows of its own devices.
        return jax.make_array_from_callback(
            array.shape, layout.backend_layout, lambda index: array[index]
        )

    return {name: placed(array) for name, array in batch.items()}


def whole() -> "jax.sharding.Sharding | None":
    """The sharding of arrays that are replicated on every device; None without a mesh."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return None
    import jax

    return jax.sharding.NamedSharding(
        distribution.device_mesh.backend_mesh, jax.sharding.PartitionSpec()
    )
