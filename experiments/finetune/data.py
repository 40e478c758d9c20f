"""A task's training and development sets, read once and tokenized once."""

import functools
import os
from typing import Any

from experiments.finetune.kinds import Limits, kind_of
from macaron_tf.data.batches import EncodedExamples
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.errors import UserError
from macaron_tf.io.progress import track
from macaron_tf.text import PieceVocabulary

TRAIN = "train"


class TaskData:
    """The examples that a fine-tuning needs.

    Args:
        task: the task.
        splits: "train" and the development sets, with labels.
    """

    def __init__(self, task: Task, splits: dict[str, Any]):
        self.task = task
        self.splits = splits
        self._key: tuple | None = None
        self._encoded: dict[str, EncodedExamples] = {}

    @classmethod
    def read(
        cls,
        task: Task,
        source: str | None = None,
        data_dir: str | os.PathLike | None = None,
        download: bool = False,
    ) -> "TaskData":
        """Reads the training set and the task's development sets.

        Args:
            task, source, data_dir, download: as for `read_examples`.

        Raises:
            UserError: as `read_examples`; or a set's labels are secret.
        """
        kind, splits = kind_of(task), {}
        for split in (TRAIN, *task.validation_splits):
            splits[split] = kind.read(split, data_dir, download, source)
            if splits[split].labels is None:
                raise UserError(
                    f"the labels of split {split!r} of {source or task.source} are secret: "
                    "fine-tuning needs a training and a development set with labels"
                )
        return cls(task, splits)

    @property
    def validation(self) -> dict[str, Any]:
        """The development sets."""
        return {split: examples for split, examples in self.splits.items() if split != TRAIN}

    def encoded(self, split: str, vocabulary: PieceVocabulary, limits: Limits) -> EncodedExamples:
        """A split, tokenized; the last vocabulary's rows are kept.

        Args:
            split: one of `splits`.
            vocabulary, limits: as for `TaskKind.encode`.
        """
        key = (vocabulary.hash, limits)
        if key != self._key:
            self._key, self._encoded = key, {}
        if split not in self._encoded:
            tracked = functools.partial(
                track, what=f"tokenizing {self.task.name} {split}", unit="examples"
            )
            self._encoded[split] = kind_of(self.task).encode(
                vocabulary, self.splits[split], limits, tracked
            )
        return self._encoded[split]
