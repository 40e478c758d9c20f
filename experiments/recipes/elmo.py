"""Recipes for ELMo: a tiny model, and the released model."""

from macaron_tf.runs.elmo import ElmoData, ElmoRecipe
from macaron_tf.training.config import TrainingConfig


def elmo_tiny() -> ElmoRecipe:
    """Returns a recipe for a tiny ELMo, which trains in half an hour on two CPU cores.

    The model has the layers of `elmo_original` in smaller sizes: LSTM width 256 instead of 4,096,
    projection width 128 instead of 512, and 240 convolution filters instead of 2,048. Sizes and
    learning rates were chosen for two cores. Text is split at white space and punctuation. The
    4,500 updates read 4.6 million words, which is about twice the length of WikiText-2.

    Measured with 2,500 updates (experiments/results/slides_decoders): the validation perplexity is
    78.8. Over three seeds, a named-entity tagger reaches an F1 of 80.6 ± 0.6 with ELMo's vectors
    and 79.4 ± 0.7 without them.
    """
    return ElmoRecipe(
        model="elmo_tiny",
        data=ElmoData(sources=("tfds:wikipedia/20230601.en",)),
        training=TrainingConfig(
            max_steps=4_500,
            learning_rate=2e-3,
            schedule="linear",
            warmup_steps=200,
            beta_2=0.98,
            clip_norm=1.0,
            validate_every=500,
            best_metric="perplexity",
            keep_last=1,
        ),
    )


def elmo_original() -> ElmoRecipe:
    """Returns a recipe for the released ELMo, with 93.6 million parameters besides the softmax.

        macaron train elmo_original runs/elmo --set data.sources=text-lines:1b/*.txt

    The model follows Peters et al. 2018, section 3.4, and the released training code
    (bin/train_elmo.py of bilm-tf): a character CNN with highway layers, and two LSTMs per direction
    with projections and residual connections. The recipe makes ten passes over the One Billion Word
    Benchmark. As in the released code, rows have 20 words, the softmax samples 8,192 words, and
    gradients are clipped at norm 10. An update has 384 rows, which the released code distributes
    over three devices.

    Differences: the released code uses Adagrad with a learning rate of 0.2, and keeps the LSTM
    state from row to row. This recipe uses Adam with a peak learning rate of 5e-4, and resets the
    state for each row.

    The whole text is held in memory. The 768 million words take 3 GB, and 6 GB while they are read.

    Measured: there are no results, because training takes too long on two cores.
    """
    return elmo_tiny().changed(
        model="elmo_original",
        data=dict(
            sources=("text-lines:1b/*.txt",),
            vocabulary_size=793_471,
            row_length=20,
            batch_size=384,
            held_out=1_000,
        ),
        task=dict(samples=8_192),
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
