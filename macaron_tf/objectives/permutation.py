"""Permutation language modelling (XLNet): tokens of a row are predicted in random order."""

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from macaron_tf.models.base import encoder_inputs
from macaron_tf.objectives.base import (
    Batch,
    MaskedPositions,
    PretrainingObjective,
    Sums,
)
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.masking.choice import choose_spans, ngram_lengths, numbers_by_count
from macaron_tf.objectives.masking.masking import (
    flat_positions,
    maskable_tokens,
    masked_features,
    multiple_of_8,
    static_length,
)
from macaron_tf.settings import Positive
from macaron_tf.text.base import PieceVocabulary

LONGEST_SPAN = 5


def permute_tokens(
    batch: Batch, seed: tf.Tensor, partial: float, vocabulary: PieceVocabulary
) -> Batch:
    """Chooses the predicted tokens of each row and the order in which they are predicted.

    Of n ordinary tokens max(1, round(n / K)) are predicted, in spans that do not overlap. A span
    has m = 1 to 5 tokens with probability proportional to 1/m, as in the released code. The other
    tokens are context. The predicted tokens come last in the factorization order, in a uniformly
    random permutation. Equal seeds give equal choices.

    Args:
        batch, seed: see `mask_tokens`.
        partial: K: one token in K is predicted.

    Returns:
        The batch with `order (B, L)` int32, -1 at context and 0, 1, ... at predicted tokens, and
        the `masked_features (B, P)` of the predicted tokens. Padding among these has position -1,
        not 0, because a row may begin with a predicted token.

    References: Yang et al. 2019 (XLNet), section 2.3, and its released code.
    """
    token_ids = batch["token_ids"]
    length = static_length(token_ids)
    maskable = maskable_tokens(token_ids, vocabulary)  # (B, L)
    predicted = np.maximum(1, np.rint(np.arange(1, length + 1) / partial))
    counts = numbers_by_count(np.array([0, *predicted], np.int32), maskable)  # (B,)
    for_spans, for_order = draws.split(seed, 2)
    lengths = ngram_lengths(LONGEST_SPAN)
    guessed = choose_spans(maskable, tf.ones_like(maskable), counts, for_spans, lengths) > 0
    drawn = draws.uniform(for_order, tf.shape(token_ids)[0], length)
    # Ranks of the draws within a row. Context has 2.0, above all draws, so it ranks last.
    ranks = tf.argsort(tf.argsort(tf.where(guessed, drawn, 2.0), stable=True), stable=True)
    flat, real = flat_positions(guessed, multiple_of_8(math.ceil(length / partial)))  # (B, P)
    order = tf.where(guessed, ranks, -1)  # (B, L)
    features = masked_features(token_ids, flat, real)
    features["masked_positions"] = tf.where(real, features["masked_positions"], -1)
    return {**batch, "order": order, **features}


@dataclass(frozen=True)
class PermutationObjective(PretrainingObjective):
    """XLNet's loss: cross-entropy of tokens given the memory and those before in a random order.

    Attributes:
        partial: K, see `permute_tokens`; 6 or 7 in the paper.

    Call arguments: `network`, a `TwoStreamModel` with two `memories`, one for training and one for
    evaluation; `batch` of this objective's `dataset`, where row b of a batch continues row b of the
    batch before. Returns `token_sums`.

    References: Yang et al. 2019 (XLNet), sections 2.2 and 2.3.
    """

    learns = "permutation_language"
    has_memory = True

    partial: Positive = 6.0

    def preparation(self, spec, masking, vocabulary):
        """Returns the function that applies `permute_tokens` to a batch of `stream_dataset`."""

        def permuted(batch: Batch, seed: tf.Tensor) -> Batch:
            batch = {name: batch[name] for name in batch if name != "previous_ids"}
            return permute_tokens(batch, seed, self.partial, vocabulary)

        return permuted

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        memory = network.memories["training" if training else "evaluation"]
        past = memory.read(batch["starts"])
        inputs = {n: batch[n] for n in ("order", "masked_positions", "backward") if n in batch}
        _, query, past = network.two_streams(
            {**encoder_inputs(batch), **inputs}, past, training=training
        )  # query: (B, P, D)
        memory.write(past)
        masked = MaskedPositions.of(batch, self.skip_padding)
        logits = network.logits(masked.flat(query))  # (B, P, D) -> (N, D) -> (N, V)
        return masked.sums(logits, batch, training)
