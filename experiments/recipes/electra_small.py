"""ELECTRA, small: 14 million parameters, for one GPU.

    python -m experiments.pretrain prepare electra_small corpora/128 --data-dir DIR --download
    python -m experiments.pretrain train electra_small runs/electra --corpus corpora/128

Clark et al. 2020, table 6: 12 layers, D 256, F 1024, 4 heads, E 128, a generator a quarter as
wide, 128 rows of 128 an update, a million of them, peak learning rate 5e-4 after 10,000, linear to
0, Adam(0.9, 0.999) with epsilon 1e-6, weight decay 0.01, 15% masked, discriminator's weight 50.

Measured: not run at this size.
"""

import dataclasses

from experiments.recipes import bert_base
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_base.RECIPE,
    model="electra_small",
    objective="replaced_tokens",
    generator_width=0.25,
    masking=MaskingConfig(mask=1.0, random=0.0, round_up=True),
    corpus=dataclasses.replace(bert_base.RECIPE.corpus, sequence_length=128),
    batch_size=128,
    training=dataclasses.replace(
        bert_base.RECIPE.training,
        max_steps=1_000_000,
        learning_rate=5e-4,
        warmup_steps=10_000,
        beta_2=0.999,
        accumulation_steps=1,
    ),
)
