"""What SpanBERT learns: each masked token, and again from the two tokens around its span."""

from dataclasses import dataclass

import tensorflow as tf

from macaron_tf.objectives.encoder_inputs import encoder_inputs
from macaron_tf.objectives.pretraining import MaskedPlaces, PretrainingObjective, token_sums
from macaron_tf.special_ids import PAD


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
