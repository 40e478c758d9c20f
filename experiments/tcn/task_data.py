"""What a task needs of its data."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a task's data are.

    Attributes:
        data: a file or folder, for the tasks that read one.
        data_dir, download: TensorFlow Datasets', for those that read from there.
    """

    data: str | None = None
    data_dir: str | None = None
    download: bool = False


@dataclasses.dataclass(frozen=True)
class TaskData:
    """A task's batches, dicts as `SequenceObjective` takes them.

    Attributes:
        train: the endless dataset that begins with micro-batch number `start`.
        validation: what the best checkpoint is chosen by.
        test: what the best one is scored on; None where there is none.
        summary: what the data are, for people.
        vocab_size: of data that are ids.
    """

    train: Callable[[int], tf.data.Dataset]
    validation: tf.data.Dataset
    test: tf.data.Dataset | None
    summary: str
    vocab_size: int | None = None
