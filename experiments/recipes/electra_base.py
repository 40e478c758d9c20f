"""ELECTRA, base: BERT's shapes, a generator a third as wide.

    python -m experiments.pretrain prepare electra_base corpora/512 --data-dir DIR --download
    python -m experiments.pretrain train electra_base runs/electra --corpus corpora/512

Clark et al. 2020, table 6: 256 rows of 512 an update, 766,000 of them, peak learning rate 2e-4
after 10,000, linear to 0; the rest as `electra_small`. 8 micro-batches of 32 rows make an update
on one device.

Measured: not run at this size.
"""

import dataclasses

from experiments.recipes import bert_base
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_base.RECIPE,
    model="electra_base",
    objective="replaced_tokens",
    generator_width=1 / 3,
    masking=MaskingConfig(mask=1.0, random=0.0, round_up=True),
    training=dataclasses.replace(
        bert_base.RECIPE.training,
        max_steps=766_000,
        learning_rate=2e-4,
        warmup_steps=10_000,
        beta_2=0.999,
        accumulation_steps=8,
    ),
)
