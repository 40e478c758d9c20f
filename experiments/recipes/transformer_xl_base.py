"""Transformer-XL, the paper's standard model for WikiText-103: 16 layers, D 410, 10 heads.

    python -m experiments.pretrain prepare transformer_xl_base corpora/xl --data-dir DIR --download
    python -m experiments.pretrain train transformer_xl_base runs/xl --corpus corpora/xl
    python -m experiments.pretrain evaluate runs/xl --corpus corpora/xl --memory 640 --clamp 400

Dai et al. 2019, section 4.1, and the released script: 60 texts side by side, segments of 150 tokens
and a memory of 150, 200,000 updates of Adam with a learning rate of 2.5e-4 and no warm-up, clipped
at 0.25, dropout 0.1, adaptive softmax at 20,000, 40,000 and 200,000 of 267,735 words with widths
that stay (divisor 1). Evaluated with segments of 64, a memory of 640 and distances clamped at 400:
perplexity 24.0 of words. Segments of 64: `--set corpus.sequence_length=66` in a `prepare` of its
own with this corpus's `--vocabulary`.

Chosen here: Wikipedia for WikiText-103, 32,000 pieces for words, and so a softmax that is not
adaptive and perplexities of pieces; the decay is linear, not the script's cosine.

Measured: not run at this size.
"""

import dataclasses

from experiments.pretrain.recipe import VocabularyConfig
from experiments.recipes import bert_base, transformer_xl_tiny

RECIPE = dataclasses.replace(
    transformer_xl_tiny.RECIPE,
    model="transformer_xl_base",
    model_options=(),
    memory_length=150,
    corpus=dataclasses.replace(
        transformer_xl_tiny.RECIPE.corpus,
        sources=bert_base.RECIPE.corpus.sources,
        sequence_length=152,
        validation_every=200,
    ),
    vocabulary=VocabularyConfig(kind="sentencepiece", size=32_000, lower_case=False),
    batch_size=60,
    training=dataclasses.replace(
        transformer_xl_tiny.RECIPE.training,
        max_steps=200_000,
        learning_rate=2.5e-4,
        warmup_steps=0,
        beta_2=0.999,
        epsilon=1e-8,
        weight_decay=0.0,
        validate_every=4_000,
    ),
)
