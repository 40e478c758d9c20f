"""The language model that reads a text segment by segment: Transformer-XL, with any block."""

from collections.abc import Sequence

import keras

from macaron_tf.layers.adaptive_softmax import AdaptiveSoftmax
from macaron_tf.models.encoder_config import EncoderConfig
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.models.segment_memory import KeepsMemory


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
