"""Masked tokens: some are hidden, exchanged or left, and all of those are asked for."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.objectives.mask_choice import ALGORITHM, choose_tokens, choose_words
from macaron_tf.special_ids import PAD


class MaskingVocabulary(Protocol):
    """What masking asks of a vocabulary.

    Attributes:
        pieces: number of real pieces, without the padding rows of an embedding table.
        mask_id: id of [MASK].
        special_ids: ids that are neither masked nor drawn: padding, [UNK], [CLS], [SEP], [MASK].
    """

    pieces: int
    mask_id: int
    special_ids: Sequence[int]

    def word_starts(self) -> np.ndarray:
        """`(V,)` bool, False where a piece continues a word; asked for by whole words only."""


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """How many tokens are asked for and what stands in their place; the defaults are BERT's.

    `MaskingConfig(mask=1.0, random=0.0)` is the plain replacement of the SwishRNN paper.

    Args:
        rate: part of a row's ordinary tokens that is asked for.
        mask: part of those that becomes [MASK].
        random: part of those that becomes a random piece; the rest stays as it is.
        whole_words: all pieces of a word or none.

    Raises:
        UserError: a field is out of its range; the sentence names the field.
    """

    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    whole_words: bool = False

    def __post_init__(self):
        for name in ("rate", "mask", "random"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= 1:
                raise UserError(f"masking: {name} must be a number from 0 to 1, not {value!r}")
        if self.rate == 0:
            raise UserError("masking: rate must be above 0, or there is nothing to learn")
        if self.mask + self.random > 1:
            raise UserError(
                f"masking: mask and random must add up to 1 or less, not {self.mask} + "
                f"{self.random}"
            )
        if type(self.whole_words) is not bool:
            raise UserError(f"masking: whole_words must be true or false, not {self.whole_words!r}")

    def positions(self, length: int) -> int:
        """P, room for the masked positions of a row of L tokens: a multiple of 8."""
        return -(-math.ceil(self.rate * length) // 8) * 8

    def counts(self, length: int) -> np.ndarray:
        """How many of n ordinary tokens are masked, `(L + 1,)` int32 for n from 0 to L."""
        counts = [max(1, round(self.rate * n)) for n in range(length + 1)]
        return np.array([0, *counts[1:]], np.int32)


def mask_tokens(
    batch: dict[str, tf.Tensor],
    seed: tf.Tensor,
    config: MaskingConfig,
    vocabulary: MaskingVocabulary,
) -> dict[str, tf.Tensor]:
    """Masks a batch: the same seed masks the same tokens, on every device.

    In a row of n ordinary tokens exactly `max(1, round(rate n))` are masked (with whole words, as
    many of these as whole words fill). BERT's released code takes the rate of all tokens, [CLS]
    and [SEP] included: at 15% of at most 3 of those, one token more at times.

    Each masked token then draws its own fate, also within a word, as in that code. Random pieces
    are uniform over the ordinary ones. BERT draws from the whole vocabulary; special ids are left
    out here, since a drawn [PAD] would hide its own position from the attention.

    Args:
        batch: `token_ids (B, L)` int, L static, and anything else, which is passed on.
        seed: `(2,)` int.
        config: how much, and what in its place.
        vocabulary: of the ids.

    Returns:
        The batch with `token_ids` replaced, and `masked_positions (B, P)` int32 in ascending
        order, `masked_labels (B, P)`, the ids that stood there, and `masked_weights (B, P)`
        float32, 0 with position and label 0 where a row has fewer than P. Where the batch has
        `next_sentence`, also `next_sentence_weights (B,)` float32: masked tokens of the batch
        for each of its rows, 0 for one that is all padding. Each row then knows its weight in
        the batch's loss, also where replicas share the batch.

    Raises:
        ValueError: L is not static.

    References: Devlin et al. 2018 (BERT), section 3.1 and appendix A.1; Liu et al. 2019 (RoBERTa),
    section 4.1, for masks drawn anew at each access.
    """
    token_ids = batch["token_ids"]
    length = token_ids.shape[1]
    if length is None:
        raise ValueError("token_ids has no static length: masking needs one for its own shapes")
    special = sorted({PAD, vocabulary.mask_id, *vocabulary.special_ids})
    which, fate, pieces = tf.unstack(tf.random.split(seed, 3, alg=ALGORITHM))

    maskable = functools.reduce(tf.logical_and, [token_ids != one for one in special])  # (B, L)
    ordinary_tokens = tf.reduce_sum(tf.cast(maskable, tf.int32), axis=-1)  # (B,)
    counts = tf.gather(tf.constant(config.counts(length)), ordinary_tokens)
    if config.whole_words:
        starts = tf.gather(tf.constant(vocabulary.word_starts()), token_ids)  # (B, L)
        masked = choose_words(maskable, starts, counts, which)
    else:
        masked = choose_tokens(maskable, counts, which)

    places, real = _places(masked, config.positions(length))  # (B, P)
    labels = tf.where(real, tf.gather(tf.reshape(token_ids, [-1]), places), 0)
    drawn = tf.random.stateless_uniform(tf.shape(places), fate, alg=ALGORITHM)  # in [0, 1)
    ordinary = np.setdiff1d(np.arange(vocabulary.pieces), special)
    random_pieces = tf.gather(
        tf.constant(ordinary, token_ids.dtype),
        tf.random.stateless_uniform(
            tf.shape(places), pieces, 0, len(ordinary), tf.int32, alg=ALGORITHM
        ),
    )
    replaced = tf.where(drawn < config.mask + config.random, random_pieces, labels)
    replaced = tf.where(drawn < config.mask, vocabulary.mask_id, replaced)
    change = tf.where(real, replaced - labels, 0)
    changes = tf.math.unsorted_segment_sum(change, places, tf.size(token_ids))

    weights = {}
    if "next_sentence" in batch:
        rows = tf.cast(tf.reduce_any(token_ids != PAD, axis=-1), tf.float32)  # (B,)
        tokens = tf.reduce_sum(tf.cast(real, tf.float32))
        weights["next_sentence_weights"] = rows * tokens / tf.maximum(tf.reduce_sum(rows), 1.0)
    return {
        **batch,
        **weights,
        "token_ids": token_ids + tf.reshape(changes, tf.shape(token_ids)),
        "masked_positions": tf.where(real, places % length, 0),
        "masked_labels": labels,
        "masked_weights": tf.cast(real, tf.float32),
    }


def masked_dataset(
    dataset: tf.data.Dataset,
    config: MaskingConfig,
    vocabulary: MaskingVocabulary,
    seed: int,
    start_step: int = 0,
) -> tf.data.Dataset:
    """Masks every batch of a dataset: batch number i with the seed (`seed`, i).

    Text that comes again is masked anew, and a run that goes on at batch `start_step` masks as
    one that never stopped. A validation set starts at 0 each time and so keeps its masks.

    Args:
        dataset: of batches with `token_ids (B, L)`, L static.
        config, vocabulary: as for `mask_tokens`.
        seed: decides the masks, with the number of the batch.
        start_step: number of the dataset's first batch; micro-batches count singly.

    Returns:
        Dataset of `mask_tokens`'s batches, of static shapes where the given ones are.
    """

    def masked(index, batch):
        pair = tf.stack([tf.constant(seed, tf.int64), index])  # (2,)
        return mask_tokens(batch, pair, config, vocabulary)

    numbers = tf.data.Dataset.counter(start_step)
    numbered = tf.data.Dataset.zip(numbers, dataset)
    return numbered.map(masked, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _places(masked: tf.Tensor, room: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Where each row is True, ascending, among all B L tokens: `(B, P)` int32, and which are real.

    Those that are not real are any place.
    """
    counts = tf.reduce_sum(tf.cast(masked, tf.int32), axis=-1)  # (B,)
    columns = tf.range(room)
    found = tf.cast(tf.where(tf.reshape(masked, [-1]))[:, 0], tf.int32)
    firsts = tf.cumsum(counts, exclusive=True)[:, None]  # (B, 1)
    places = tf.gather(tf.pad(found, [[0, room]]), firsts + columns)
    return places, columns < counts[:, None]
