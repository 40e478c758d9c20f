"""Masked tokens: some are hidden, exchanged or left, and all of those are asked for."""

import functools

import numpy as np
import tensorflow as tf

from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.masking.choice import (
    choose_spans,
    choose_tokens,
    choose_words,
    ngram_lengths,
    outer_boundaries,
    span_lengths,
)
from macaron_tf.objectives.masking.config import MaskingConfig, MaskingVocabulary
from macaron_tf.special_ids import PAD


def mask_tokens(
    batch: dict[str, tf.Tensor],
    seed: tf.Tensor,
    config: MaskingConfig,
    vocabulary: MaskingVocabulary,
) -> dict[str, tf.Tensor]:
    """Masks a batch: the same seed masks the same tokens, on every device.

    In a row of n ordinary tokens exactly `max(1, round(rate n))` are masked (of whole words, as
    many as these fill). BERT's released code takes the rate of all tokens, [CLS] and [SEP]
    included: at 15% of at most 3 of those, one token more at times.

    Random pieces are uniform over the ordinary ones. BERT draws from the whole vocabulary; special
    ids are left out here, since a drawn [PAD] would hide its own position from the attention.

    Args:
        batch: `token_ids (B, L)` int, L static, and anything else, which is passed on.
        seed: `(2,)` int; or `(B, 2)`, one for each row, whose masks then follow from it alone.
        config: how much, and what in its place.
        vocabulary: of the ids.

    Returns:
        The batch with `token_ids` replaced, and `masked_positions (B, P)` int32 in ascending
        order, `masked_labels (B, P)`, the ids that stood there, and `masked_weights (B, P)`
        float32, 0 with position and label 0 where a row has fewer than P. With spans also
        `left_boundaries`, `right_boundaries` and `span_places (B, P)` int32 of `outer_boundaries`.
        Where the batch has `pair_label`, also `pair_weights (B,)` float32: masked tokens of the
        batch for each of its rows, 0 for one that is all padding. Each row then knows its weight
        in the batch's loss, also where replicas share the batch.

    Raises:
        ValueError: L is not static.

    References: Devlin et al. 2018 (BERT), section 3.1 and appendix A.1, and those of
    `MaskingConfig`.
    """
    token_ids = batch["token_ids"]
    length = token_ids.shape[1]
    if length is None:
        raise ValueError("token_ids has no static length: masking needs one for its own shapes")
    special = sorted({PAD, vocabulary.mask_id, *vocabulary.special_ids})
    which, fate, pieces = draws.split(seed, 3)

    maskable = functools.reduce(tf.logical_and, [token_ids != one for one in special])  # (B, L)
    ordinary_tokens = tf.reduce_sum(tf.cast(maskable, tf.int32), axis=-1)  # (B,)
    counts = tf.gather(tf.constant(config.counts(length)), ordinary_tokens)
    chosen = _chosen(config, vocabulary, token_ids, maskable, counts, which)  # (B, L)

    places, real = _places(chosen > 0, config.positions(length))  # (B, P)
    labels = tf.where(real, tf.gather(tf.reshape(token_ids, [-1]), places), 0)
    runs = _runs(tf.gather(tf.reshape(chosen, [-1]), places))  # (B, P)
    rows, room = tf.shape(places)[0], places.shape[1]
    drawn = draws.uniform(fate, rows, room)  # (B, P), in [0, 1)
    if config.fate == "span":
        drawn = tf.gather(drawn, runs, batch_dims=1)
    ordinary = np.setdiff1d(np.arange(vocabulary.pieces), special)
    random_pieces = tf.gather(
        tf.constant(ordinary, token_ids.dtype), draws.uniform(pieces, rows, room, len(ordinary))
    )
    replaced = tf.where(drawn < config.mask + config.random, random_pieces, labels)
    replaced = tf.where(drawn < config.mask, vocabulary.mask_id, replaced)
    change = tf.where(real, replaced - labels, 0)
    changes = tf.math.unsorted_segment_sum(change, places, tf.size(token_ids))
    columns = tf.where(real, places % length, 0)

    more = {}
    if config.choice == "spans":
        more = outer_boundaries(runs, columns, real, length)
    if "pair_label" in batch:
        rows = tf.cast(tf.reduce_any(token_ids != PAD, axis=-1), tf.float32)  # (B,)
        tokens = tf.reduce_sum(tf.cast(real, tf.float32))
        more["pair_weights"] = rows * tokens / tf.maximum(tf.reduce_sum(rows), 1.0)
    return {
        **batch,
        **more,
        "token_ids": token_ids + tf.reshape(changes, tf.shape(token_ids)),
        "masked_positions": columns,
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
    one that never stopped. A validation set starts at 0 each time and so keeps its masks. With
    `config.duplicates`, K of them, row r is masked in epoch e by `seed`, r and e mod K instead.

    Args:
        dataset: of batches with `token_ids (B, L)`, L static; for static masks also `row_number`
            and `epoch (B,)` int, which are taken out.
        config, vocabulary: as for `mask_tokens`.
        seed: decides the masks, with the number of the batch.
        start_step: number of the dataset's first batch; micro-batches count singly.

    Returns:
        Dataset of `mask_tokens`'s batches, of static shapes where the given ones are.

    Raises:
        ValueError: static masks are wanted of rows without number or epoch.
    """

    def masked(index, batch):
        seeds = tf.stack([tf.constant(seed, tf.int64), index])  # (2,)
        if config.duplicates:
            batch = dict(batch)
            row, epoch = (tf.cast(batch.pop(name), tf.int64) for name in ("row_number", "epoch"))
            copy = row * config.duplicates + epoch % config.duplicates  # (B,)
            seeds = tf.stack([tf.fill(tf.shape(copy), seeds[0]), copy], axis=1)  # (B, 2)
        return mask_tokens(batch, seeds, config, vocabulary)

    if config.duplicates:
        missing = {"row_number", "epoch"} - set(dataset.element_spec)
        if missing:
            raise ValueError(f"static masks need {' and '.join(sorted(missing))} in every batch")
    return map_numbered(dataset, masked, start_step)


def map_numbered(dataset: tf.data.Dataset, function, start_step: int = 0) -> tf.data.Dataset:
    """`function(number, batch)` of every batch, in order; the first one's number is given."""
    numbered = tf.data.Dataset.zip(tf.data.Dataset.counter(start_step), dataset)
    return numbered.map(function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _chosen(
    config: MaskingConfig,
    vocabulary: MaskingVocabulary,
    token_ids: tf.Tensor,
    maskable: tf.Tensor,
    counts: tf.Tensor,
    seed: tf.Tensor,
) -> tf.Tensor:
    """What the configuration chooses: `(B, L)` int32, as `mask_choice` says."""
    if config.choice == "tokens":
        return choose_tokens(maskable, counts, seed)
    starts = tf.gather(tf.constant(vocabulary.word_starts()), token_ids)  # (B, L)
    if config.choice == "whole_words":
        return choose_words(maskable, starts, counts, seed)
    if config.choice == "ngrams":
        return choose_spans(maskable, starts, counts, seed, ngram_lengths())
    return choose_spans(maskable, starts, counts, seed, span_lengths(), apart=True)


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


def _runs(chosen: tf.Tensor) -> tf.Tensor:
    """Which run of equal numbers of its row each place is in, from 0 on: `(B, P)` int32."""
    other = tf.cast(chosen[:, 1:] != chosen[:, :-1], tf.int32)
    return tf.pad(tf.cumsum(other, axis=-1), [[0, 0], [1, 0]])
