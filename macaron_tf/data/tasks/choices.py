"""Contexts and the choices that may go with each: read, tokenized."""

import dataclasses
import os

import numpy as np

from macaron_tf.data.batches import EncodedExamples, Progress
from macaron_tf.data.tasks.classification import Examples, encode_examples, read_examples
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.text.base import PieceVocabulary


@dataclasses.dataclass(frozen=True, eq=False)
class Choices:
    """A split of a task, N examples in the source's order.

    Args:
        contexts: N texts.
        choices: R lists of N texts, the first choice of every example first.
        labels: (N,) int32, which one is right; None where that is kept secret.
    """

    contexts: list[str]
    choices: tuple[list[str], ...]
    labels: np.ndarray | None

    def __len__(self) -> int:
        """N."""
        return len(self.contexts)


def read_choices(
    task: Task,
    split: str,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
    source: str | None = None,
) -> Choices:
    """Reads a split of a task whose `second` fields are the choices.

    Args:
        task: of kind `"choice"`.
        split, data_dir, download, source: as for `read_examples`.

    Raises:
        UserError: as there.
    """
    # Of each choice a task on two texts, so that sources and their errors are the same.
    found = [
        read_examples(
            dataclasses.replace(task, kind="classification", second=(field,)),
            split,
            data_dir,
            download,
            source,
        )
        for field in task.second
    ]
    return Choices(found[0].first, tuple(part.second for part in found), found[0].labels)


def encode_choices(
    vocabulary: PieceVocabulary,
    examples: Choices,
    max_length: int,
    progress: Progress | None = None,
    causal: bool = False,
) -> EncodedExamples:
    """Tokenizes a split once: R rows an example, its context with each choice.

    Args:
        vocabulary, max_length, progress, causal: as for `encode_examples`.
        examples: a split.

    Returns:
        The rows, example by example.

    Raises:
        UserError: as there.
    """
    count = len(examples.choices)
    pairs = Examples(
        [context for context in examples.contexts for _ in range(count)],
        [text for texts in zip(*examples.choices, strict=True) for text in texts],
        None,
        np.arange(count * len(examples)),
        None,
    )
    encoded = encode_examples(vocabulary, pairs, max_length, progress, causal)
    return dataclasses.replace(encoded, labels=examples.labels, count=count)
