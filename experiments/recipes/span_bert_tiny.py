"""SpanBERT, tiny: spans masked, and predicted from their two neighbours besides.

    python -m experiments.pretrain train span_bert_tiny runs/span_bert --data-dir DIR

Joshi et al. 2020 in `bert_tiny`'s shapes, tokens and schedule: one segment, spans of 1 to 10 words
with geometric lengths (p 0.2), all tokens of a span masked (80%), exchanged (10%) or kept (10%)
together, the boundary objective added to the masked language one.

Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (one seed), loss of tokens 5.67;
boundary loss 6.13; fine-tuned, SST-2 81.0 and CoNLL-2003 57.8; see
`experiments/results/slides_encoders`.
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
