"""Prints how a mesh shards the weights and moments of `GatesBlock`, from docs/own_block.md.

    KERAS_BACKEND=jax python -m tests.toys.own_block

`test_equality` runs this module with `my_gates.py` on PYTHONPATH.
"""

import json

from my_gates import GatesBlock

from macaron_tf.distribution.mesh import use_mesh
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.optimizer import make_optimizer


def cut(variables) -> dict[str, list]:
    specs = {variable.path: [*variable.value.sharding.spec] for variable in variables}
    return {path: spec for path, spec in specs.items() if any(spec)}


use_mesh({"data": 4, "model": 2})
block = GatesBlock(num_heads=2, feed_forward_dim=16, name="own")
block.build((None, None, 6))
optimizer = make_optimizer(TrainingConfig(), block.trainable_variables)
optimizer.build(block.trainable_variables)
print(json.dumps([cut(block.trainable_variables), cut(optimizer.variables)]))
