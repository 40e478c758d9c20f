"""ALBERT, base: 12 million parameters, n-grams masked, the order of sentences.

    python -m experiments.pretrain prepare albert_base corpora/albert --data-dir DIR --download
    python -m experiments.pretrain train albert_base runs/albert --corpus corpora/albert

Lan et al. 2020, section 4.1: 30,000 SentencePiece pieces, rows of 512, a tenth of them shorter,
n-grams of up to 3 words, 4,096 rows an update, 125,000 updates. The paper's LAMB at 1.76e-3 is Adam
here, which does not bear that rate: 1e-4, the betas and the weight decay are BERT's, the 3,125
updates of warm-up chosen here. `--set model=albert_large` (xlarge, xxlarge) takes the other sizes.

Measured: not run at this size.
"""

import dataclasses

from experiments.pretrain.recipe import VocabularyConfig
from experiments.recipes import bert_base
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_base.RECIPE,
    model="albert_base",
    corpus=dataclasses.replace(bert_base.RECIPE.corpus, pairs="sentence_order"),
    vocabulary=VocabularyConfig(kind="unigram", size=30_000),
    masking=MaskingConfig(choice="ngrams"),
    training=dataclasses.replace(
        bert_base.RECIPE.training,
        max_steps=125_000,
        learning_rate=1e-4,
        warmup_steps=3_125,
        beta_2=0.999,
        accumulation_steps=128,
    ),
)
