"""BART, base: 139 million parameters, texts of 512 tokens from their noise.

    python -m experiments.pretrain prepare bart_base corpora/bart --data-dir DIR --download
    python -m experiments.pretrain train bart_base runs/bart_base --corpus corpora/bart

Lewis et al. 2020, sections 2.2 and 5.1: text infilling of 30% of the words and shuffled sentences,
500,000 updates of 8,000 texts, byte-level BPE as GPT-2's (50,265 pieces), dropout 0.1. The base
model's own settings are not said: those of the large one, which follow RoBERTa: Adam(0.9, 0.98),
epsilon 1e-6, weight decay 0.01, peak 6e-4 (RoBERTa base's) after 24,000 updates, linear to 0.
Wikipedia and books of TensorFlow Datasets stand in for RoBERTa's 160 GB. 250 micro-batches of 32
rows make an update on one device.

Measured: not run at this size.
"""

from experiments.pretrain.recipe import PretrainingRecipe, VocabularyConfig
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.objectives import DenoisingConfig
from macaron_tf.training.config import TrainingConfig

RECIPE = PretrainingRecipe(
    model="bart_base",
    objective="denoising",
    denoising=DenoisingConfig(infilling=0.3, mean_span=3.0, shuffling=1.0),
    corpus=CorpusConfig(("tfds:wikipedia/20230601.en", "tfds:pg19"), sequence_length=512),
    vocabulary=VocabularyConfig(kind="byte_bpe", size=50_265, lower_case=False),
    batch_size=32,
    training=TrainingConfig(
        max_steps=500_000,
        learning_rate=6e-4,
        schedule="linear",
        warmup_steps=24_000,
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-6,
        weight_decay=0.01,
        decay_vectors=False,
        accumulation_steps=250,
        dtype_policy="mixed_bfloat16",
        validate_every=5_000,
        best_metric="loss",
        best_mode="min",
    ),
)
