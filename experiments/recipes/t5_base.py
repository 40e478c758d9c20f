"""T5, base: 220 million parameters, spans of 512 tokens hidden behind sentinels.

    python -m experiments.pretrain prepare t5_base corpora/t5 --data-dir DIR --download
    python -m experiments.pretrain train t5_base runs/t5_base --corpus corpora/t5

Raffel et al. 2020, section 3.1: 2^19 updates of 128 sources of 512 tokens, which come from rows of
568 and have targets of 114; 15% hidden in spans of 3 on average; dropout 0.1 (that after the last
norm is left out); Adafactor at 1/sqrt(max(n, 10^4)), the first part being a warm-up from
0.01 to 0.01. 32,000 SentencePiece pieces of the unigram model, which keep their case. C4 is 750 GB:
Wikipedia and books of TensorFlow Datasets stand in for it; for the real thing
`--set "corpus.sources=('tfds:c4/en',)"`. `--set model=t5_1_1_base --set model.dropout=0.0` is
version 1.1. Four micro-batches of 32 rows make an update on one device.

Measured: not run at this size.
"""

from experiments.pretrain.recipe import PretrainingRecipe, VocabularyConfig
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.objectives import SpanCorruptionConfig
from macaron_tf.training.config import TrainingConfig

_CORRUPTION = SpanCorruptionConfig(rate=0.15, mean_span=3.0)

RECIPE = PretrainingRecipe(
    model="t5_base",
    objective="span_corruption",
    corruption=_CORRUPTION,
    corpus=CorpusConfig(
        ("tfds:wikipedia/20230601.en", "tfds:pg19"),
        sequence_length=_CORRUPTION.text_length(512) + 2,  # with [CLS] and [SEP]
    ),
    vocabulary=VocabularyConfig(kind="unigram", size=32_000, lower_case=False),
    batch_size=32,
    training=TrainingConfig(
        max_steps=524_288,
        optimizer="adafactor",
        learning_rate=0.01,
        schedule="inverse_sqrt",
        warmup_steps=10_000,
        warmup_start=0.01,
        accumulation_steps=4,
        dtype_policy="mixed_bfloat16",
        validate_every=5_000,
        best_metric="loss",
        best_mode="min",
    ),
)
