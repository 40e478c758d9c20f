"""XLNet large: 24 layers, D 1024, 16 heads, 361 million parameters.

    python -m experiments.pretrain prepare xlnet_large corpora/xlnet --data-dir DIR --download
    python -m experiments.pretrain train xlnet_large runs/xlnet --corpus corpora/xlnet

Yang et al. 2019, section 3.1 and appendix A.4: rows of 512, K = 6, a memory of 384, 500,000 updates
of 8,192 rows (256 accumulated 32 times here), Adam with weight decay 0.01, epsilon 1e-6, a
learning rate of 4e-4 after 40,000 updates, linear to 0, dropout 0.1; 32,000 SentencePiece unigrams.

Chosen here: Wikipedia and PG-19 for the paper's five corpora; rows of running text, [CLS] first,
for its pairs of segments with [CLS] last.

Measured: not run at this size.
"""

import dataclasses

from experiments.pretrain.recipe import VocabularyConfig
from experiments.recipes import bert_base

RECIPE = dataclasses.replace(
    bert_base.RECIPE,
    model="xlnet_large",
    objective="permutation_language",
    partial_prediction=6.0,
    memory_length=384,
    corpus=dataclasses.replace(
        bert_base.RECIPE.corpus, packing="full_text", validation_every=200, validation_run=32
    ),
    vocabulary=VocabularyConfig(kind="unigram", size=32_000, lower_case=False),
    batch_size=256,
    training=dataclasses.replace(
        bert_base.RECIPE.training,
        max_steps=500_000,
        learning_rate=4e-4,
        warmup_steps=40_000,
        beta_2=0.999,
        epsilon=1e-6,
        accumulation_steps=32,
    ),
)
