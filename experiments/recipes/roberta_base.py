"""RoBERTa, base: BERT's encoder, trained longer, on larger batches, without next sentences.

    python -m experiments.pretrain prepare roberta_base corpora/roberta --data-dir DIR --download
    python -m experiments.pretrain train roberta_base runs/roberta --corpus corpora/roberta

Liu et al. 2019: 125,000 updates of 2,048 sequences of 512, which are as many tokens as BERT's (its
table 3), Adam(0.9, 0.98) with epsilon 1e-6 (section 3.1), full sentences, dynamic masks. Of its
released command are the peak learning rate, 5e-4 (table 3 has 7e-4) after 10,000 updates, linear to
0, the weight decay, 0.01, and the number of pieces. 64 micro-batches of 32 rows make an update on
one device.

Measured: not run at this size.
"""

import dataclasses

from experiments.pretrain.recipe import VocabularyConfig
from experiments.recipes import bert_base
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_base.RECIPE,
    model="roberta_base",
    corpus=dataclasses.replace(bert_base.RECIPE.corpus, packing="full_sentences"),
    vocabulary=VocabularyConfig(kind="byte_bpe", size=50_265, lower_case=False),
    masking=MaskingConfig(),
    training=dataclasses.replace(
        bert_base.RECIPE.training,
        max_steps=125_000,
        learning_rate=5e-4,
        warmup_steps=10_000,
        accumulation_steps=64,
    ),
)
