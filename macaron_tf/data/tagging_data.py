"""Sentences whose words have tags: from TFDS or from files in CoNLL's columns."""

import dataclasses
import os
from collections.abc import Iterator, Sequence

import numpy as np

from macaron_tf.data.tasks import Task
from macaron_tf.data.text_files import lines_of, split_path
from macaron_tf.data.tfds_records import read_sequences
from macaron_tf.errors import UserError

_WORDS, _TAGS = "tokens", "ner"
_DOCUMENT = "-DOCSTART-"


@dataclasses.dataclass(frozen=True, eq=False)
class TaggedSentences:
    """A split of a tagging task, N sentences in the source's order.

    Args:
        words: the words of each sentence.
        labels: of each sentence, (words,) int32 numbers of tags; None where they are not known.
    """

    words: list[list[str]]
    labels: list[np.ndarray] | None

    def __len__(self) -> int:
        """N."""
        return len(self.words)


def read_tagged(
    task: Task,
    split: str,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
    source: str | None = None,
) -> TaggedSentences:
    """Reads a split of a task of tags; the tags become IOB2, whichever kind of IOB they are in.

    Args:
        task: what to read.
        split: as for `read_examples`.
        data_dir, download: TFDS's folder, and whether TFDS may fetch the set.
        source: instead of the task's own, one of
            `tfds:NAME[/CONFIG][:VERSION]`: records of `tokens` and their classes `ner`;
            `conll:FILE`: a word a line, in the first of several columns (with tabs or spaces
                between), its tag in the last; an empty line ends a sentence. `{split}` in the name
                stands for the split; without it there are "train" and, equally, "all".

    Returns:
        The sentences.

    Raises:
        UserError: no such source, split, field; a tag that the task does not have; names the file
            and the line.
    """
    source = source or task.source
    kind, _, rest = (source or "").partition(":")
    if kind == "tfds" and rest:
        return _read_tfds(task, rest, split, data_dir, download)
    if kind == "conll" and rest:
        return _read_conll(task, rest, split)
    raise UserError(
        f"unknown source {source!r} of the task {task.name!r}: give tfds:NAME[/CONFIG][:VERSION] "
        "or conll:FILE"
    )


def as_iob2(tags: Sequence[str]) -> list[str]:
    """A sentence's tags with a B- where an entity begins.

    In IOB1, as CoNLL's own files are, B- is only written between two entities of a type: 267
    entities of TensorFlow Datasets' copy of the training set begin with I- still, which a scorer
    of IOB2 would not see.

    Args:
        tags: in IOB1, IOB2 or a mixture.

    Returns:
        The same entities in IOB2.
    """
    found, before = [], "O"
    for tag in tags:
        opens = tag.startswith("I-") and before[2:] != tag[2:]
        found.append(f"B{tag[1:]}" if opens else tag)
        before = tag
    return found


def _read_tfds(task: Task, name, split, data_dir, download) -> TaggedSentences:
    columns = read_sequences(name, split, (_WORDS, _TAGS), data_dir, download)
    names = columns.class_names.get(_TAGS, ())
    if set(names) != set(task.labels):
        raise UserError(
            f"tfds:{name} has the tags {', '.join(names) or 'none'}, the task {task.name!r} "
            f"{', '.join(task.labels)}: take a set with the task's tags"
        )
    words = [
        [word.decode("utf-8", "replace") for word in words] for words in columns.values[_WORDS]
    ]
    tags = [[names[tag] for tag in tags] for tags in columns.values[_TAGS]]
    return TaggedSentences(words, [_numbers(task, found) for found in tags])


def _read_conll(task: Task, name: str, split: str) -> TaggedSentences:
    path = split_path("conll", name, split)
    words, labels = [], []
    for sentence in _sentences(task, path):
        words.append([word for word, _ in sentence])
        labels.append(_numbers(task, [tag for _, tag in sentence]))
    if not words:
        raise UserError(f"{path} holds no sentence: give a word and its tag a line")
    return TaggedSentences(words, labels)


def _sentences(task: Task, path) -> Iterator[list[tuple[str, str]]]:
    sentence: list[tuple[str, str]] = []
    for number, line in enumerate(lines_of(path), start=1):
        # A no-break space stands within a word: only these two separate columns.
        columns = line.replace("\t", " ").split(" ")
        columns = [column for column in columns if column]
        if not columns or columns[0] == _DOCUMENT:
            if sentence:
                yield sentence
            sentence = []
            continue
        if len(columns) < 2:
            raise UserError(
                f"{path}, line {number}: {columns[0][:40]!r} stands alone; give a word and its tag "
                "with a tab or a space between, and an empty line after each sentence"
            )
        if columns[-1] not in task.labels:
            raise UserError(
                f"{path}, line {number}: the tag {columns[-1][:40]!r} is none of the task "
                f"{task.name!r}, which has {', '.join(task.labels)}; correct it"
            )
        sentence.append((columns[0], columns[-1]))
    if sentence:
        yield sentence


def _numbers(task: Task, tags: Sequence[str]) -> np.ndarray:
    return np.array([task.labels.index(tag) for tag in as_iob2(tags)], np.int32)
