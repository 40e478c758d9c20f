"""Replaced token detection (ELECTRA): find the tokens that a small generator replaced."""

from dataclasses import dataclass

import tensorflow as tf
from keras import ops

from macaron_tf.models.base import encoder_inputs
from macaron_tf.objectives.base import (
    Batch,
    MaskedPositions,
    PretrainingObjective,
    Sums,
    Tensor,
)
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.settings import NonNegative
from macaron_tf.special_ids import PAD

_BLOCK = 128  # vocabulary entries that are summed together: a row of a TPU's registers


@dataclass(frozen=True)
class ReplacedTokenObjective(PretrainingObjective):
    """ELECTRA's loss: the generator's MLM loss + lambda times the discriminator's over all tokens.

    The discriminator reads the text with a token drawn from the generator's softmax at each masked
    position. No gradient flows through the draw, and a drawn token that equals the original counts
    as original. [PAD] is never drawn: it would be masked out as padding.

    The uniform numbers behind the draws come with the batch. A resumed run therefore draws as an
    uninterrupted one, several replicas as one device, and each evaluation the same. Over several
    micro-batches, the discriminator's mean weights each micro-batch by its masked tokens.

    Attributes:
        discriminator_weight: lambda.

    Call arguments: `network`, a `GeneratorDiscriminator`; `batch` of `encoder_inputs` and of this
    objective's `dataset`. Returns `token_sums` of the generator, and of the discriminator
    `replaced_loss_sum`, `replaced_accuracy_sum`, `replaced_rate_sum`, `replaced_recall_sum` and
    `replaced_precision_sum`, each with its `_weight`. The rate is the share of replaced tokens; a
    discriminator that finds none has an accuracy of 1 - rate.

    References: Clark et al. 2020 (ELECTRA), section 2.
    """

    learns = "replaced_tokens"
    fills_masks = True

    discriminator_weight: NonNegative = 50.0
    metric_names = (
        *PretrainingObjective.metric_names,
        "replaced_loss",
        "replaced_accuracy",
        "replaced_rate",
        "replaced_recall",
        "replaced_precision",
    )

    def preparation(self, spec, masking, vocabulary):
        """Masks a batch and adds the generator's uniform draws and the discriminator's weights.

        `sampling_draws (B, P)` float32 has a number in [0, 1) for each masked position.
        `token_weights (B,)` float32 is the batch's masked tokens divided by its real tokens, in
        each row: replicas that share the batch then weight their rows alike.
        """
        masked = super().preparation(spec, masking, vocabulary)

        def with_draws(batch: Batch, seed: tf.Tensor) -> Batch:
            batch = masked(batch, seed)
            rows, room = tf.shape(batch["masked_positions"])[0], batch["masked_positions"].shape[1]
            real = tf.reduce_sum(tf.cast(batch["token_ids"] != PAD, tf.float32))
            rate = tf.reduce_sum(batch["masked_weights"]) / tf.maximum(real, 1.0)
            return {
                **batch,
                # Folded in, so that the draws differ from those of the masks.
                "sampling_draws": draws.uniform(draws.fold_in(seed, 1), rows, room),
                "token_weights": tf.fill(tf.shape(batch["token_ids"])[:1], rate),
            }

        return with_draws

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        inputs, token_ids = encoder_inputs(batch), batch["token_ids"]  # (B, L)
        real = ops.not_equal(token_ids, PAD)
        masked = MaskedPositions.of(batch, self.skip_padding)
        hidden = network.generator.hidden_states(inputs, training=training)  # (B, L, D)
        at = masked.vectors(hidden, batch["masked_positions"])
        logits = ops.cast(network.generator.masked_logits(at), "float32")  # (N, V)
        sums = masked.sums(logits, batch, training)

        drawn = sample(logits, masked.flat(batch["sampling_draws"]))  # (N,)
        at = masked.flat_columns(batch["masked_positions"])
        used = masked.weights > 0
        original = put_tokens(token_ids, at, masked.flat(batch["masked_labels"]), used)
        corrupt = put_tokens(token_ids, at, ops.cast(drawn, token_ids.dtype), used)
        replaced = ops.not_equal(corrupt, original)  # (B, L)
        answers = network.replaced_logits({**inputs, "token_ids": corrupt}, training=training)
        answers = ops.cast(answers, "float32")  # (B, L)
        targets = ops.cast(replaced, "float32")
        loss = ops.binary_crossentropy(targets, answers, from_logits=True)
        loss = ops.where(real, loss, 0.0)
        loss_sum = ops.sum(loss * batch["token_weights"][:, None])
        sums["loss_sum"] += self.discriminator_weight * loss_sum

        said = answers > 0
        counted = {
            "replaced_loss": (loss, real),
            "replaced_accuracy": (ops.equal(said, replaced), real),
            "replaced_rate": (replaced, real),
            "replaced_recall": (said, ops.logical_and(replaced, real)),
            "replaced_precision": (replaced, ops.logical_and(said, real)),
        }
        for name, (values, among) in counted.items():
            among = ops.cast(among, "float32")
            sums[f"{name}_sum"] = ops.sum(ops.cast(values, "float32") * among)
            sums[f"{name}_weight"] = ops.sum(among)
        return sums


def put_tokens(token_ids: Tensor, flat: Tensor, tokens: Tensor, used: Tensor) -> Tensor:
    """`masking.put_tokens` in `keras.ops`."""
    ids = ops.reshape(token_ids, (-1,))  # (B, L) -> (B L,)
    change = ops.where(used, tokens - ops.take(ids, flat), 0)
    changed = ids + ops.segment_sum(change, flat, num_segments=ops.size(ids))
    return ops.reshape(changed, ops.shape(token_ids))


def sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """Draws one token from each softmax, except PAD, by inverting its cumulative distribution.

    This needs one uniform number a token, where Gumbel's method needs V. The cumulative sum runs
    over blocks of the vocabulary and then within one block; over all of V it would take ten times
    as long as the softmax. No gradient flows.

    Args:
        logits: `(N, V)` float32.
        uniform: `(N,)` float32 in [0, 1).

    Returns:
        `(N,)` int32.
    """
    logits = ops.stop_gradient(logits)
    size = logits.shape[1]
    shares = ops.where(ops.arange(size) == PAD, 0.0, ops.softmax(logits, axis=-1))
    # (N, V) -> (N, K, 128)
    blocks = ops.reshape(
        ops.pad(shares, [[0, 0], [0, -size % _BLOCK]]), (-1, -(-size // _BLOCK), _BLOCK)
    )
    block, rest = _passed(ops.sum(blocks, axis=-1), uniform)
    # (N, 128)
    column, _ = _passed(ops.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0], rest)
    return block * _BLOCK + column


def _passed(shares: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Samples an index of each row of weights `(N, K)` by inverting the cumulative distribution.

    Weights need not add up to 1.

    Returns:
        The index `(N,)`, and where in the index's interval the draw lies, `(N,)` in [0, 1).
    """
    sums = ops.cumsum(shares, axis=-1)
    target = uniform[:, None] * sums[:, -1:]  # (N, 1), below the whole
    at = ops.sum(ops.cast(sums <= target, "int32"), axis=-1)
    share, end = (
        ops.take_along_axis(values, at[:, None], axis=1)[:, 0] for values in (shares, sums)
    )
    # Rounding could give 1, outside of the share.
    return at, ops.clip(1.0 - (end - target[:, 0]) / share, 0.0, 1.0 - 2.0**-24)
