"""ELMo: a tiny one, and the released one."""

from experiments.elmo.run import ElmoRecipe
from macaron_tf.training.config import TrainingConfig


def elmo_tiny() -> ElmoRecipe:
    """ELMo, tiny: trains in half an hour on two cores.

    It has the parts of `elmo_original` at a quarter of the width or less; sizes and rates are
    chosen for two cores. Text is split at white space and punctuation. 4,500 updates are two passes
    over WikiText-2's articles, 2.3 million words.

    Measured: after 2,500 updates (experiments/results/slides_decoders) the perplexity is 78.8, and
    the F1 of a tagger 80.6 ± 0.6 with its vectors and 79.4 ± 0.7 without.
    """
    return ElmoRecipe(
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


def elmo_original() -> ElmoRecipe:
    """ELMo as released: 93.6 million parameters, besides those of the softmax over words.

        python -m experiments.elmo train elmo_original runs/elmo --set sources=text-lines:1b/*.txt

    Model: Peters et al. 2018, section 3.4, and the released training code (bilm-tf's
    bin/train_elmo.py): a character CNN with highways, and two LSTMs with projections in each
    direction, with residual connections. Data: ten passes over the One Billion Word Benchmark. That
    code has rows of 20 words, 128 on each of three devices, 8,192 sampled words and gradients
    clipped at 10, as here. It uses Adagrad at 0.2 and keeps the state from row to row; this recipe
    uses Adam and resets the state for each row. The whole text is held in memory: 768 million words
    take 3 GB, and twice that while they are read.

    Measured: not yet; two cores do not suffice.
    """
    return elmo_tiny().changed(
        model="elmo_original",
        sources=("text-lines:1b/*.txt",),
        vocabulary_size=793_471,
        row_length=20,
        batch_size=384,
        held_out=1_000,
        samples=8_192,
        training=dict(
            max_steps=1_000_000,
            learning_rate=5e-4,
            warmup_steps=10_000,
            beta_2=0.999,
            clip_norm=10.0,
            validate_every=10_000,
            keep_last=5,
        ),
    )
