"""gMLP: matrices between positions and gates in place of attention, base.

    python -m experiments.pretrain prepare gmlp_base corpora/512 --data-dir DIR --download
    python -m experiments.pretrain train gmlp_base runs/gmlp --corpus corpora/512

Liu et al. 2021, section 4: 48 layers, D 512, F 3072. The training is chosen here: BERT's million
updates of 256 rows of 512, Adam(0.9, 0.999) with epsilon 1e-6, peak learning rate 7e-4 after 10,000
of them, linear to 0, weight decay 0.01, 32,000 cased pieces. The paper's text is C4; Wikipedia and
books stand in. 8 micro-batches of 32 rows make an update on one device. `--set model=gmlp_large`
takes the large size.

Measured: not run at this size.
"""

import dataclasses

from experiments.pretrain.recipe import VocabularyConfig
from experiments.recipes import bert_base
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_base.RECIPE,
    model="gmlp_base",
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
