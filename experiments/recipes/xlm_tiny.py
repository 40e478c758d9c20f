"""XLM, tiny: masked tokens in three languages, and in pairs of a sentence and its translation.

    python -m experiments.pretrain train xlm_tiny runs/xlm

Conneau and Lample 2019 in `bert_tiny`'s shapes, tokens and schedule: one BPE vocabulary, language
embeddings in place of segments, positions that begin again at a translation, languages drawn with
q_i ~ p_i^0.5 (section 3.1). English, German and French, and English with both, out of the embedded
corpus: screen texts, which are read over and over. Of the paper's three objectives this is MLM with
TLM; CLM: `--set objective=causal_language --set model.causal=True`.

Measured: after 5,000 updates of 8 rows, pre-norm with T5's bias (one seed), loss of tokens 6.26;
fine-tuned, SST-2 74.6 and CoNLL-2003 40.5; see `experiments/results/slides_encoders`.
"""

import dataclasses

from experiments.pretrain.recipe import VocabularyConfig
from experiments.recipes import bert_tiny
from macaron_tf.data.corpus.config import CorpusSource
from macaron_tf.objectives import MaskingConfig

_LANGUAGES = ("en", "de", "fr")

RECIPE = dataclasses.replace(
    bert_tiny.RECIPE,
    model="xlm_tiny",
    head_transform=False,
    corpus=dataclasses.replace(
        bert_tiny.RECIPE.corpus,
        sources=(
            *(CorpusSource(f"homeassistant:{code}", language=code) for code in _LANGUAGES),
            *(
                CorpusSource(f"homeassistant:{code}", language=("en", code))
                for code in _LANGUAGES[1:]
            ),
        ),
        language_alpha=0.5,
    ),
    vocabulary=VocabularyConfig(kind="sentencepiece", size=4_000, lower_case=False),
    masking=MaskingConfig(),
)
