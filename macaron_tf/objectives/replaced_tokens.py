"""Replaced token detection (ELECTRA), which finds the tokens that a small generator replaced.

B is the batch size, L the row length, V the vocabulary size, P the maximum number of masked tokens
in a row, and N the number of masked tokens in a batch.
"""

from dataclasses import dataclass
from typing import Annotated

import tensorflow as tf
from annotated_types import Gt, Le
from keras import ops

from macaron_tf.models.base import encoder_inputs
from macaron_tf.models.pretraining import GeneratorDiscriminator, generator_config
from macaron_tf.objectives.base import Batch, MaskedObjective, MaskedPositions, Sums, Tensor
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.masking.masking import MaskingConfig
from macaron_tf.settings import NonNegative

_BLOCK = 128  # vocabulary entries per block in `sample`, a row of a TPU's vector register


@dataclass(frozen=True)
class ReplacedTokenObjective(MaskedObjective):
    """ELECTRA's objective: masked language modelling plus replaced token detection.

    The loss is the generator's MLM loss plus lambda times the discriminator's binary cross-entropy
    over all tokens. In the discriminator's input, each masked token is replaced by a token drawn
    from the generator's softmax. No gradient flows through the draw. A drawn token that equals the
    original counts as not replaced. [PAD] is never drawn, because the discriminator would treat the
    drawn [PAD] as padding.

    The batch contains the uniform random numbers for these draws. The draws are therefore equal in
    a resumed and an uninterrupted run, on several replicas and on one device, and in every
    evaluation. With gradient accumulation, the discriminator's loss of each micro-batch is weighted
    by its number of masked tokens, not by its number of tokens.

    Attributes:
        masking: settings of token masking.
        discriminator_weight: lambda, the weight of the discriminator's loss.
        generator_width: ratio of the generator's width to the discriminator's width.

    The network is a `GeneratorDiscriminator`. The sums are those of `token_sums` for the generator,
    with lambda times the discriminator's loss in `loss_sum`, and a sum and a weight for each metric
    of the discriminator, such as `replaced_loss_sum` and `replaced_loss_weight`. The metrics are
    `replaced_loss`, `replaced_accuracy`, `replaced_rate` (the fraction of replaced tokens),
    `replaced_recall` and `replaced_precision`. A discriminator that finds no replaced token has an
    accuracy of 1 - rate.

    References: Clark et al. 2020 (ELECTRA), section 2.
    """

    name: str = "replaced_tokens"
    masking: MaskingConfig = MaskingConfig(mask=1.0, random=0.0, round_up=True)
    discriminator_weight: NonNegative = 50.0
    generator_width: Annotated[float, Gt(0), Le(1)] = 0.25
    metric_names = (
        *MaskedObjective.metric_names,
        *("replaced_loss", "replaced_accuracy", "replaced_rate"),
        *("replaced_recall", "replaced_precision"),
    )

    def network(self, config, dtype=None) -> GeneratorDiscriminator:
        try:
            generator = generator_config(config, self.generator_width)
        except ValueError as error:
            raise self.error(f"generator_width is {self.generator_width}: {error}") from error
        return GeneratorDiscriminator(config, generator, dtype=dtype)

    def preparation(self, spec, vocabulary):
        """Returns a function that masks tokens and adds two entries to the batch.

        `sampling_draws (B, P)` float32 in [0, 1) draw the replacements. All rows of
        `token_weights (B,)` float32 have the number of masked tokens in the batch divided by that
        of real tokens, so that replicas use equal weights.
        """
        masked = super().preparation(spec, vocabulary)

        def with_draws(batch: Batch, seed: tf.Tensor) -> Batch:
            batch = masked(batch, seed)
            positions = batch["masked_positions"]
            rows, columns = tf.shape(positions)[0], positions.shape[1]
            real = tf.reduce_sum(tf.cast(batch["token_ids"] != vocabulary.special.pad, tf.float32))
            rate = tf.reduce_sum(batch["masked_weights"]) / tf.maximum(real, 1.0)
            return {
                **batch,
                # `fold_in` makes these draws independent of the draws of the masks.
                "sampling_draws": draws.uniform(draws.fold_in(seed, 1), rows, columns),
                "token_weights": tf.fill(tf.shape(batch["token_ids"])[:1], rate),
            }

        return with_draws

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        inputs, token_ids = encoder_inputs(batch), batch["token_ids"]  # (B, L)
        pad_id = network.config.pad_id
        real = ops.not_equal(token_ids, pad_id)
        masked = MaskedPositions.of(batch, self.skip_padding, pad_id)
        hidden = network.generator.hidden_states(inputs, training=training)  # (B, L, D)
        masked_hidden = masked.vectors(hidden, batch["masked_positions"])
        logits = ops.cast(network.generator.masked_logits(masked_hidden), "float32")  # (N, V)
        sums = masked.sums(logits, batch, training)

        drawn = sample(logits, masked.flat(batch["sampling_draws"]), pad_id)  # (N,)
        flat_indices = masked.flat_columns(batch["masked_positions"])
        used = masked.weights > 0
        original = put_tokens(token_ids, flat_indices, masked.flat(batch["masked_labels"]), used)
        corrupt = put_tokens(token_ids, flat_indices, ops.cast(drawn, token_ids.dtype), used)
        replaced = ops.not_equal(corrupt, original)  # (B, L)
        scores = network.replaced_logits({**inputs, "token_ids": corrupt}, training=training)
        scores = ops.cast(scores, "float32")  # (B, L)
        targets = ops.cast(replaced, "float32")
        loss = ops.where(real, ops.binary_crossentropy(targets, scores, from_logits=True), 0.0)
        loss_sum = ops.sum(loss * batch["token_weights"][:, None])
        sums["loss_sum"] += self.discriminator_weight * loss_sum

        predicted = scores > 0
        metrics = {
            "replaced_loss": (loss, real),
            "replaced_accuracy": (ops.equal(predicted, replaced), real),
            "replaced_rate": (replaced, real),
            "replaced_recall": (predicted, ops.logical_and(replaced, real)),
            "replaced_precision": (replaced, ops.logical_and(predicted, real)),
        }
        for name, (values, metric_weights) in metrics.items():
            metric_weights = ops.cast(metric_weights, "float32")
            sums[f"{name}_sum"] = ops.sum(ops.cast(values, "float32") * metric_weights)
            sums[f"{name}_weight"] = ops.sum(metric_weights)
        return sums


def put_tokens(token_ids: Tensor, flat_indices: Tensor, tokens: Tensor, used: Tensor) -> Tensor:
    """Replaces tokens of `token_ids (B, L)` at given positions, with `keras.ops`.

    `flat_indices (N,)` are indices into the flattened `(B L,)`, and `used (N,)` is False at entries
    to ignore.
    """
    ids = ops.reshape(token_ids, (-1,))  # (B, L) -> (B L,)
    change = ops.where(used, tokens - ops.take(ids, flat_indices), 0)
    changed = ids + ops.segment_sum(change, flat_indices, num_segments=ops.size(ids))
    return ops.reshape(changed, ops.shape(token_ids))


def sample(logits: Tensor, uniform: Tensor, pad_id: int = 0) -> Tensor:
    """Draws one token per row of `logits (N, V)`, except padding, by inverse transform sampling.

    It needs one `uniform (N,)` in [0, 1) per token; the Gumbel-max trick would need V. The
    cumulative sum first runs over blocks of 128 vocabulary entries, and then within one block: over
    the whole vocabulary, it can take ten times as long as the softmax. No gradient flows through
    the draw.
    """
    logits = ops.stop_gradient(logits)
    size = logits.shape[1]
    probabilities = ops.where(ops.arange(size) == pad_id, 0.0, ops.softmax(logits, axis=-1))
    probabilities = ops.pad(probabilities, [[0, 0], [0, -size % _BLOCK]])
    blocks = ops.reshape(probabilities, (-1, -(-size // _BLOCK), _BLOCK))  # (N, V) -> (N, K, 128)
    block, uniform_in_block = _draw_indices(ops.sum(blocks, axis=-1), uniform)
    drawn_blocks = ops.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]  # (N, 128)
    column, _ = _draw_indices(drawn_blocks, uniform_in_block)
    return block * _BLOCK + column


def _draw_indices(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draws one index per row of unnormalized `weights (N, K)` by inverse transform sampling.

    The second result is a new uniform number `(N,)` in [0, 1) for each row: the relative position
    of the draw within the interval of the drawn index.
    """
    sums = ops.cumsum(weights, axis=-1)
    target = uniform[:, None] * sums[:, -1:]  # (N, 1), below the total weight
    index = ops.sum(ops.cast(sums <= target, "int32"), axis=-1)
    weight, end = (
        ops.take_along_axis(values, index[:, None], axis=1)[:, 0] for values in (weights, sums)
    )
    # Rounding errors could give 1, so the result is clipped below 1.
    return index, ops.clip(1.0 - (end - target[:, 0]) / weight, 0.0, 1.0 - 2.0**-24)
