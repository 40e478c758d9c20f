"""The slides' tasks: what is measured, and what the slide says."""

import dataclasses
from collections.abc import Callable

from experiments.tcn import music, penn_treebank, pixels, synthetic
from experiments.tcn.task_data import Source, TaskData


@dataclasses.dataclass(frozen=True)
class Task:
    """One of the tasks.

    Attributes:
        title: for people.
        loss: of `SequenceObjective`.
        metric: what a validation's best is found by, and the tables show.
        unit: of the metric, for tables.
        open: reads or makes the data, of `Source`, the number of sequences a micro-batch, and the
            seed.
        slide: the slide's figures, by mixer.
        length: positions of the longest sequence to learn from.
        percent: whether the metric is shown in percent; more is better then.
    """

    title: str
    loss: str
    metric: str
    unit: str
    open: Callable[[Source, int, int], TaskData]
    slide: dict[str, float]
    length: int
    percent: bool = False


TASKS = {
    "adding": Task(
        "Adding problem, T = 600",
        "squared_error",
        "loss",
        "mean squared error",
        synthetic.adding,
        {"tcn": 5.8e-5, "lstm": 0.164, "gru": 5.3e-5, "rnn": 0.177},
        synthetic.ADDING_LENGTH,
    ),
    "copy_memory": Task(
        "Copy memory, T = 1000",
        "classes",
        "loss",
        "nats a position",
        synthetic.copy_memory,
        {"tcn": 3.5e-5, "lstm": 0.0204, "gru": 0.0197, "rnn": 0.0202},
        synthetic.COPY_LENGTH,
    ),
    "jsb": Task(
        "JSB Chorales",
        "bernoulli",
        "loss",
        "negative log-likelihood, nats a frame",
        music.music,
        {"tcn": 8.10, "lstm": 8.45, "gru": 8.43, "rnn": 8.91},
        128,
    ),
    "nottingham": Task(
        "Nottingham",
        "bernoulli",
        "loss",
        "negative log-likelihood, nats a frame",
        music.music,
        {"tcn": 3.07, "lstm": 3.29, "gru": 3.46, "rnn": 4.05},
        1_787,
    ),
    "ptb_words": Task(
        "Penn Treebank, words",
        "classes",
        "perplexity",
        "perplexity",
        penn_treebank.words,
        {"tcn": 88.68, "lstm": 78.93, "gru": 92.48, "rnn": 114.50},
        penn_treebank.WORDS[0],
    ),
    "ptb_characters": Task(
        "Penn Treebank, characters",
        "classes",
        "bits",
        "bits a character",
        penn_treebank.characters,
        {"tcn": 1.31, "lstm": 1.36, "gru": 1.37, "rnn": 1.48},
        penn_treebank.CHARACTERS[0],
    ),
    "mnist": Task(
        "Sequential MNIST",
        "classes",
        "accuracy",
        "accuracy, percent",
        pixels.in_order,
        {"tcn": 99.0, "lstm": 87.2, "gru": 96.2, "rnn": 21.5},
        pixels.PIXELS,
        percent=True,
    ),
    "permuted_mnist": Task(
        "Permuted MNIST",
        "classes",
        "accuracy",
        "accuracy, percent",
        pixels.permuted,
        {"tcn": 97.2, "lstm": 85.7, "gru": 87.3, "rnn": 25.3},
        pixels.PIXELS,
        percent=True,
    ),
}
