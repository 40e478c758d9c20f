"""aMLP: gMLP with one small head of attention in every layer, base.

    python -m experiments.pretrain prepare amlp_base corpora/512 --data-dir DIR --download
    python -m experiments.pretrain train amlp_base runs/amlp --corpus corpora/512

Liu et al. 2021, section 4: 36 layers and an attention of 64, D 512, F 3072, rows of 512, 256 of
them an update, a million updates, Adam with epsilon 1e-6, peak learning rate 7e-4 after 10,000,
linear to 0, weight decay 0.01. The paper's text is C4; Wikipedia and books stand in. 8
micro-batches of 32 rows make an update on one device. `--set model=amlp_large` takes the large
size.

Measured: not run at this size.
"""

import dataclasses

from experiments.pretraining.recipe import VocabularyConfig
from experiments.recipes import bert_base
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_base.RECIPE,
    model="amlp_base",
    vocabulary=VocabularyConfig(kind="sentencepiece", size=32_000, lower_case=False),
    masking=MaskingConfig(),
    training=dataclasses.replace(
        bert_base.RECIPE.training,
        max_steps=1_000_000,
        learning_rate=7e-4,
        warmup_steps=10_000,
        beta_2=0.999,
        accumulation_steps=8,
    ),
)
