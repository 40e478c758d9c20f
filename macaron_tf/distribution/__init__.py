"""The devices and the processes that work together, and what each gets of a batch."""

from macaron_tf.distribution.replicas import distributed, spread_seeds
from macaron_tf.distribution.strategy import (
    STRATEGIES,
    Workers,
    emulates_bfloat16,
    is_tpu,
    make_strategy,
    read_cluster,
)
