"""XLM for XNLI: 12 layers, D 1024, 95,000 pieces, masked tokens and translations.

    python -m experiments.pretrain prepare xlm_xnli corpora/xlm --data-dir DIR --download
    python -m experiments.pretrain train xlm_xnli runs/xlm --corpus corpora/xlm

Conneau and Lample 2019, section 5.1: Adam, linear warm-up, learning rates from 1e-4 to 5e-4, rows
of 256, 64 of them a device; Wikipedia of each language and pairs with English, for which WMT14's
German and French stand in. The updates, their warm-up, the decay to 0 and the betas are chosen
here. Languages are drawn with q_i ~ p_i^0.5. More of them: `corpus.sources`. Pairs are held in
memory, of French as many as there are of German: some gigabytes.

Measured: not run at this size.
"""

import dataclasses

from experiments.pretrain.recipe import VocabularyConfig
from experiments.recipes import bert_base
from macaron_tf.data.corpus.config import CorpusSource
from macaron_tf.objectives import MaskingConfig

RECIPE = dataclasses.replace(
    bert_base.RECIPE,
    model="xlm_xnli",
    head_transform=False,
    corpus=dataclasses.replace(
        bert_base.RECIPE.corpus,
        sources=(
            CorpusSource("tfds:wikipedia/20230601.en", language="en"),
            CorpusSource("tfds:wikipedia/20230601.de", language="de"),
            CorpusSource("tfds:wikipedia/20230601.fr", language="fr"),
            CorpusSource("tfds:wmt14_translate/de-en", language=("de", "en")),
            CorpusSource(
                "tfds:wmt14_translate/fr-en", split="train[:4500000]", language=("fr", "en")
            ),
        ),
        sequence_length=256,
        language_alpha=0.5,
    ),
    vocabulary=VocabularyConfig(kind="sentencepiece", size=95_000, lower_case=False),
    masking=MaskingConfig(),
    batch_size=64,
    training=dataclasses.replace(
        bert_base.RECIPE.training,
        learning_rate=1e-4,
        warmup_steps=30_000,
        beta_2=0.999,
        accumulation_steps=8,
    ),
)
