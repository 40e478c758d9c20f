"""Sentence embeddings, and contextual word embeddings (ELMo)."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import EncodedExamples
from macaron_tf.data.sampler import bucket_shapes, choose_lengths, plan_batches
from macaron_tf.data.tasks.encoding import encode_pairs, encode_sets
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.errors import warn
from macaron_tf.io.progress import track
from macaron_tf.models.model_parts import ModelParts, TaskSettings
from macaron_tf.models.tasks import SiameseEncoder, unit_length
from macaron_tf.settings import Count
from macaron_tf.tasks.base import OnePass, trimmed
from macaron_tf.tasks.sets import RowOutputs
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows
from macaron_tf.text.words import character_ids, split_words, with_ends

_MAX_LENGTH = 128  # maximum row length of a model whose training length is unknown
# Number of different batch lengths. On STS-B, 9% of the positions are then padding. With all
# multiples of 8 as lengths, 24% of the positions would be padding.
_NUM_LENGTHS = 16
_PROGRESS_SENTENCES = 2_000  # minimum number of sentences for a progress bar
_MAX_TOKENS = 8192  # maximum number of tokens per batch, including padding


@dataclasses.dataclass(frozen=True)
class SentenceSettings(TaskSettings):
    """Settings of a sentence encoder.

    Attributes:
        pooling: `"cls"`, `"mean"`, `"max"` or `"last"`; see `Pooling`. Mean and maximum include
            [CLS] and [SEP].
        normalize: whether vectors are scaled to unit length.
        max_length: maximum row length in tokens. Longer texts are truncated.
    """

    kind = "sentences"
    pooling: str = "mean"
    normalize: bool = False
    max_length: Count | None = None


class SentenceEmbedding(OnePass):
    """Sentence encoder.

    The signature `serving_default` has the input `text (B,)` strings and the output `vector (B, D)`
    float32. Vectors have norm 1, so the dot product of two vectors is their cosine similarity. Long
    texts are truncated as in training.

    Args:
        max_length: maximum number of ids in a row, including special ids.
    """

    name = "sentence encoder"
    pipeline = "sentence-similarity"
    truncates = True

    def __init__(self, network: SiameseEncoder, vocabulary: PieceVocabulary, max_length: int):
        super().__init__(network, vocabulary)
        self.max_length = self.longest = max_length

    @classmethod
    def of(
        cls, model: ModelParts, pooling: str | None = None, max_length: int | None = None
    ) -> Self:
        """Creates a sentence encoder that pools the hidden states of a loaded encoder.

        The sentence encoder has a copy of the loaded weights.

        Args:
            pooling: `"cls"`, `"mean"`, `"max"` or `"last"` (see `Pooling`). `None` means the
                model's pooling, or `"mean"` if the model has none.
            max_length: maximum number of ids in a row, including special ids. `None` means the
                sentence encoder's maximum length, if the model has one. Otherwise, `None` means the
                training length if it is known and the model's positions are limited, and at most
                128 in all other cases.
        """
        source, config = model.network, model.config
        settings = model.settings
        if not isinstance(settings, SentenceSettings):
            settings = SentenceSettings()
        if isinstance(source, SiameseEncoder):
            options = {"pooling": pooling or source.pooling, "dtype": source.dtype_policy}
            network = SiameseEncoder.from_config({**source.get_config(), **options})
            network.build()
            network.set_weights(source.get_weights())
        else:
            network = SiameseEncoder(config, pooling or settings.pooling, settings.normalize)
            network.build()
            network.encoder.set_weights(model.encoder.get_weights())
        trained = model.card.trained_length if config.longest else None
        trained = trained or min(_MAX_LENGTH, config.max_length)
        return cls(network, model.vocabulary, max_length or settings.max_length or trained)

    def prepare(self, text: tf.Tensor) -> tuple[dict, None]:
        rows = encode_pairs(self.vocabulary, text, None, self.max_length)
        return {"token_ids": rows["token_ids"]}, None

    def compute(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        return unit_length(self.network(rows, training=False))  # (B, D)

    def conclude(self, computed: tf.Tensor, extras: None) -> dict[str, tf.Tensor]:
        return {"vector": computed}

    def facts(self) -> dict[str, Any]:
        return {"pooling": self.network.pooling, "max_length": self.max_length}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Encodes N sentences as vectors `(N, D)` float32.

        The vectors have norm 1 only if the `normalize` of the network is True. An empty sentence is
        encoded as two special ids. Long sentences are truncated, and a warning on stderr reports
        how many sentences have the maximum length.
        """
        if not len(texts):
            return np.empty((0, self.network.config.hidden_dim), np.float32)
        rows = encode_sets(self.vocabulary, Examples((texts,), None), self.max_length).rows
        warn_cut(rows, self.max_length)
        return self.encode_rows(rows)

    @functools.cached_property
    def _outputs(self) -> RowOutputs:
        return RowOutputs(self.network, ("token_ids",))

    def encode_rows(self, rows: TokenRows) -> np.ndarray:
        """Encodes N rows of ids, with special ids, as vectors `(N, D)` float32; see `encode`."""
        vectors = np.empty((len(rows.lengths), self.network.config.hidden_dim), np.float32)
        lengths = choose_lengths(rows.lengths, _NUM_LENGTHS, multiple=1)
        plan = plan_batches(
            bucket_shapes(lengths, max(_MAX_TOKENS, self.max_length)), rows.lengths, None
        )
        # Drop the rows of padding in the last batch. A single short query would add 500 such rows.
        real_batches = ((batch.rows[batch.rows >= 0], batch.length) for batch in plan)
        batches: Iterator = (
            (indices, (rows.padded(indices, length, self.vocabulary.special.pad),))
            for indices, length in real_batches
        )
        if len(vectors) >= _PROGRESS_SENTENCES:
            sized = ((len(batch[0]), batch) for batch in batches)
            batches = track(sized, len(vectors), "encoding", "sentences")
        return self._outputs.fill(vectors, batches)

    def encode_sets(self, data: EncodedExamples) -> np.ndarray:
        """Encodes N tokenized examples of S sentences each as vectors `(N, S, D)` float32."""
        # (N S, D) -> (N, S, D)
        width = self.network.config.hidden_dim
        return self.encode_rows(data.rows).reshape(-1, data.rows_per_example, width)


def warn_cut(rows: TokenRows, max_length: int) -> None:
    """Warns on stderr if sentences have the maximum length, because they may be truncated."""
    if count := int((rows.lengths >= max_length).sum()):
        found = f"{count:,} of {len(rows):,} sentences have {max_length} tokens"
        warn(f"{found} or were truncated to {max_length} tokens")


class WordVectors(OnePass):
    """Contextual word embeddings (ELMo).

    The input of the signature `serving_default` is `text (B,)` strings. The longest text has L
    words. The outputs are `words (B, L)` strings, padded with "", `vectors (B, L, J, 2 P)` float32,
    padded with 0, and `lengths (B,)` int32, the number of words. J is one more than the number of
    LSTM layers. Layer 0 contains the P channels of the word vector from the character CNN, twice.
    In each other layer, the first P channels of a word are from the forward language model, and the
    other P channels are from the backward language model. With the option `tokenized`, only white
    space separates words.
    """

    name = "word encoder"
    pipeline = "feature-extraction"
    takes = ("tokenized",)
    tokenized = False

    @classmethod
    def of(cls, model: ModelParts) -> Self:
        return cls(model.network, model.vocabulary)

    def prepare(self, text: tf.Tensor) -> tuple[dict, tf.RaggedTensor]:
        words = tf.strings.split(text) if self.tokenized else split_words(text)
        padded = with_ends(words).to_tensor("")  # (B, L + 2)
        return {"token_ids": character_ids(padded, self.network.config.max_characters)}, words

    def compute(self, rows: dict[str, tf.Tensor]) -> tf.Tensor:
        return super().compute(rows["token_ids"])  # (B, L + 2, J, 2 P)

    def conclude(self, computed: tf.Tensor, extras: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        lengths = tf.cast(extras.row_lengths(), tf.int32)
        max_length = tf.reduce_max(lengths, axis=0)
        is_word = tf.sequence_mask(lengths, max_length, tf.float32)[:, :, None, None]
        # Drop the start and end tokens: (B, L + 2, J, 2 P) -> (B, L, J, 2 P)
        vectors = computed[:, 1 : max_length + 1] * is_word
        return {"words": extras.to_tensor(""), "vectors": vectors, "lengths": lengths}

    def rows(self, outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        return trimmed(super().rows(outputs), outputs["lengths"])
