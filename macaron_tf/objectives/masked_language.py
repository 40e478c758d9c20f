"""What an encoder learns first: masked tokens and, if asked, whether sentences belong together."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.cross_entropy import hits
from macaron_tf.objectives.encoder_inputs import encoder_inputs
from macaron_tf.objectives.pretraining import MaskedPlaces, PretrainingObjective, token_sums
from macaron_tf.special_ids import PAD


@dataclass(frozen=True)
class MaskedLanguageObjective(PretrainingObjective):
    """Cross-entropy of the masked tokens, plus that of the sentence pair where asked for.

    Only masked positions reach the vocabulary projection: at 15% a seventh of its work. The two
    losses are means, each over its own count, and are added: BERT's loss. Over several
    micro-batches the mean of the pairs weights each by its masked tokens. On rows of a sentence
    and its translation it is XLM's translation language modelling.

    Attributes:
        sentence_pair: learn `pair_label` as well: next sentences, or the order of sentences.
        skip_padding: leave out the unused ones of the P positions before the projection. The
            number of rows is then dynamic: set False where shapes must be static (XLA, TPU); the
            result is the same.

    Call arguments: `network`, a `PretrainingEncoder`; `batch` of `encoder_inputs`,
    `masked_positions`, `masked_labels` and `masked_weights (B, P)`, and with `sentence_pair` also
    `pair_label (B,)`, 0 = follows, 1 = from elsewhere or swapped, and `pair_weights (B,)` (see
    `mask_tokens`); `training`.
    Returns float32 sums over the batch: `loss_sum`, `weight` (the number of masked tokens),
    `nll_sum` (nats, of the masked tokens alone), `input_tokens` (real tokens), outside training
    `correct_sum` (masked tokens predicted right), and with `sentence_pair` also
    `pair_loss_sum` (nats) and `pair_accuracy_sum`, each with its `_weight`, the
    number of rows that are not all padding.

    References: Devlin et al. 2018 (BERT), section 3.1 and appendix A.2; Lan et al. 2020 (ALBERT),
    section 3.1, for the order of sentences; Conneau and Lample 2019 (XLM), section 3.4.
    """

    sentence_pair: bool = False
    skip_padding: bool = True

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What an evaluation measures."""
        pair = ("pair_loss", "pair_accuracy") if self.sentence_pair else ()
        return ("loss", "nll", "perplexity", "accuracy", *pair)

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        hidden = network.hidden_states(encoder_inputs(batch), training=training)  # (B, L, D)
        masked = MaskedPlaces.of(batch, self.skip_padding)
        sums = token_sums(
            network.masked_logits(masked.vectors(hidden, batch["masked_positions"])),  # (N, V)
            masked.flat(batch["masked_labels"]),
            masked.weights,
            real=batch["token_ids"] != PAD,
            training=training,
        )
        if self.sentence_pair:
            logits = tf.cast(network.pair_logits(hidden), tf.float32)  # (B, 2)
            labels = batch["pair_label"]
            weights = batch["pair_weights"]  # (B,)
            rows = tf.cast(weights > 0, tf.float32)
            nll = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)  # (B,)
            sums["pair_loss_sum"] = tf.reduce_sum(nll * rows)
            sums["pair_accuracy_sum"] = tf.reduce_sum(hits(logits, labels) * rows)
            sums["pair_loss_weight"] = tf.reduce_sum(rows)
            sums["pair_accuracy_weight"] = tf.reduce_sum(rows)
            # `loss_sum` will be divided by the batch's masked tokens, which the weights add up to.
            sums["loss_sum"] += tf.reduce_sum(nll * weights)
        return sums
