"""What an encoder learns first: masked tokens and, if asked, whether sentences belong together."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.base import (
    MaskedPlaces,
    PretrainingObjective,
    encoder_inputs,
    hits,
    token_sums,
)
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


@dataclass(frozen=True)
class SpanBoundaryObjective(PretrainingObjective):
    """`-log P(x_i | h_i) - log P(x_i | h_{s-1}, h_{e+1}, p_{i-s+1})`, span s to e, mean over i.

    Attributes:
        skip_padding: as in `MaskedLanguageObjective`.

    Call arguments: `network`, a `PretrainingEncoder` with `span_boundary`; `batch` of
    `encoder_inputs` and what `mask_tokens` makes of spans; `training`. Returns float32 sums over
    the batch: `loss_sum`, `weight` (the number of masked tokens), `nll_sum` (nats, of the first
    term), `span_boundary_loss_sum` (of the second), `input_tokens` and, outside training,
    `correct_sum` and `span_boundary_accuracy_sum`.

    Raises:
        ValueError: (when called) the masks are of no spans, or the network has no such head.

    References: Joshi et al. 2020 (SpanBERT), section 3.2.
    """

    skip_padding: bool = True
    metric_names = (
        "loss",
        "nll",
        "perplexity",
        "accuracy",
        "span_boundary_loss",
        "span_boundary_accuracy",
    )

    def __call__(
        self, network, batch: dict[str, tf.Tensor], training: bool
    ) -> dict[str, tf.Tensor]:
        if "span_places" not in batch:
            raise ValueError('the span boundary objective needs masks of choice="spans"')
        hidden = network.hidden_states(encoder_inputs(batch), training=training)  # (B, L, D)
        masked = MaskedPlaces.of(batch, self.skip_padding)
        answers = {
            "labels": masked.flat(batch["masked_labels"]),
            "weights": masked.weights,
            "real": batch["token_ids"] != PAD,
            "training": training,
        }
        at = masked.vectors(hidden, batch["masked_positions"])  # (N, D)
        sums = token_sums(network.masked_logits(at), **answers)
        logits = network.span_boundary_logits(
            masked.vectors(hidden, batch["left_boundaries"]),
            masked.vectors(hidden, batch["right_boundaries"]),
            masked.flat(batch["span_places"]),
        )  # (N, V)
        boundary = token_sums(logits, **answers)
        sums["loss_sum"] += boundary["loss_sum"]
        sums["span_boundary_loss_sum"] = boundary["loss_sum"]
        if not training:
            sums["span_boundary_accuracy_sum"] = boundary["correct_sum"]
        return sums
