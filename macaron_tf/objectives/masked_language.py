"""Masked language modelling, with sentence pairs (BERT, ALBERT) or span boundaries (SpanBERT).

B is the batch size, L the row length, and P the maximum number of masked tokens in a row.
"""

from dataclasses import dataclass

from keras import ops

from macaron_tf.models.base import encoder_inputs
from macaron_tf.models.pretraining import PretrainingEncoder
from macaron_tf.objectives import base
from macaron_tf.objectives.base import Batch, MaskedObjective, MaskedPositions, Sums
from macaron_tf.objectives.masking.masking import MaskingConfig


@dataclass(frozen=True)
class MaskedLanguageObjective(MaskedObjective):
    """Masked language modelling (MLM), optionally with a sentence-pair task (NSP or SOP).

    The loss is the mean cross-entropy of the masked tokens. With `sentence_pair`, the loss also
    includes the mean cross-entropy of the pair labels over the rows, as in BERT. With gradient
    accumulation, the pair loss of each micro-batch is weighted by its number of masked tokens, not
    by its number of rows. The network computes logits only at masked positions. At a masking rate
    of 15%, this takes about a seventh of the computation for logits at all positions. On rows that
    hold a sentence and its translation, this objective is XLM's translation language modelling
    (TLM).

    Attributes:
        head_transform: whether the masked language model head has a dense layer before the tied
            embedding matrix, as in BERT. XLM has no dense layer.
        sentence_pair: whether to add the sentence-pair loss. The task is next sentence prediction
            (NSP) or sentence order prediction (SOP), depending on the data. A recipe sets this
            field by `corpus.pairs`.

    A `PretrainingEncoder` reads the `encoder_inputs`. The batch also has `masked_positions`,
    `masked_labels` and `masked_weights`, all `(B, P)`. `sentence_pair` also needs `pair_label (B,)`
    int and `pair_weights (B,)` float32 (see `mask_tokens`). The label is 0 if the second sentence
    follows the first, and 1 if the second sentence is random (NSP) or the two sentences are swapped
    (SOP).

    The sums are those of `token_sums`. With `sentence_pair`, `loss_sum` includes the pair loss, and
    there are also `pair_loss_sum` (nats), `pair_accuracy_sum`, `pair_loss_weight` and
    `pair_accuracy_weight`. Both weights are the number of rows that are not all padding.

    References: Devlin et al. 2018 (BERT), section 3.1 and appendix A.2; Lan et al. 2020 (ALBERT),
    section 3.1 (SOP); Conneau and Lample 2019 (XLM), section 3.4 (TLM).
    """

    name: str = "masked_language"
    head_transform: bool = True
    sentence_pair: bool = False

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the token metrics, followed by the pair metrics with `sentence_pair`."""
        pair = ("pair_loss", "pair_accuracy") if self.sentence_pair else ()
        return (*MaskedObjective.metric_names, *pair)

    def network(self, config, dtype=None) -> PretrainingEncoder:
        head = None if self.head_transform else {"transform": False}
        return PretrainingEncoder(config, self.sentence_pair, head, dtype=dtype)

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        hidden = network.hidden_states(encoder_inputs(batch), training=training)  # (B, L, D)
        masked = MaskedPositions.of(batch, self.skip_padding, network.config.pad_id)
        masked_hidden = masked.vectors(hidden, batch["masked_positions"])  # (N, D)
        sums = masked.sums(network.masked_logits(masked_hidden), batch, training)
        if self.sentence_pair:
            logits = network.pair_logits(hidden)  # (B, 2)
            labels, weights = batch["pair_label"], batch["pair_weights"]  # (B,) each
            real_rows = ops.cast(weights > 0, "float32")
            nll = base.cross_entropy(labels, logits)  # (B,)
            sums["pair_loss_sum"] = ops.sum(nll * real_rows)
            sums["pair_accuracy_sum"] = ops.sum(base.correct(logits, labels) * real_rows)
            sums["pair_loss_weight"] = sums["pair_accuracy_weight"] = ops.sum(real_rows)
            # `weights` adds up to the number of masked tokens, by which `loss_sum` is divided. The
            # division therefore gives the mean over rows.
            sums["loss_sum"] += ops.sum(nll * weights)
        return sums


@dataclass(frozen=True)
class SpanBoundaryObjective(MaskedObjective):
    """SpanBERT's objective: MLM plus the span boundary objective (SBO).

    Masked token i of a span from position s to e has the loss `-log P(x_i | h_i) - log P(x_i |
    h_{s-1}, h_{e+1}, p_{i-s+1})`, with hidden states h and position embeddings p. The loss is
    averaged over all masked tokens. The network is a `PretrainingEncoder` with `span_boundary`, and
    the batch comes from `mask_tokens` with `MaskingConfig(choice="spans")`.

    The sums are those of `token_sums`. `loss_sum` covers both terms, and `nll_sum` and
    `correct_sum` cover only the first term. `span_boundary_loss_sum` (nats) and, outside training,
    `span_boundary_accuracy_sum` are for the second term.

    Attributes:
        masking: settings of token masking, which must choose spans.
        head_transform: see `MaskedLanguageObjective`.

    References: Joshi et al. 2020 (SpanBERT), section 3.2.
    """

    name: str = "span_boundary"
    masking: MaskingConfig = MaskingConfig(choice="spans", fate="span", round_up=True)
    head_transform: bool = True
    metric_names = (*MaskedObjective.metric_names, "span_boundary_loss", "span_boundary_accuracy")

    def check(self) -> None:
        if self.masking.choice != "spans":
            raise self.error("masking.choice is not 'spans': set objective.masking.choice=spans")

    def network(self, config, dtype=None) -> PretrainingEncoder:
        head = None if self.head_transform else {"transform": False}
        return PretrainingEncoder(config, False, head, span_boundary=True, dtype=dtype)

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        hidden = network.hidden_states(encoder_inputs(batch), training=training)  # (B, L, D)
        masked = MaskedPositions.of(batch, self.skip_padding, network.config.pad_id)
        masked_hidden = masked.vectors(hidden, batch["masked_positions"])  # (N, D)
        sums = masked.sums(network.masked_logits(masked_hidden), batch, training)
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
