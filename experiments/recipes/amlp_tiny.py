"""aMLP: gMLP with one small head of attention in every layer, tiny.

    python -m experiments.pretrain train amlp_tiny runs/amlp --data-dir DIR

Liu et al. 2021 with `bert_tiny`'s width, tokens and schedule: six layers, which count as many
parameters as BERT's three; no positions but those of the matrices, one weight a distance.

Measured: see `experiments/results/slides_encoders`.
"""

import dataclasses

from experiments.recipes import bert_tiny
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_tiny.RECIPE,
    model="amlp_tiny",
    model_options=(("dropout", 0.0), ("attention_dropout", 0.0)),
    masking=MaskingConfig(),
)
