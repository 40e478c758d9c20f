"""ALBERT, tiny: one layer's weights for all three, E 64, n-grams masked, the order of sentences.

    python -m experiments.pretrain train albert_tiny runs/albert --data-dir DIR

Lan et al. 2020 in `bert_tiny`'s shapes, tokens and schedule; whole words in n-grams of up to 3,
p(n) ~ 1/n. For the slides' tables: `--set corpus.pairs=next_sentence` or `none`,
`--set model.sharing=attention`, `feed_forward` or `none`, `--set model.embedding_dim=128`.

Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (three seeds), loss of tokens 5.92
± 0.05; the order of sentences right 53%; fine-tuned, SST-2 79.3 ± 0.9 and CoNLL-2003 47.9 ± 3.1;
see `experiments/results/slides_encoders`.
"""

import dataclasses

from experiments.recipes import bert_tiny
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_tiny.RECIPE,
    model="albert_tiny",
    corpus=dataclasses.replace(bert_tiny.RECIPE.corpus, pairs="sentence_order"),
    masking=MaskingConfig(choice="ngrams"),
)
