"""What a network keeps of the text before, in variables from one batch to the next."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from macaron_tf.layers.softmax import AdaptiveSoftmax
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.language_model import LanguageModel


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


@keras.saving.register_keras_serializable(package="macaron_tf")
class SegmentLanguageModel(KeepsMemory, LanguageModel):
    """A `LanguageModel` with a memory of the segments before.

    Attention keeps the last M positions in every layer, as it read them, a recurrence its state;
    no gradient flows through either. `call` is a segment without a past.

    Args:
        config: of the encoder, `causal`, with `positions="transformer_xl"`.
        memory_length: M.
        cutoffs: score tokens by an `AdaptiveSoftmax` with these, whose logits are
            log-probabilities; none = by their table.
        divisor: of the adaptive softmax.

    Cached decoding sees the last M tokens and itself: each step costs the same.

    Raises:
        ValueError: another kind of positions, or M is 0 or less.

    Example:
        past = model.empty_past(batch_size)
        for segment in segments:  # (B, L) each
            hidden, past = model.with_past({"token_ids": segment}, past)
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
        name: str = "segment_language_model",
        **kwargs,
    ):
        if config.relative is None:
            raise ValueError("a memory of segments needs positions='transformer_xl'")
        if memory_length < 1:
            raise ValueError(f"memory_length={memory_length} must be 1 or more")
        super().__init__(config, name=name, **kwargs)
        self.memory_length = memory_length
        self.cutoffs = tuple(cutoffs)
        self.divisor = divisor
        if self.cutoffs:
            # Keras would go on tracking a layer whose attribute is only replaced.
            self._tracker.untrack(self.language_head)
            self.language_head = AdaptiveSoftmax(
                config.vocab_size,
                self.cutoffs,
                divisor,
                config.initializer_range,
                dtype=self.dtype_policy,
                name="adaptive_softmax",
            )

    def empty_past(self, batch_size):
        """What is kept before a text: see `Stack.empty_past`."""
        return self.encoder.stack.empty_past(batch_size, self.memory_length)

    def with_past(self, inputs, past, training=None):
        """The output `(B, L, D)` of the next segment and the new past: see `Encoder.with_past`."""
        return self.encoder.with_past(inputs, past, training=training)

    def start(self, batch_size, beam_size: int, max_length: int | None = None):
        """Begins cached decoding of K texts a row, of any length: see `LanguageModel.start`.

        Args:
            batch_size: B. beam_size: K.
            max_length: changes nothing; the cache has room for M tokens.
        """
        context, _ = super().start(batch_size, beam_size)
        cache = self.encoder.stack.empty_cache(batch_size, beam_size, self.memory_length)
        return context, {"fixed": cache}

    def get_config(self):
        return {
            **super().get_config(),
            "memory_length": self.memory_length,
            "cutoffs": self.cutoffs,
            "divisor": self.divisor,
        }
