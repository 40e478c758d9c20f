"""Learning from corrupted text: what T5's and BART's objectives have in common."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.objectives.masking import map_numbered
from macaron_tf.objectives.masking_config import MaskingConfig, MaskingVocabulary
from macaron_tf.objectives.pretraining import PretrainingObjective
from macaron_tf.objectives.translation import TranslationObjective
from macaron_tf.special_ids import BOS, EOS, PAD

# Text (B, R) and a seed to source (B, S) and target (B, T), all ending in EOS.
Corruption = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


class CorruptionVocabulary(MaskingVocabulary, Protocol):
    """What corruption asks of a vocabulary besides what masking does.

    Attributes:
        size: V, rows of an embedding table; ids from there on are free for sentinels.
        cls_id, sep_id: they stand for the decoder's first input and for the end of a text.
    """

    size: int
    cls_id: int
    sep_id: int

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line."""


@dataclasses.dataclass(frozen=True)
class CorruptionObjective(PretrainingObjective):
    """Cross-entropy of a target given a corrupted text: base of the encoder-decoders' objectives.

    Rows are read without [CLS] and their last [SEP]; source and target end in EOS, as those of a
    translation do, and the decoder begins with BOS. A row without text gives neither.

    Attributes:
        skip_padding: as in `TranslationObjective`.

    Called with an `EncoderDecoder`; a batch of `source (B, S)` and `target (B, T)`; and
    `training`, it returns the sums of a `TranslationObjective` without smoothing.
    """

    skip_padding: bool = True
    metric_names = ("loss", "nll", "perplexity", "accuracy")

    @abc.abstractmethod
    def corruption(self, vocabulary: CorruptionVocabulary, length: int) -> Corruption:
        """What is done to texts of at most R = `length` tokens, in-graph and of static shapes."""

    def dataset(
        self,
        rows: tf.data.Dataset,
        masking: MaskingConfig,
        vocabulary: CorruptionVocabulary,
        seed: int,
        start_step: int = 0,
    ) -> tf.data.Dataset:
        """Pairs out of batches of rows: batch number i is corrupted by the seed (`seed`, i).

        Args:
            rows: of batches with `token_ids (B, L)`, `[CLS] text [SEP]`, L static.
            masking: not asked.
            vocabulary: of the ids.
            seed: decides the corruption, with the number of the batch.
            start_step: number of the first batch; micro-batches count singly.

        Raises:
            UserError: the vocabulary's [CLS] and [SEP] have other ids than BOS and EOS.
            ValueError: L is not static.
        """
        if (vocabulary.cls_id, vocabulary.sep_id) != (BOS, EOS):
            raise UserError(
                f"the vocabulary has [CLS] and [SEP] at ids {vocabulary.cls_id} and "
                f"{vocabulary.sep_id}, an encoder-decoder needs {BOS} and {EOS}: train a "
                "vocabulary here, without --vocabulary"
            )
        length = rows.element_spec["token_ids"].shape[1]
        if length is None:
            raise ValueError("token_ids has no static length: corruption needs one")
        corrupted = self.corruption(vocabulary, length - 2)

        def pair(number, batch):
            one = tf.stack([tf.constant(seed, tf.int64), number])  # (2,)
            source, target = corrupted(text_of(batch["token_ids"]), one)
            return {"source": source, "target": target}

        return map_numbered(rows, pair, start_step)

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        learnt = TranslationObjective(label_smoothing=0.0, skip_padding=self.skip_padding)
        return learnt(network, batch, training)


def text_of(token_ids: tf.Tensor) -> tf.Tensor:
    """Rows `[CLS] text [SEP]` of L tokens without those two: `(B, L) -> (B, L - 2)`."""
    texts = token_ids[:, 1:-1]
    return tf.where(token_ids[:, 2:] != PAD, texts, PAD)


def lengths_of(text: tf.Tensor) -> tf.Tensor:
    """Tokens of each text: `(B, R) -> (B,)` int32."""
    return tf.reduce_sum(tf.cast(text != PAD, tf.int32), axis=-1)


def packed(ids: tf.Tensor, keep: tf.Tensor, room: int) -> tf.Tensor:
    """Those of each row that are kept, side by side from the left.

    Args:
        ids: `(B, R)` int. keep: `(B, R)` bool, at most `room` of them True in a row.
        room: columns of the result, which is filled up with PAD.
    """
    rows = tf.shape(ids)[0]
    places = tf.cumsum(tf.cast(keep, tf.int32), axis=-1) - 1 + room * tf.range(rows)[:, None]
    # (B, R) -> (B R,) -> (B room,); what is not kept has no place
    flat = tf.reshape(tf.where(keep, places, -1), [-1])
    kept = tf.math.unsorted_segment_sum(tf.reshape(ids, [-1]), flat, rows * room)
    return tf.reshape(kept, [rows, room])


def ended(ids: tf.Tensor, real: tf.Tensor, room: int) -> tf.Tensor:
    """Texts with EOS after their last token.

    Args:
        ids: `(B, R)` int, packed to the left.
        real: `(B,)` bool, False where a row shall stay empty.
        room: columns of the result, R + 1 or those that all texts fit into with their EOS.
    """
    ids = tf.pad(ids, [[0, 0], [0, 1]])
    columns = tf.range(ids.shape[1])
    at_end = (columns == lengths_of(ids)[:, None]) & real[:, None]
    return tf.where(at_end, tf.constant(EOS, ids.dtype), ids)[:, :room]
