"""ELMo as released: 93.6 million parameters and the words it scores.

    python -m experiments.elmo train elmo_original runs/elmo --set sources=text-lines:1b/*.txt

Model: Peters et al. 2018, section 3.4, and recipes.md: characters of 16, filters 1:32 2:32 3:64
4:128 5:256 6:512 7:1024, 2 highways, 50 characters a word, LSTMs 4096 -> 512, clipping at 3,
dropout 0.1, 793,471 words. Data: the One Billion Word Benchmark, ten passes. Rows of 20 words,
128 a device on three devices, and 8,192 sampled words are the released training code's; that code
uses Adagrad at 0.2 and carries the state from row to row, where this is Adam, and each row begins
anew. The whole text is held in memory: 768 million words are 3 GB, and as much again while they
are read.

Measured: not yet, and not within reach of two cores.
"""

from experiments.elmo.run import ElmoRecipe
from macaron_tf.training.config import TrainingConfig

RECIPE = ElmoRecipe(
    model="elmo_original",
    sources=("text-lines:1b/*.txt",),
    vocabulary_size=793_471,
    row_length=20,
    batch_size=384,
    held_out=1_000,
    samples=8_192,
    training=TrainingConfig(
        max_steps=1_000_000,
        learning_rate=5e-4,
        schedule="linear",
        warmup_steps=10_000,
        beta_2=0.999,
        clip_norm=10.0,
        validate_every=10_000,
        best_metric="perplexity",
        best_mode="min",
    ),
)
