"""What XLNet learns: some tokens of a row, in random order, each from those before it in it."""

import functools
import math
from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.base import (
    MaskedPlaces,
    PretrainingObjective,
    encoder_inputs,
    token_sums,
)
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.masking.choice import choose_spans, ngram_lengths
from macaron_tf.objectives.masking.config import MaskingConfig, MaskingVocabulary
from macaron_tf.objectives.masking.masking import map_numbered
from macaron_tf.special_ids import PAD

LONGEST_SPAN = 5


def permute_tokens(
    batch: dict[str, tf.Tensor],
    seed: tf.Tensor,
    partial: float,
    vocabulary: MaskingVocabulary,
) -> dict[str, tf.Tensor]:
    """Chooses what is guessed and in which order: the same seed chooses the same.

    Of n ordinary tokens max(1, round(n / K)) are guessed, in spans of 1 to 5 that do not overlap,
    n of them with p(n) ~ 1/n as in the released code; all others are given. What is guessed comes
    last in the order of factorization, uniformly at random.

    Args:
        batch: `token_ids (B, L)` int, L static, and anything else, which is passed on.
        seed: `(2,)` int; or `(B, 2)`, one for each row.
        partial: K: one token in so many.
        vocabulary: of the ids.

    Returns:
        The batch with `order (B, L)` int32, -1 at what is given, and from 0 on, each number once a
        row, at what is guessed; and of what is guessed `masked_positions (B, P)` int32, ascending,
        `masked_labels (B, P)` and `masked_weights (B, P)` float32, all 0 where a row has fewer
        than P.

    Raises:
        ValueError: L is not static.

    References: Yang et al. 2019 (XLNet), section 2.3, and its released code.
    """
    token_ids = batch["token_ids"]
    length = token_ids.shape[1]
    if length is None:
        raise ValueError("token_ids has no static length: permuting needs one for its own shapes")
    special = sorted({PAD, vocabulary.mask_id, *vocabulary.special_ids})
    maskable = functools.reduce(tf.logical_and, [token_ids != one for one in special])  # (B, L)
    ordinary = tf.reduce_sum(tf.cast(maskable, tf.int32), axis=-1)  # (B,)
    known = [0, *(max(1, round(n / partial)) for n in range(1, length + 1))]
    counts = tf.gather(tf.constant(known), ordinary)
    for_spans, for_order = draws.split(seed, 2)
    guessed = choose_spans(
        maskable, tf.ones_like(maskable), counts, for_spans, ngram_lengths(LONGEST_SPAN)
    )
    guessed = guessed > 0  # (B, L)
    drawn = draws.uniform(for_order, tf.shape(token_ids)[0], length)
    # The place of each number among the row's, those of what is given, above 1, coming last.
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
    """Cross-entropy of guessed tokens given those before them in a random order, and the memory.

    Attributes:
        partial: K, see `permute_tokens`; 6 or 7 in the paper.
        skip_padding: as in `MaskedLanguageObjective`.

    Call arguments: `network`, a `TwoStreamModel` with `memories`, of which it uses the one for
    training or the one for evaluation; `batch` of this objective's `dataset`, whose rows go on
    from batch to batch; `training`. Returns float32 sums over the batch as
    `MaskedLanguageObjective`.

    References: Yang et al. 2019 (XLNet), sections 2.2 and 2.3.
    """

    partial: float = 6.0
    skip_padding: bool = True
    metric_names = ("loss", "nll", "perplexity", "accuracy")

    def dataset(
        self,
        rows: tf.data.Dataset,
        masking: MaskingConfig,
        vocabulary: MaskingVocabulary,
        seed: int,
        start_step: int = 0,
    ) -> tf.data.Dataset:
        """Batch number i of `stream_dataset`'s rows, permuted with the seed (`seed`, i)."""

        def permuted(index, batch):
            batch = {name: batch[name] for name in batch if name != "previous_ids"}
            seeds = tf.stack([tf.constant(seed, tf.int64), index])
            return permute_tokens(batch, seeds, self.partial, vocabulary)

        return map_numbered(rows, permuted, start_step)

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        memory = network.memories["training" if training else "evaluation"]
        past = memory.read(batch["starts"])
        inputs = {name: batch[name] for name in ("order", "masked_positions")}
        _, query, past = network.two_streams(
            {**encoder_inputs(batch), **inputs}, past, training=training
        )
        memory.write(past)
        masked = MaskedPlaces.of(batch, self.skip_padding)
        # (B, P, D) -> (B P, D) -> (N, D)
        query = tf.reshape(query, (-1, query.shape[-1]))
        if masked.used is not None:
            query = tf.gather(query, masked.used)
        return token_sums(
            network.masked_logits(query),
            masked.flat(batch["masked_labels"]),
            masked.weights,
            real=batch["token_ids"] != PAD,
            training=training,
        )
