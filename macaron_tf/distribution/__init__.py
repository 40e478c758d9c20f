"""The devices and the processes that work together, and what each gets of a batch."""

from macaron_tf.distribution.shares import distributed, spread_seeds
from macaron_tf.distribution.strategy import STRATEGIES, is_tpu, make_strategy
from macaron_tf.distribution.workers import Workers

__all__ = ["STRATEGIES", "Workers", "distributed", "is_tpu", "make_strategy", "spread_seeds"]
