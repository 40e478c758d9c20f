"""JAX device meshes, which shard batches along the axis `data` and weights along `model`."""

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
# Weight axes (see `WeightSpec`) that are sharded. A matrix product with a sharded output dimension
# needs no communication. A matrix product with a sharded input dimension needs an all-reduce.
SHARDED_AXES = ("heads", "mlp", "vocab")


class MeshParallel(keras.distribution.ModelParallel):
    """Model parallelism that shards the weight axes `heads`, `mlp` and `vocab` over the devices.

    The weight axes are divided among the devices along the mesh axis `model`. A weight axis whose
    size is not a multiple of the number of these devices is replicated. Optimizer moments are
    sharded like their weights.
    """

    def __init__(self, mesh: keras.distribution.DeviceMesh):
        super().__init__(layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name="data")

    def get_variable_layout(self, variable) -> keras.distribution.TensorLayout:
        count = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))["model"]
        named_sizes = zip(spec_of(variable).axes, variable.shape, strict=True)
        is_sharded = [name in SHARDED_AXES and size % count == 0 for name, size in named_sizes]
        axes = ["model" if sharded else None for sharded in is_sharded]
        return keras.distribution.TensorLayout(axes, self.device_mesh)


def parse_mesh(text: str) -> dict[str, int]:
    """Parses mesh axis sizes such as `data=4,model=2`. An omitted axis gets size 1."""
    sizes = dict.fromkeys(AXES, 1)
    for part in text.split(","):
        match = re.fullmatch(rf"({'|'.join(AXES)})=([1-9][0-9]{{0,5}})", part.strip())
        if not match:
            raise UserError(f"--mesh {text} is no mesh: give devices per axis, as data=4,model=2")
        sizes[match[1]] = int(match[2])
    return sizes


def use_mesh(sizes: dict[str, int] | None = None) -> None:
    """Sets the device mesh on which new variables and batches are sharded, if it has several.

    A mesh over several processes must contain all their devices, which `None` for `sizes`, by axis
    name, puts along `data`. A single process then uses one device.
    """
    import jax

    devices, is_multi_process = keras.distribution.list_devices(), jax.process_count() > 1
    sizes = sizes or dict(zip(AXES, (len(devices) if is_multi_process else 1, 1), strict=True))
    count = math.prod(sizes.values())
    axes = ",".join(f"{axis}={size}" for axis, size in sizes.items())
    if count > len(devices):
        raise UserError(
            f"--mesh {axes} needs {count} devices, but JAX sees {len(devices)}: give a smaller "
            f"mesh, or set XLA_FLAGS=--xla_force_host_platform_device_count={count} to emulate them"
        )
    distribution = None
    if count > 1:
        mesh = keras.distribution.DeviceMesh(tuple(sizes.values()), list(sizes), devices[:count])
        distribution = MeshParallel(mesh)
    keras.distribution.set_distribution(distribution)


def shard_batch(batch: Batch) -> Batch:
    """Shards the rows of a batch over the mesh axis `data`, if there is a mesh, without padding.

    If the row count is not a multiple of the size of `data`, every device computes all rows, and a
    warning is shown: uneven shards give wrong gradients on a mesh whose axis `model` is larger than
    1 (JAX 0.10).
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return batch
    import jax

    count = distribution.num_model_replicas

    def shard(array: np.ndarray):
        axes = [None] * array.ndim
        if array.ndim and len(array) % count == 0:
            axes[0] = "data"
        elif array.ndim:
            problem = f"{len(array)} rows cannot be divided evenly along the mesh axis data={count}"
            mend = f"set a batch size that is a multiple of {count}"
            warnings.warn(f"{problem}, so each device computes all rows: {mend}", stacklevel=2)
        layout = keras.distribution.TensorLayout(axes, distribution.device_mesh)
        # Each process provides the rows of its own devices.
        return jax.make_array_from_callback(
            array.shape, layout.backend_layout, lambda index: array[index]
        )

    return {name: shard(array) for name, array in batch.items()}


def replicated_sharding() -> "jax.sharding.Sharding | None":
    """Returns the JAX sharding that replicates arrays on all devices, or `None` without a mesh."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return None
    return keras.distribution.TensorLayout([], distribution.device_mesh).backend_layout
