"""What a network keeps of the text before, in variables from one batch to the next."""

from typing import Any

import keras
from keras import ops


class SegmentMemory:
    """The past of B texts, a row each, that go on from batch to batch.

    The variables are no weights of the network: another number of texts, or a longer memory, takes
    the same weights. Under several replicas each has its own rows.

    Args:
        past: what is kept before a text, nested, `(B, ...)`: of the network's `empty_past`.

    Attributes:
        variables: all of them, in order.
    """

    def __init__(self, past: Any):
        self._held = keras.tree.map_structure(_variable, past)
        self.variables: list[keras.Variable] = keras.tree.flatten(self._held)

    def read(self, starts=None):
        """The past, of nothing where a text begins.

        Args:
            starts: `(B,)` boolean; None = none begins.
        """

        def kept(variable):
            value = ops.convert_to_tensor(variable)
            if starts is None:
                return value
            begins = ops.reshape(starts, (-1, *[1] * (len(value.shape) - 1)))
            return ops.where(begins, ops.zeros_like(value), value)

        return keras.tree.map_structure(kept, self._held)

    def write(self, past) -> None:
        """Keeps the new past, of the structure that `read` gives."""
        for variable, value in zip(self.variables, keras.tree.flatten(past), strict=True):
            variable.assign(value)


class KeepsMemory:
    """The part of a network with a past that keeps it from batch to batch while it trains.

    Attributes:
        memories: of `keep_memory`, `"training"` and `"evaluation"`; None before.
    """

    memories: dict[str, SegmentMemory] | None = None

    def keep_memory(self, rows: int) -> None:
        """Makes the variables that keep the past of `rows` texts, once the model is built.

        Args:
            rows: B of the batches to come; of one replica, where there are several.
        """
        empty = self.empty_past(rows)
        self.memories = {name: SegmentMemory(empty) for name in ("training", "evaluation")}


def _variable(value) -> keras.Variable:
    return keras.Variable(
        ops.zeros_like(value),
        dtype=keras.backend.standardize_dtype(value.dtype),
        trainable=False,
        autocast=False,
        # Each replica writes and reads its own.
        synchronization="on_read",
        aggregation="only_first_replica",
        name="segment_memory",
    )
