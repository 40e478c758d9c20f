"""Masked language modelling, with sentence pairs (BERT, ALBERT) or span boundaries (SpanBERT)."""

from dataclasses import dataclass

from keras import ops

from macaron_tf.models.base import encoder_inputs
from macaron_tf.objectives.base import (
    Batch,
    MaskedPositions,
    PretrainingObjective,
    Sums,
    correct,
    cross_entropy,
)


@dataclass(frozen=True)
class MaskedLanguageObjective(PretrainingObjective):
    """Cross-entropy of the masked tokens (MLM), optionally plus that of sentence pairs (NSP, SOP).

    Only masked positions reach the vocabulary projection: with 15% masked, a seventh of its work.
    BERT's loss is the sum of two means, over masked tokens and over rows. Over several
    micro-batches, the mean over rows weights each row by its masked tokens. On rows of a sentence
    and its translation, this objective is XLM's TLM; `language_batches` alternates it with MLM.

    Attributes:
        sentence_pair: also learn `pair_label`: whether the second sentence follows the first (NSP),
            or whether the two are in order (SOP).

    Call arguments: `network`, a `PretrainingEncoder`; `batch` of `encoder_inputs`,
    `masked_positions`, `masked_labels` and `masked_weights (B, P)`. With `sentence_pair` also
    `pair_label (B,)`, 0 where the second sentence follows, 1 where it is from elsewhere or swapped,
    and `pair_weights (B,)`, see `mask_tokens`. Returns `token_sums` over the masked tokens, and
    with `sentence_pair` also `pair_loss_sum` (nats) and `pair_accuracy_sum`, each with its
    `_weight`, the number of rows that are not all padding.

    References: Devlin et al. 2018 (BERT), section 3.1 and appendix A.2; Lan et al. 2020 (ALBERT),
    section 3.1, for the order of sentences; Conneau and Lample 2019 (XLM), section 3.4.
    """

    fills_masks = True

    sentence_pair: bool = False

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics: those of the tokens, then those of the pairs."""
        pair = ("pair_loss", "pair_accuracy") if self.sentence_pair else ()
        return (*PretrainingObjective.metric_names, *pair)

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        hidden = network.hidden_states(encoder_inputs(batch), training=training)  # (B, L, D)
        masked = MaskedPositions.of(batch, self.skip_padding)
        at = masked.vectors(hidden, batch["masked_positions"])  # (N, D)
        sums = masked.sums(network.masked_logits(at), batch, training)
        if self.sentence_pair:
            logits = network.pair_logits(hidden)  # (B, 2)
            labels = batch["pair_label"]
            weights = batch["pair_weights"]  # (B,)
            rows = ops.cast(weights > 0, "float32")
            nll = cross_entropy(labels, logits)  # (B,)
            sums["pair_loss_sum"] = ops.sum(nll * rows)
            sums["pair_accuracy_sum"] = ops.sum(correct(logits, labels) * rows)
            sums["pair_loss_weight"] = sums["pair_accuracy_weight"] = ops.sum(rows)
            # The weights add up to the batch's masked tokens, by which `loss_sum` is divided.
            sums["loss_sum"] += ops.sum(nll * weights)
        return sums


@dataclass(frozen=True)
class SpanBoundaryObjective(PretrainingObjective):
    """SpanBERT's loss: MLM plus the prediction of each masked token from its span's boundaries.

    For a token i of a span from s to e it is
    `-log P(x_i | h_i) - log P(x_i | h_{s-1}, h_{e+1}, p_{i-s+1})`, averaged over i.

    Call arguments: `network`, a `PretrainingEncoder` with `span_boundary`; `batch` of
    `encoder_inputs` and of `mask_tokens` with spans. Returns `token_sums` over the masked tokens,
    where `nll_sum` is of the first term only, `span_boundary_loss_sum` of the second term and,
    outside training, `span_boundary_accuracy_sum`.

    References: Joshi et al. 2020 (SpanBERT), section 3.2.
    """

    learns = "span_boundary"
    fills_masks = True

    metric_names = (
        *PretrainingObjective.metric_names,
        "span_boundary_loss",
        "span_boundary_accuracy",
    )

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        if "span_positions" not in batch:
            raise ValueError('the span boundary objective needs masks of choice="spans"')
        hidden = network.hidden_states(encoder_inputs(batch), training=training)  # (B, L, D)
        masked = MaskedPositions.of(batch, self.skip_padding)
        at = masked.vectors(hidden, batch["masked_positions"])  # (N, D)
        sums = masked.sums(network.masked_logits(at), batch, training)
        logits = network.span_boundary_logits(
            masked.vectors(hidden, batch["left_boundaries"]),
            masked.vectors(hidden, batch["right_boundaries"]),
            masked.flat(batch["span_positions"]),
        )  # (N, V)
        boundary = masked.sums(logits, batch, training)
        sums["loss_sum"] += boundary["loss_sum"]
        sums["span_boundary_loss_sum"] = boundary["loss_sum"]
        if not training:
            sums["span_boundary_accuracy_sum"] = boundary["correct_sum"]
        return sums
