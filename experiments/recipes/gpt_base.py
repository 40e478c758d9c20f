"""GPT: the next token of books.

    python -m experiments.pretrain prepare gpt_base corpora/gpt --data-dir DIR --download
    python -m experiments.pretrain train gpt_base runs/gpt_base --corpus corpora/gpt

Radford et al. 2018, section 4.1: 12 layers, D 768, 12 heads, F 3072, dropout 0.1; Adam, the
learning rate linearly up to 2.5e-4 over 2,000 updates, then down to 0 along a cosine; batches of 64
contiguous sequences of 512 tokens; weight decay 0.01, not of biases and scales; BPE of 40,000
merges, lower-cased. Betas and epsilon are Adam's usual ones. Its 100 epochs over about a billion
tokens of BookCorpus come to 3 million updates; BookCorpus is not in TensorFlow Datasets, PG-19
stands in for it.

Measured: not run at this size.
"""

from experiments.pretrain.recipe import PretrainingRecipe, VocabularyConfig
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.training.config import TrainingConfig

RECIPE = PretrainingRecipe(
    model="gpt_base",
    objective="causal_language",
    corpus=CorpusConfig(("tfds:pg19",), sequence_length=512, packing="full_text"),
    vocabulary=VocabularyConfig(kind="sentencepiece", size=40_480),
    batch_size=32,
    training=TrainingConfig(
        max_steps=3_000_000,
        learning_rate=2.5e-4,
        schedule="cosine",
        warmup_steps=2_000,
        warmup_start=0.0,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-8,
        weight_decay=0.01,
        decay_vectors=False,
        accumulation_steps=2,
        dtype_policy="mixed_bfloat16",
        validate_every=5_000,
        best_metric="loss",
        best_mode="min",
    ),
)
