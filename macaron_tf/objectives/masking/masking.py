"""Masking: chosen tokens become [MASK], a random piece, or stay; all of them are predicted."""

import dataclasses
import functools
from typing import Annotated, ClassVar, Literal

import numpy as np
import tensorflow as tf
from annotated_types import Gt, Le

from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.masking.choice import (
    choose_spans,
    choose_tokens,
    choose_words,
    ngram_lengths,
    numbers_by_count,
    outer_boundaries,
    span_lengths,
)
from macaron_tf.settings import Count, Fraction, Settings
from macaron_tf.special_ids import PAD
from macaron_tf.text.base import PieceVocabulary

Batch = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class MaskingConfig(Settings):
    """How many tokens are masked, which, and what replaces them; the defaults are BERT's.

    Other papers' settings:
        SwishRNN: `MaskingConfig(mask=1.0, random=0.0)`.
        ALBERT: `MaskingConfig(choice="ngrams")`.
        ELECTRA: `MaskingConfig(mask=1.0, random=0.0, round_up=True)`.
        SpanBERT: `MaskingConfig(choice="spans", fate="span", round_up=True)`.

    Attributes:
        rate: share of a row's ordinary tokens that are chosen and predicted.
        mask: share of the chosen tokens that become [MASK].
        random: share of the chosen tokens that become a random piece; the others stay.
        choice: what is chosen: `"tokens"`; `"whole_words"`; `"ngrams"`, 1 to 3 whole words, n of
            them with p(n) ~ 1/n; `"spans"`, 1 to 10 whole words, geometrically distributed.
        fate: `"token"`: each token becomes [MASK] or a random piece on its own; `"span"`: all
            tokens of a span, n-gram or word together. Random pieces differ from token to token.
        round_up: mask `ceil(rate n)` of n ordinary tokens instead of the nearest number.
        duplicates: number of masks of a row, used in turn over the epochs (static masking; 10 in
            BERT's released data); None: a new mask in each epoch (dynamic masking).

    References: Devlin et al. 2018 (BERT), appendix A.1; Lan et al. 2020 (ALBERT), section 4.1;
    Joshi et al. 2020 (SpanBERT), section 3.1; Clark et al. 2020 (ELECTRA), section 2; Liu et al.
    2019 (RoBERTa), section 4.1, for static and dynamic masks.
    """

    section: ClassVar[str] = "masking"
    rate: Annotated[float, Gt(0), Le(1)] = 0.15
    mask: Fraction = 0.8
    random: Fraction = 0.1
    choice: Literal["tokens", "whole_words", "ngrams", "spans"] = "tokens"
    fate: Literal["token", "span"] = "token"
    round_up: bool = False
    duplicates: Count | None = None

    def check(self):
        if self.mask + self.random > 1:
            raise self.error(
                f"mask={self.mask} and masking.random={self.random} must add up to 1 or less"
            )

    def positions(self, length: int) -> int:
        """P, the greatest number of masked positions in a row of L tokens, a multiple of 8."""
        return multiple_of_8(int(rounded_up(self.rate, length)))

    def counts(self, length: int) -> np.ndarray:
        """Number of masked tokens among n ordinary ones, for n from 0 to L: `(L + 1,)` int32."""
        tokens = np.arange(1, length + 1)
        counts = rounded_up(self.rate, tokens) if self.round_up else np.rint(self.rate * tokens)
        return np.array([0, *np.maximum(1, counts)], np.int32)


def rounded_up(rate: float, tokens: int | np.ndarray) -> np.ndarray:
    """`ceil(rate n)` for each number of tokens n, int32."""
    # 0.07 * 100 is 7.000000000000001 in float64, and must not become 8.
    return np.ceil(rate * np.asarray(tokens) - 1e-9).astype(np.int32)


def multiple_of_8(number: int) -> int:
    """The next multiple of 8."""
    return -(-number // 8) * 8


def mask_tokens(
    batch: Batch, seed: tf.Tensor, config: MaskingConfig, vocabulary: PieceVocabulary
) -> Batch:
    """Masks tokens of a batch. Equal seeds mask the same tokens on every device.

    In a row of n ordinary tokens `max(1, round(rate n))` are masked, or with whole words at most
    that many. BERT's released code takes the rate of all tokens with [CLS] and [SEP], which at 15%
    is sometimes one token more.

    Random pieces are uniform over the ordinary ones. BERT draws from the whole vocabulary; special
    ids are left out here because a drawn [PAD] would be masked out as padding.

    Args:
        batch: `token_ids (B, L)` int, L static; other entries are passed on.
        seed: `(2,)` int, or `(B, 2)`; with a seed of its own, a row has the same mask in any batch.

    Returns:
        The batch with masked `token_ids`, and `masked_positions (B, P)` int32, ascending,
        `masked_labels (B, P)`, the original ids there, and `masked_weights (B, P)` float32. These
        three are 0 at padding, where a row has fewer than P masked tokens. With spans also
        `left_boundaries`, `right_boundaries` and `span_positions (B, P)` int32, see
        `outer_boundaries`. If the batch has `pair_label`, also `pair_weights (B,)` float32: the
        batch's masked tokens divided by its real rows, and 0 for a row of padding. Replicas that
        share the batch then weight their rows alike.

    References: Devlin et al. 2018 (BERT), section 3.1 and appendix A.1, and those of
    `MaskingConfig`.
    """
    token_ids = batch["token_ids"]
    length = static_length(token_ids)
    which, fate, pieces = draws.split(seed, 3)

    maskable = maskable_tokens(token_ids, vocabulary)  # (B, L)
    counts = numbers_by_count(config.counts(length), maskable)  # (B,)
    chosen = _chosen(config, vocabulary, token_ids, maskable, counts, which)  # (B, L)

    flat, real = flat_positions(chosen > 0, config.positions(length))  # (B, P)
    masked = masked_features(token_ids, flat, real)
    labels = masked["masked_labels"]
    number = tf.gather(tf.reshape(chosen, [-1]), flat)  # (B, P), equal within a run
    other = tf.cast(number[:, 1:] != number[:, :-1], tf.int32)
    runs = tf.pad(tf.cumsum(other, axis=-1), [[0, 0], [1, 0]])  # (B, P), from 0 on
    rows, room = tf.shape(flat)[0], flat.shape[1]
    drawn = draws.uniform(fate, rows, room)  # (B, P), in [0, 1)
    if config.fate == "span":
        drawn = tf.gather(drawn, runs, batch_dims=1)
    ordinary = np.setdiff1d(np.arange(vocabulary.pieces), _special_ids(vocabulary))
    random_pieces = tf.gather(
        tf.constant(ordinary, token_ids.dtype), draws.uniform(pieces, rows, room, len(ordinary))
    )
    replaced = tf.where(drawn < config.mask + config.random, random_pieces, labels)
    replaced = tf.where(drawn < config.mask, vocabulary.mask_id, replaced)

    more = {}
    if config.choice == "spans":
        more = outer_boundaries(runs, masked["masked_positions"], real, length)
    if "pair_label" in batch:
        rows = tf.cast(tf.reduce_any(token_ids != PAD, axis=-1), tf.float32)  # (B,)
        tokens = tf.reduce_sum(tf.cast(real, tf.float32))
        more["pair_weights"] = rows * tokens / tf.maximum(tf.reduce_sum(rows), 1.0)
    return {
        **batch,
        **masked,
        **more,
        "token_ids": put_tokens(token_ids, flat, replaced, real),
    }


def static_length(token_ids: tf.Tensor | tf.TensorSpec) -> int:
    """L of token ids `(B, L)`; raises a ValueError if L is not static."""
    if token_ids.shape[1] is None:
        raise ValueError("token_ids has no static length L, on which the masks' shapes depend")
    return token_ids.shape[1]


def _special_ids(vocabulary: PieceVocabulary) -> list[int]:
    return sorted({PAD, vocabulary.mask_id, *vocabulary.special_ids})


def maskable_tokens(token_ids: tf.Tensor, vocabulary: PieceVocabulary) -> tf.Tensor:
    """Whether each token is ordinary, that is not a special one: `(B, L)` bool."""
    special = _special_ids(vocabulary)
    return functools.reduce(tf.logical_and, [token_ids != one for one in special])


def _chosen(
    config: MaskingConfig,
    vocabulary: PieceVocabulary,
    token_ids: tf.Tensor,
    maskable: tf.Tensor,
    counts: tf.Tensor,
    seed: tf.Tensor,
) -> tf.Tensor:
    """Chooses tokens by `config.choice`: `(B, L)` int32, an equal number for a word or span."""
    if config.choice == "tokens":
        return choose_tokens(maskable, counts, seed)
    starts = tf.gather(tf.constant(vocabulary.word_starts()), token_ids)  # (B, L)
    if config.choice == "whole_words":
        return choose_words(maskable, starts, counts, seed)
    if config.choice == "ngrams":
        return choose_spans(maskable, starts, counts, seed, ngram_lengths())
    return choose_spans(maskable, starts, counts, seed, span_lengths(), apart=True)


def flat_positions(masked: tf.Tensor, room: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Indices of each row's True in the flattened `(B L,)`, ascending, and whether each is real.

    Both are `(B, P)`, P = `room`. Entries past a row's number of True are arbitrary and not real.
    """
    counts = tf.reduce_sum(tf.cast(masked, tf.int32), axis=-1)  # (B,)
    columns = tf.range(room)
    found = tf.cast(tf.where(tf.reshape(masked, [-1]))[:, 0], tf.int32)
    firsts = tf.cumsum(counts, exclusive=True)[:, None]  # (B, 1)
    flat = tf.gather(tf.pad(found, [[0, room]]), firsts + columns)
    return flat, columns < counts[:, None]


def masked_features(token_ids: tf.Tensor, flat: tf.Tensor, real: tf.Tensor) -> Batch:
    """`masked_positions`, `masked_labels` and `masked_weights` of `flat_positions (B, P)`."""
    return {
        "masked_positions": tf.where(real, flat % token_ids.shape[1], 0),
        "masked_labels": tf.where(real, tf.gather(tf.reshape(token_ids, [-1]), flat), 0),
        "masked_weights": tf.cast(real, tf.float32),
    }


def put_tokens(
    token_ids: tf.Tensor, flat: tf.Tensor, tokens: tf.Tensor, used: tf.Tensor
) -> tf.Tensor:
    """Replaces tokens at the indices `flat` into `(B L,)` where `used` is True; all `(B, P)`."""
    ids = tf.reshape(token_ids, [-1])  # (B, L) -> (B L,)
    change = tf.where(used, tokens - tf.gather(ids, flat), 0)
    changed = ids + tf.math.unsorted_segment_sum(change, flat, tf.size(ids))
    return tf.reshape(changed, tf.shape(token_ids))
