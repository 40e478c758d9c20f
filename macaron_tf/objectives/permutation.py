"""Permutation language modelling (XLNet): some tokens of a row, in random order."""

import math
from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.base import (
    Batch,
    MaskedPositions,
    PretrainingObjective,
    Sums,
    encoder_inputs,
    token_sums,
)
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.masking.choice import choose_spans, ngram_lengths
from macaron_tf.objectives.masking.config import MaskingVocabulary
from macaron_tf.objectives.masking.masking import maskable_tokens, static_length
from macaron_tf.settings import Positive

LONGEST_SPAN = 5


def permute_tokens(
    batch: Batch, seed: tf.Tensor, partial: float, vocabulary: MaskingVocabulary
) -> Batch:
    """Chooses the predicted tokens and their order: the same seed chooses the same.

    Of n ordinary tokens max(1, round(n / K)) are predicted, in spans of 1 to 5 that do not overlap,
    n of them with p(n) ~ 1/n as in the released code; all others are given. The predicted ones come
    last in the order of factorization, uniformly at random.

    Args:
        batch: `token_ids (B, L)` int, L static, and anything else, which is passed on.
        seed: `(2,)` int; or `(B, 2)`, one for each row.
        partial: K: one token in K is predicted.

    Returns:
        The batch with `order (B, L)` int32, -1 at given tokens and from 0 on, each number once a
        row, at predicted ones; `masked_positions (B, P)` int32, the predicted ones, ascending,
        `masked_labels (B, P)` and `masked_weights (B, P)` float32, all 0 where a row has fewer
        than P.

    Raises:
        ValueError: L is not static.

    References: Yang et al. 2019 (XLNet), section 2.3, and its released code.
    """
    token_ids = batch["token_ids"]
    length = static_length(token_ids)
    maskable = maskable_tokens(token_ids, vocabulary)  # (B, L)
    ordinary = tf.reduce_sum(tf.cast(maskable, tf.int32), axis=-1)  # (B,)
    known = [0, *(max(1, round(n / partial)) for n in range(1, length + 1))]
    counts = tf.gather(tf.constant(known), ordinary)
    for_spans, for_order = draws.split(seed, 2)
    guessed = choose_spans(
        maskable, tf.ones_like(maskable), counts, for_spans, ngram_lengths(LONGEST_SPAN)
    )
    guessed = guessed > 0  # (B, L)
    drawn = draws.uniform(for_order, tf.shape(token_ids)[0], length)
    # Ranks of the draws within a row; given tokens, with 2.0 above all draws, come last.
    ranks = tf.argsort(tf.argsort(tf.where(guessed, drawn, 2.0), stable=True), stable=True)
    room = -(-math.ceil(length / partial) // 8) * 8
    columns = tf.sort(tf.where(guessed, tf.range(length), length))
    columns = tf.pad(columns, [[0, 0], [0, max(0, room - length)]], constant_values=length)
    columns = columns[:, :room]  # (B, P)
    real = columns < length
    columns = tf.where(real, columns, 0)
    labels = tf.where(real, tf.gather(token_ids, columns, batch_dims=1), 0)
    return {
        **batch,
        "order": tf.where(guessed, ranks, -1),
        "masked_positions": columns,
        "masked_labels": labels,
        "masked_weights": tf.cast(real, tf.float32),
    }


@dataclass(frozen=True)
class PermutationObjective(PretrainingObjective):
    """Cross-entropy of predicted tokens given those before them in a random order, and the memory.

    Attributes:
        partial: K, see `permute_tokens`; 6 or 7 in the paper.

    Call arguments: `network`, a `TwoStreamModel` with `memories`, one for training and one for
    evaluation; `batch` of this objective's `dataset`, whose rows go on from batch to batch. Returns
    `token_sums`.

    References: Yang et al. 2019 (XLNet), sections 2.2 and 2.3.
    """

    partial: Positive = 6.0

    def preparation(self, spec, masking, vocabulary):
        """Permutes `stream_dataset`'s rows."""

        def permuted(batch: Batch, seed: tf.Tensor) -> Batch:
            batch = {name: batch[name] for name in batch if name != "previous_ids"}
            return permute_tokens(batch, seed, self.partial, vocabulary)

        return permuted

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        memory = network.memories["training" if training else "evaluation"]
        past = memory.read(batch["starts"])
        inputs = {name: batch[name] for name in ("order", "masked_positions")}
        _, query, past = network.two_streams(
            {**encoder_inputs(batch), **inputs}, past, training=training
        )  # query: (B, P, D)
        memory.write(past)
        masked = MaskedPositions.of(batch, self.skip_padding)
        return token_sums(
            network.masked_logits(masked.flat(query)),  # (B, P, D) -> (N, D) -> (N, V)
            masked.flat(batch["masked_labels"]),
            masked.weights,
            batch["token_ids"],
            training,
        )
