"""Distributed training: strategies, device meshes, worker processes and batch sharding."""

from macaron_tf.distribution.replicas import distributed, spread_seeds
from macaron_tf.distribution.strategy import (
    STRATEGIES,
    Workers,
    is_tpu,
    make_strategy,
    read_cluster,
)
