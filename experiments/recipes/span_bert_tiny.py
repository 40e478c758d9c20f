"""SpanBERT, tiny: spans masked, and predicted from their two neighbours besides.

    python -m experiments.pretrain train span_bert_tiny runs/span_bert --data-dir DIR

Joshi et al. 2020 in `bert_tiny`'s shapes, tokens and schedule: one segment, spans of 1 to 10 words
with geometric lengths (p 0.2), all tokens of a span masked (80%), exchanged (10%) or kept (10%)
together, the boundary objective added to the masked language one.

Measured: not yet; `python -m experiments.slides encoders` compares the tiny encoders.
"""

import dataclasses

from experiments.recipes import bert_tiny
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_tiny.RECIPE,
    model="span_bert_tiny",
    objective="span_boundary",
    masking=MaskingConfig(choice="spans", fate="span", round_up=True),
)
