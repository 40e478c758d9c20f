"""What an encoder learns first: masked tokens and, if asked, whether sentences belong together."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.encoder_inputs import encoder_inputs
from macaron_tf.special_ids import PAD


@dataclass(frozen=True)
class MaskedLanguageObjective:
    """Cross-entropy of the masked tokens, plus that of the next sentence where asked for.

    Only masked positions reach the vocabulary projection: at 15% a seventh of its work. The two
    losses are means, each over its own count, and are added: BERT's loss. Over several
    micro-batches the mean of the next sentence weights each by its masked tokens.

    Attributes:
        next_sentence: learn the label `next_sentence` as well.
        skip_padding: leave out the unused ones of the P positions before the projection. The
            number of rows is then dynamic: set False where shapes must be static (XLA, TPU); the
            result is the same.

    Call arguments: `network`, a `PretrainingEncoder`; `batch` of `token_ids (B, L)`, optionally
    `segment_ids (B, L)`, `masked_positions`, `masked_labels` and `masked_weights (B, P)`, and
    with `next_sentence` also `next_sentence (B,)`, 0 = follows, 1 = from elsewhere, and
    `next_sentence_weights (B,)` (see `mask_tokens`); `training`.
    Returns float32 sums over the batch: `loss_sum`, `weight` (the number of masked tokens),
    `nll_sum` (nats, of the masked tokens alone), `input_tokens` (real tokens), outside training
    `correct_sum` (masked tokens predicted right), and with `next_sentence` also
    `next_sentence_sum` (nats) and `next_sentence_accuracy_sum`, each with its `_weight`, the
    number of rows that are not all padding.

    References: Devlin et al. 2018 (BERT), section 3.1 and appendix A.2.
    """

    next_sentence: bool = False
    skip_padding: bool = True

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        hidden = network.hidden_states(encoder_inputs(batch), training=training)  # (B, L, D)
        real = batch["token_ids"] != PAD  # (B, L)
        masked, labels, weights = self._masked(hidden, batch)
        logits = tf.cast(network.masked_logits(masked), tf.float32)  # (N, V)
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (N,)
        nll_sum, weight = tf.reduce_sum(nll * weights), tf.reduce_sum(weights)
        sums = {
            "loss_sum": nll_sum,
            "weight": weight,
            "nll_sum": nll_sum,
            "input_tokens": tf.reduce_sum(tf.cast(real, tf.float32)),
        }
        if not training:
            sums["correct_sum"] = tf.reduce_sum(_hits(logits, labels) * weights)
        if self.next_sentence:
            logits = tf.cast(network.next_sentence_logits(hidden), tf.float32)  # (B, 2)
            labels = batch["next_sentence"]
            weights = batch["next_sentence_weights"]  # (B,)
            rows = tf.cast(weights > 0, tf.float32)
            nll = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (B,)
            sums["next_sentence_sum"] = tf.reduce_sum(nll * rows)
            sums["next_sentence_accuracy_sum"] = tf.reduce_sum(_hits(logits, labels) * rows)
            sums["next_sentence_weight"] = tf.reduce_sum(rows)
            sums["next_sentence_accuracy_weight"] = tf.reduce_sum(rows)
            # `loss_sum` will be divided by the batch's masked tokens, which the weights add up to.
            sums["loss_sum"] += tf.reduce_sum(nll * weights)
        return sums

    def _masked(self, hidden: tf.Tensor, batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, ...]:
        """The masked positions' `hidden (N, D)`, labels `(N,)` and weights `(N,)`."""
        rows, length = tf.unstack(tf.shape(batch["token_ids"]))
        # Positions in their rows (B, P) -> in the batch laid out as (B L,)
        places = batch["masked_positions"] + length * tf.range(rows)[:, None]
        flat = [
            tf.reshape(tensor, (-1,))  # (B, P) -> (N,), N = B P
            for tensor in (places, batch["masked_labels"], batch["masked_weights"])
        ]
        if self.skip_padding:
            used = tf.where(flat[-1] > 0)[:, 0]
            flat = [tf.gather(tensor, used) for tensor in flat]
        places, labels, weights = flat
        # (B, L, D) -> (B L, D) -> (N, D)
        hidden = tf.reshape(hidden, (-1, hidden.shape[-1]))
        return tf.gather(hidden, places), labels, weights


def _hits(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """1 where the largest of `(N, C)` logits is at the label, `(N,)` float32."""
    best = tf.argmax(logits, axis=-1, output_type=labels.dtype)
    return tf.cast(best == labels, tf.float32)
