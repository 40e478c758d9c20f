"""Sequence modelling tasks of Bai et al. 2018, with the results that the paper published."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.runs.sequences.data import (
    ADDING_LENGTH,
    COPY_LENGTH,
    NUM_SYMBOLS,
    PIXELS,
    TaskData,
    adding_batch,
    copy_batch,
    generated_data,
    image_data,
    music_data,
)
from macaron_tf.runs.sequences.text import (
    CHARACTERS,
    WORDS,
    article_data,
    last_word_data,
    text_data,
)


@dataclasses.dataclass(frozen=True)
class Task:
    """A sequence modelling task, with its data, metric and published results.

    Attributes:
        slide: published result of each model in `MODELS`, for the column "slide" of the report;
            `None` means that no result was published.
        length: number of positions in the longest training sequence.
        read_data: function that reads or generates the data. Its arguments are the `SequenceRecipe`
            and the access to TensorFlow Datasets.
        unit: name and unit of the metric, for the report.
        loss: loss of `SequenceObjective`.
        metric: metric by which the best checkpoint is selected, and which the report shows.
        takes_data: whether the task reads the file or folder `data` of the recipe.
    """

    title: str
    slide: tuple[float | None, ...]
    length: int
    read_data: Callable[[Any, Tfds | None], TaskData]
    unit: str
    loss: str = "classes"
    metric: str = "loss"
    takes_data: bool = False


MODELS = ("tcn", "lstm", "gru", "rnn")
_MUSIC = dict(
    read_data=music_data,
    unit="negative log-likelihood, nats per frame",
    loss="bernoulli",
    takes_data=True,
)
_DIGITS = dict(length=PIXELS, unit="accuracy, percent", metric="accuracy")
_WORDS = dict(unit="perplexity", metric="perplexity")
_ROWS = np.arange(PIXELS)
_PERMUTED = np.random.default_rng(0).permutation(PIXELS)  # all runs use the same order

TASKS = {
    "adding": Task(
        "Adding problem, T = 600",
        (5.8e-5, 0.164, 5.3e-5, 0.177),
        ADDING_LENGTH,
        partial(generated_data, adding_batch, f"sequences of {ADDING_LENGTH}"),
        "mean squared error",
        loss="squared_error",
    ),
    "copy_memory": Task(
        "Copy memory, T = 1000",
        (3.5e-5, 0.0204, 0.0197, 0.0202),
        COPY_LENGTH,
        partial(
            generated_data,
            copy_batch,
            f"sequences of {COPY_LENGTH}, {NUM_SYMBOLS} symbols to remember",
        ),
        "nats per position",
    ),
    "jsb": Task("JSB Chorales", (8.10, 8.45, 8.43, 8.91), 128, **_MUSIC),
    "nottingham": Task("Nottingham", (3.07, 3.29, 3.46, 4.05), 1_787, **_MUSIC),
    "ptb_words": Task(
        "Penn Treebank, words",
        (88.68, 78.93, 92.48, 114.50),
        WORDS[0],
        partial(text_data, str.split, WORDS, "words"),
        takes_data=True,
        **_WORDS,
    ),
    "ptb_characters": Task(
        "Penn Treebank, characters",
        (1.31, 1.36, 1.37, 1.48),
        CHARACTERS[0],
        # Replaces runs of spaces by a single space.
        partial(text_data, lambda line: list(" ".join(line.split())), CHARACTERS, "chars"),
        "bits per character",
        metric="bits",
        takes_data=True,
    ),
    "wikitext": Task(
        "Wikipedia's words", (45.19, 48.4, None, None), WORDS[0], article_data, **_WORDS
    ),
    "lambada": Task(
        "LAMBADA, the last word",
        (1279, 4186, None, 14_725),
        WORDS[0],
        last_word_data,
        takes_data=True,
        **_WORDS,
    ),
    "mnist": Task(
        "Sequential MNIST",
        (99.0, 87.2, 96.2, 21.5),
        read_data=partial(image_data, _ROWS),
        **_DIGITS,
    ),
    "permuted_mnist": Task(
        "Permuted MNIST",
        (97.2, 85.7, 87.3, 25.3),
        read_data=partial(image_data, _PERMUTED),
        **_DIGITS,
    ),
}
