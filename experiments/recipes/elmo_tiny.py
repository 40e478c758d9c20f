"""ELMo, tiny: what two cores train in half an hour.

    python -m experiments.elmo train elmo_tiny runs/elmo --data-dir DIR

The original's parts (Peters et al. 2018, section 3.4: a character CNN with highways, two LSTMs with
projections in each direction, their outputs added from layer to layer, dropout 0.1, clipping at 3)
at a quarter of the width or less; sizes and rates are chosen for two cores. The text is cut at
white space and punctuation, into rows of 32 words, 32 rows an update: 4,500 updates are two passes
over WikiText-2's articles, 2.3 million words.

Measured: after 2,500 updates (experiments/results/slides_decoders) perplexity 78.8, a tagger's F1
80.6 ± 0.6 with it and 79.4 ± 0.7 without.
"""

from experiments.elmo.run import ElmoRecipe
from macaron_tf.training.config import TrainingConfig

RECIPE = ElmoRecipe(
    model="elmo_tiny",
    sources=("tfds:wikipedia/20230601.en",),
    vocabulary_size=8_000,
    row_length=32,
    batch_size=32,
    training=TrainingConfig(
        max_steps=4_500,
        learning_rate=2e-3,
        schedule="linear",
        warmup_steps=200,
        beta_2=0.98,
        clip_norm=1.0,
        validate_every=500,
        best_metric="perplexity",
        best_mode="min",
        keep_last=1,
    ),
)
