"""SpanBERT, base: spans masked, and predicted from their two neighbours besides.

    python -m experiments.pretrain prepare span_bert_base corpora/512 --data-dir DIR --download
    python -m experiments.pretrain train span_bert_base runs/span_bert --corpus corpora/512

Joshi et al. 2020, section 4.2: BERT's shapes and data, one segment of 512, 256 rows an update, 2.4
million updates, peak learning rate 1e-4 after 10,000 of them, linear to 0, weight decay 0.1,
Adam's epsilon 1e-8, dropout 0.1. 8 micro-batches of 32 rows make an update on one device.

Measured: not run at this size.
"""

import dataclasses

from experiments.recipes import bert_base
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_base.RECIPE,
    model="span_bert_base",
    objective="span_boundary",
    masking=MaskingConfig(choice="spans", fate="span", round_up=True),
    training=dataclasses.replace(
        bert_base.RECIPE.training,
        max_steps=2_400_000,
        learning_rate=1e-4,
        warmup_steps=10_000,
        beta_2=0.999,
        epsilon=1e-8,
        weight_decay=0.1,
        accumulation_steps=8,
    ),
)
