"""A memory of earlier segments: kept in variables from batch to batch, and Transformer-XL."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from macaron_tf.checks import check_count
from macaron_tf.layers.language_heads import AdaptiveSoftmax
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.language_model import LanguageModel


class SegmentMemory:
    """The memory of B texts, a row each, that go on from batch to batch.

    The variables are no weights of the network: another number of texts, or a longer memory, takes
    the same weights. Under several replicas each has its own rows.

    Args:
        empty: nested tensors `(B, ...)`, from the network's `init_memory`.

    Attributes:
        variables: all of them, in order.
    """

    def __init__(self, empty: Any):
        self._held = keras.tree.map_structure(_variable, empty)
        self.variables: list[keras.Variable] = keras.tree.flatten(self._held)

    def read(self, starts=None):
        """The memory, empty in rows `starts (B,)` where a text begins; None = none begins."""

        def kept(variable):
            value = ops.convert_to_tensor(variable)
            if starts is None:
                return value
            begins = ops.reshape(starts, (-1, *[1] * (len(value.shape) - 1)))
            return ops.where(begins, ops.zeros_like(value), value)

        return keras.tree.map_structure(kept, self._held)

    def write(self, memory) -> None:
        """Keeps the new memory, of the structure that `read` gives."""
        for variable, value in zip(self.variables, keras.tree.flatten(memory), strict=True):
            variable.assign(value)


class KeepsMemory:
    """Base of networks that keep a memory of earlier segments, and from batch to batch in training.

    Attributes:
        memory_length: M, positions of earlier segments that attention sees.
        memories: of `keep_memory`, `"training"` and `"evaluation"`; None before.
    """

    encoder: Encoder
    memory_length: int
    memories: dict[str, SegmentMemory] | None = None

    def init_memory(self, batch_size):
        """The memory before a text: see `Mixer.init_memory`."""
        return self.encoder.stack.init_memory(batch_size, self.memory_length)

    def keep_memory(self, rows: int) -> None:
        """Makes the variables that keep the memory of `rows` = B texts, of a replica's batches."""
        empty = self.init_memory(rows)
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


class SegmentLanguageModel(KeepsMemory, LanguageModel):
    """A `LanguageModel` with a memory of the segments before.

    Attention keeps its inputs at the last M positions in every layer, a recurrence its state; no
    gradient flows through either. `call` is a segment without a memory.

    Args:
        config: of the encoder, `causal`, with `positions="transformer_xl"`.
        memory_length: M.
        cutoffs: score tokens by an `AdaptiveSoftmax` with these, whose logits are
            log-probabilities; none = by their table.
        divisor: of the adaptive softmax.

    Cached decoding sees the last M tokens and itself: each step costs the same.

    Example:
        memory = model.init_memory(batch_size)
        for segment in segments:  # (B, L) each
            hidden, memory = model.with_memory({"token_ids": segment}, memory)
            logits = model.logits(hidden)

    References: Dai et al. 2019, "Transformer-XL: Attentive Language Models beyond a Fixed-Length
    Context".
    """

    def __init__(
        self,
        config: EncoderConfig,
        memory_length: int,
        cutoffs: Sequence[int] = (),
        divisor: int = 1,
        **kwargs,
    ):
        if not config.relative:
            raise ValueError("a memory of segments needs positions='transformer_xl'")
        check_count("memory_length", memory_length)
        super().__init__(config, **kwargs)

    def make_language_head(self):
        if not self.cutoffs:
            return super().make_language_head()
        return AdaptiveSoftmax(
            **self.config.options("vocab_size", "initializer_range"),
            cutoffs=self.cutoffs,
            divisor=self.divisor,
            name="adaptive_softmax",
        )

    def with_memory(self, inputs, memory, training=None):
        """The output `(B, L, D)` of the next segment and the new memory: see `Encoder`."""
        return self.encoder.with_memory(inputs, memory, training=training)

    def init_decode(self, batch_size, beams: int, max_length: int | None = None):
        """See `LanguageModel.init_decode`; the cache has room for M tokens, whatever the length."""
        context, _ = super().init_decode(batch_size, beams)
        cache = self.encoder.stack.init_cache(batch_size, beams, self.memory_length)
        return context, {"fixed": cache}
