"""BERT-orig of the SwishRNN paper, large.

    python -m experiments.pretrain train bert_large runs/bert_large --corpus corpora/512

Lei et al. 2022, table 3: 24 layers, D 1024, F 4096, 16 heads, peak learning rate 2e-4 and 4,096
sequences an update, here 128 micro-batches of 32. All else is `bert_base`.

Measured: not run at this size.
"""

import dataclasses

from experiments.recipes import bert_base

RECIPE = dataclasses.replace(
    bert_base.RECIPE,
    model="bert_large",
    training=dataclasses.replace(
        bert_base.RECIPE.training, learning_rate=2e-4, accumulation_steps=128
    ),
)
