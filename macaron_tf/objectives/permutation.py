"""Permutation language modelling (XLNet): the network predicts tokens of a row in random order.

B is the batch size, L the row length, and P the maximum number of predicted tokens in a row.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import tensorflow as tf
from annotated_types import Gt

from macaron_tf.models.base import encoder_inputs
from macaron_tf.models.segment_memory import TwoStreamModel
from macaron_tf.objectives.base import Batch, MaskedPositions, PretrainingObjective, Sums
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.masking import masking
from macaron_tf.settings import Count
from macaron_tf.text.base import PieceVocabulary

MAX_SPAN = 5


def permute_tokens(
    batch: Batch, seed: tf.Tensor, partial: float, vocabulary: PieceVocabulary
) -> Batch:
    """Chooses the tokens to predict in each row, and their factorization order.

    Of n > 0 tokens, without special tokens, max(1, round(n / K)) are predicted, where K is
    `partial`. They form spans of 1 to 5 tokens, of length m with probability proportional to 1/m,
    as in the released code. Spans do not overlap. The predicted tokens come after the context, in a
    uniformly random permutation.

    The batch gets `order (B, L)` int32, -1 at context and else the index in the permutation, and
    `masked_positions`, `masked_labels` and `masked_weights`, all `(B, P)`, as in `mask_tokens`, but
    with position -1 at padding, because position 0 may be predicted.

    References: Yang et al. 2019 (XLNet), section 2.3, and its released code.
    """
    token_ids = batch["token_ids"]
    length = token_ids.shape[1]
    maskable = masking.maskable_tokens(token_ids, vocabulary)  # (B, L)
    num_predicted = np.maximum(1, np.rint(np.arange(1, length + 1) / partial))
    counts = draws.lookup_by_count(np.array([0, *num_predicted], np.int32), maskable)  # (B,)
    span_seed, order_seed = draws.split(seed, 2)
    lengths = draws.ngram_lengths(MAX_SPAN)
    predicted = draws.choose_spans(maskable, tf.ones_like(maskable), counts, span_seed, lengths) > 0
    drawn = draws.uniform(order_seed, tf.shape(token_ids)[0], length)
    # Ranks of the draws within a row. Context tokens get 2.0, which is above all draws, so context
    # ranks last.
    ranks = tf.argsort(tf.argsort(tf.where(predicted, drawn, 2.0), stable=True), stable=True)
    count = -(-math.ceil(length / partial) // 8) * 8
    features, _, real = masking.masked_features(token_ids, predicted, count)
    order = tf.where(predicted, ranks, -1)  # (B, L)
    features["masked_positions"] = tf.where(real, features["masked_positions"], -1)
    return {**batch, "order": order, **features}


@dataclass(frozen=True)
class PermutationObjective(PretrainingObjective):
    """XLNet's permutation language modelling objective, with memory.

    The loss is the mean cross-entropy of the predicted tokens. Each token is predicted given the
    memory and the tokens before it in a random factorization order. The network is a
    `TwoStreamModel` with the memories `training` and `evaluation`. Row b of a batch continues row b
    of the previous batch, unless `starts (B,)` is True for the row. The sums are those of
    `token_sums`.

    Attributes:
        partial: K of partial prediction. About one of every K tokens is predicted. The paper uses 6
            and 7.
        memory_length: number of positions in earlier rows that attention can see.
        bidirectional: whether to read every text in both directions, as XLNet does. Half of the
            rows of an update then read the texts of the other rows backward.

    References: Yang et al. 2019 (XLNet), sections 2.2 and 2.3.
    """

    has_memory = True

    name: str = "permutation_language"
    partial: Annotated[float, Gt(1)] = 6.0
    memory_length: Count = 128
    bidirectional: bool = False

    def network(self, config, dtype=None) -> TwoStreamModel:
        return TwoStreamModel(config, self.memory_length, dtype=dtype)

    def preparation(self, spec, vocabulary):
        """Returns a function that applies `permute_tokens` to a batch, without `previous_ids`."""

        def permuted(batch: Batch, seed: tf.Tensor) -> Batch:
            batch = {name: batch[name] for name in batch if name != "previous_ids"}
            return permute_tokens(batch, seed, self.partial, vocabulary)

        return permuted

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        memory = network.memories["training" if training else "evaluation"]
        past = memory.read(batch["starts"])
        names = ("order", "masked_positions", "backward")
        inputs = {**encoder_inputs(batch), **{n: batch[n] for n in names if n in batch}}
        _, query, past = network.two_streams(inputs, past, training=training)  # query: (B, P, D)
        memory.write(past)
        masked = MaskedPositions.of(batch, self.skip_padding, network.config.pad_id)
        logits = network.logits(masked.flat(query))  # (B, P, D) -> (N, D) -> (N, V)
        return masked.sums(logits, batch, training)
