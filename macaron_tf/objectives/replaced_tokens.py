"""What ELECTRA learns: which tokens a small generator has put in the place of the real ones."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.base import (
    MaskedPlaces,
    PretrainingObjective,
    encoder_inputs,
    token_sums,
)
from macaron_tf.objectives.masking import choice as draws
from macaron_tf.objectives.masking.config import MaskingConfig, MaskingVocabulary
from macaron_tf.objectives.masking.masking import map_numbered
from macaron_tf.special_ids import PAD

_BLOCK = 128  # of the vocabulary: a row of a TPU's registers


@dataclass(frozen=True)
class ReplacedTokenObjective(PretrainingObjective):
    """The generator's mean loss over masked tokens + 50 times the discriminator's over all.

    The discriminator reads the text with a token drawn from the generator's softmax at each
    masked position; no gradient flows through the draw, and one that equals the token it stands
    for counts as real. The numbers that decide come with the batch: a run that goes on draws as
    one that never stopped, replicas as one device, and an evaluation the same each time. [PAD] is
    never drawn, as it would hide its own position. Over several micro-batches the discriminator's
    mean weights each by its masked tokens.

    Attributes:
        discriminator_weight: lambda.
        skip_padding: as in `MaskedLanguageObjective`.

    Call arguments: `network`, a `GeneratorDiscriminator`; `batch` of `encoder_inputs` and what
    `dataset` makes; `training`. Returns float32 sums over the batch: `loss_sum`, `weight` (the
    number of masked tokens), `nll_sum` (nats) and, outside training, `correct_sum` of the
    generator; `input_tokens`; `replaced_loss_sum` and `replaced_accuracy_sum` of the discriminator,
    `replaced_rate_sum` (the part of the tokens that is replaced: always saying "real" has an
    accuracy of 1 less that), `replaced_recall_sum` and `replaced_precision_sum`, each with its
    `_weight`.

    References: Clark et al. 2020 (ELECTRA), section 2.
    """

    discriminator_weight: float = 50.0
    skip_padding: bool = True
    metric_names = (
        "loss",
        "nll",
        "perplexity",
        "accuracy",
        "replaced_loss",
        "replaced_accuracy",
        "replaced_rate",
        "replaced_recall",
        "replaced_precision",
    )

    def dataset(
        self,
        rows: tf.data.Dataset,
        masking: MaskingConfig,
        vocabulary: MaskingVocabulary,
        seed: int,
        start_step: int = 0,
    ) -> tf.data.Dataset:
        """Masked batches of `masked_dataset`, and what to sample with.

        Returns:
            With `sampling_draws (B, P)` float32 in [0, 1), one for each masked position, and
            `token_weights (B,)` float32: masked tokens of the batch for each of its real tokens.
            A row then knows its weight in the batch's loss, also where replicas share the batch.
        """

        def with_draws(index, batch):
            # Apart from the masks' draws, which come from the pair itself.
            seeds = draws.fold_in(tf.stack([tf.constant(seed, tf.int64), index]), 1)
            rows, room = tf.shape(batch["masked_positions"])[0], batch["masked_positions"].shape[1]
            real = tf.reduce_sum(tf.cast(batch["token_ids"] != PAD, tf.float32))
            rate = tf.reduce_sum(batch["masked_weights"]) / tf.maximum(real, 1.0)
            return {
                **batch,
                "sampling_draws": draws.uniform(seeds, rows, room),
                "token_weights": tf.fill(tf.shape(batch["token_ids"])[:1], rate),
            }

        masked = super().dataset(rows, masking, vocabulary, seed, start_step)
        return map_numbered(masked, with_draws, start_step)

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        inputs, token_ids = encoder_inputs(batch), batch["token_ids"]  # (B, L)
        real = token_ids != PAD
        masked = MaskedPlaces.of(batch, self.skip_padding)
        hidden = network.generator.hidden_states(inputs, training=training)  # (B, L, D)
        at = masked.vectors(hidden, batch["masked_positions"])
        logits = tf.cast(network.generator.masked_logits(at), tf.float32)  # (N, V)
        labels = masked.flat(batch["masked_labels"])
        sums = token_sums(logits, labels, masked.weights, real, training)

        drawn = sample(logits, masked.flat(batch["sampling_draws"]))  # (N,)
        places = masked.tokens(batch["masked_positions"])
        original = _put(token_ids, places, labels, masked.weights)
        corrupt = _put(token_ids, places, tf.cast(drawn, labels.dtype), masked.weights)
        replaced = corrupt != original  # (B, L)
        answers = network.replaced_logits({**inputs, "token_ids": corrupt}, training=training)
        answers = tf.cast(answers, tf.float32)  # (B, L)
        loss = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(replaced, tf.float32), answers)
        loss = tf.where(real, loss, 0.0)
        loss_sum = tf.reduce_sum(loss * batch["token_weights"][:, None])
        sums["loss_sum"] += self.discriminator_weight * loss_sum

        said = answers > 0
        counted = {
            "replaced_loss": (loss, real),
            "replaced_accuracy": (said == replaced, real),
            "replaced_rate": (replaced, real),
            "replaced_recall": (said, replaced & real),
            "replaced_precision": (replaced, said & real),
        }
        for name, (values, among) in counted.items():
            among = tf.cast(among, tf.float32)
            sums[f"{name}_sum"] = tf.reduce_sum(tf.cast(values, tf.float32) * among)
            sums[f"{name}_weight"] = tf.reduce_sum(among)
        return sums


def sample(logits: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """One token from each softmax, PAD left out: where its cumulative sum passes the draw.

    One number a sample in place of the V of Gumbel's way, and so few that a batch can bring them.
    The sum is taken over blocks, then within one: running over all of V takes ten times as long as
    the softmax.

    Args:
        logits: `(N, V)` float32.
        uniform: `(N,)` float32 in [0, 1).

    Returns:
        `(N,)` int32, without a gradient.
    """
    logits = tf.stop_gradient(logits)
    size = logits.shape[1]
    shares = tf.exp(logits - tf.reduce_max(logits, axis=-1, keepdims=True))
    shares = tf.where(tf.range(size) == PAD, 0.0, shares)
    # (N, V) -> (N, K, 128)
    blocks = tf.reshape(
        tf.pad(shares, [[0, 0], [0, -size % _BLOCK]]), (-1, -(-size // _BLOCK), _BLOCK)
    )
    block, rest = _passed(tf.reduce_sum(blocks, axis=-1), uniform)
    # (N, 128)
    place, _ = _passed(tf.gather(blocks, block, batch_dims=1), rest)
    return block * _BLOCK + place


def _passed(shares: tf.Tensor, uniform: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Which of `(N, K)` shares holds the draw `(N,)`, and where in it, from 0 to 1: `(N,)` each."""
    sums = tf.cumsum(shares, axis=-1)
    target = uniform[:, None] * sums[:, -1:]  # (N, 1), below the whole
    at = tf.reduce_sum(tf.cast(sums <= target, tf.int32), axis=-1)
    share, end = (tf.gather(values, at, batch_dims=1) for values in (shares, sums))
    # Rounding could bring it to 1, and out of the share.
    return at, tf.clip_by_value(1.0 - (end - target[:, 0]) / share, 0.0, 1.0 - 2.0**-24)


def _put(
    token_ids: tf.Tensor, places: tf.Tensor, tokens: tf.Tensor, weights: tf.Tensor
) -> tf.Tensor:
    """Tokens `(N,)` at places of the batch laid out as `(B L,)`, but where the weight is 0."""
    flat = tf.reshape(token_ids, (-1,))  # (B, L) -> (B L,)
    change = tf.where(weights > 0, tokens - tf.gather(flat, places), 0)
    changes = tf.math.unsorted_segment_sum(change, places, tf.size(flat))
    return tf.reshape(flat + changes, tf.shape(token_ids))
