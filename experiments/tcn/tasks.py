"""The slides' tasks: data, metric, and the slide's figures."""

import dataclasses
from collections.abc import Callable

from experiments.tcn import data
from experiments.tcn.data import Source, TaskData


@dataclasses.dataclass(frozen=True)
class Task:
    """One of the tasks.

    Attributes:
        title: for people.
        loss: of `SequenceObjective`.
        metric: chooses a validation's best, and is shown in the tables.
        unit: of the metric, for tables.
        open: reads or makes the data, see `experiments.tcn.data`.
        slide: the slide's figures, by mixer.
        length: positions of the longest training sequence.
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
        data.adding,
        {"tcn": 5.8e-5, "lstm": 0.164, "gru": 5.3e-5, "rnn": 0.177},
        data.ADDING_LENGTH,
    ),
    "copy_memory": Task(
        "Copy memory, T = 1000",
        "classes",
        "loss",
        "nats a position",
        data.copy_memory,
        {"tcn": 3.5e-5, "lstm": 0.0204, "gru": 0.0197, "rnn": 0.0202},
        data.COPY_LENGTH,
    ),
    "jsb": Task(
        "JSB Chorales",
        "bernoulli",
        "loss",
        "negative log-likelihood, nats a frame",
        data.music,
        {"tcn": 8.10, "lstm": 8.45, "gru": 8.43, "rnn": 8.91},
        128,
    ),
    "nottingham": Task(
        "Nottingham",
        "bernoulli",
        "loss",
        "negative log-likelihood, nats a frame",
        data.music,
        {"tcn": 3.07, "lstm": 3.29, "gru": 3.46, "rnn": 4.05},
        1_787,
    ),
    "ptb_words": Task(
        "Penn Treebank, words",
        "classes",
        "perplexity",
        "perplexity",
        data.words,
        {"tcn": 88.68, "lstm": 78.93, "gru": 92.48, "rnn": 114.50},
        data.WORDS[0],
    ),
    "ptb_characters": Task(
        "Penn Treebank, characters",
        "classes",
        "bits",
        "bits a character",
        data.characters,
        {"tcn": 1.31, "lstm": 1.36, "gru": 1.37, "rnn": 1.48},
        data.CHARACTERS[0],
    ),
    "mnist": Task(
        "Sequential MNIST",
        "classes",
        "accuracy",
        "accuracy, percent",
        data.in_order,
        {"tcn": 99.0, "lstm": 87.2, "gru": 96.2, "rnn": 21.5},
        data.PIXELS,
        percent=True,
    ),
    "permuted_mnist": Task(
        "Permuted MNIST",
        "classes",
        "accuracy",
        "accuracy, percent",
        data.permuted,
        {"tcn": 97.2, "lstm": 85.7, "gru": 87.3, "rnn": 25.3},
        data.PIXELS,
        percent=True,
    ),
}
