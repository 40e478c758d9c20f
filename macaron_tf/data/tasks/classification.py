"""The examples of a task: from TensorFlow Datasets, or from a table of one's own."""

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import (
    EncodedExamples,
    ExampleBatches,
    Progress,
    in_parts,
)
from macaron_tf.data.sources.names import TFDS, Source, parse_source
from macaron_tf.data.sources.tfds import read_columns
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.encoding import row_encoder
from macaron_tf.errors import UserError
from macaron_tf.io.files import lines_of
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows

_LABEL, _INDEX = "label", "idx"
# Only what is to be predicted may come without answers: a label column that is misspelt in the
# training file must not pass for a file without labels.
_MAYBE_UNLABELLED = ("test", "all")


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """A split of a task, N examples in the source's order.

    Args:
        first: the first text of each.
        second: the second text of each; None for a task on one text.
        labels: (N,) int32 classes, or float32 scores of a regression task; None where the answers
            are kept secret.
        indices: (N,) int64, the benchmark's number of each, which its server asks for.
        groups: (N, 2) int64, the paragraph and the question of each, for a task whose examples are
            judged together by question; None otherwise.
    """

    first: list[str]
    second: list[str] | None
    labels: np.ndarray | None
    indices: np.ndarray
    groups: np.ndarray | None

    def __len__(self) -> int:
        """N."""
        return len(self.first)


def read_examples(
    task: Task,
    split: str,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
    source: str | None = None,
) -> Examples:
    """Reads a split of a task.

    Args:
        task: what to read.
        split: "train", "validation", "test" or another of the source's; TFDS slices such as
            "train[:10%]" too.
        data_dir: TFDS's folder; its own default when None.
        download: lets TFDS fetch and prepare the set.
        source: instead of the task's own, one of
            `tfds:NAME[/CONFIG][:VERSION]`: records with the task's fields, `label` (-1 = secret)
                and `idx`;
            `tsv:FILE`: tab-separated columns under a header, plain or `.gz`, without quoting: the
                task's fields and `label`, a class by its name or number, or a score; others are
                not read. `{split}` in the name stands for the split; without it there are "train"
                and, equally, "all". The label column may be absent where the split's name begins
                with "test" or "all".

    Returns:
        The examples. Records of TFDS may hold empty texts (some of MultiRC's answers are empty);
        a file of one's own may not.

    Raises:
        UserError: no such source, split, column; a label outside the set, a score that is no
            number, an empty text, a line of too few or too many columns; names the file, the line
            and the column.
    """
    source = source or task.source
    if source is None:
        raise UserError(f"the task {task.name!r} has no data of its own: give tsv:FILE")
    parsed = parse_source(source, (TFDS, "tsv:FILE"), f"the task {task.name!r}")
    if parsed.kind == "tfds":
        return _read_tfds(task, parsed.place, split, data_dir, download)
    return _read_tsv(task, parsed, split)


def _read_tfds(task, name, split, data_dir, download) -> Examples:
    fields = (*task.first, *task.second)
    columns = read_columns(name, split, (*fields, _LABEL, _INDEX), data_dir, download)
    names = columns.class_names.get(_LABEL, task.labels)
    if names != task.labels:
        raise UserError(
            f"tfds:{name} has the classes {', '.join(names) or 'none'}, the task {task.name!r} "
            f"{', '.join(task.labels) or 'none'}: take a set with the task's classes, in that order"
        )
    values = columns.values
    texts = {field: [text.decode("utf-8", "replace") for text in values[field]] for field in fields}
    groups = None
    if task.grouped:
        groups = np.stack([values[f"{_INDEX}/paragraph"], values[f"{_INDEX}/question"]], axis=1)
        groups = groups.astype(np.int64)  # (N, 2)
        indices = values[f"{_INDEX}/answer"]
    else:
        indices = values[_INDEX]
    labels = _known_labels(task, values[_LABEL], f"tfds:{name}, split {split!r}")
    return _examples(task, texts, labels, indices.astype(np.int64), groups)


def _known_labels(task: Task, labels: np.ndarray, where: str) -> np.ndarray | None:
    """None for the -1 of a test set whose answers are secret; checked otherwise."""
    if np.all(labels == -1):
        return None
    if task.regression:
        low, high = task.score_range or (-math.inf, math.inf)
        wrong = ~(np.isfinite(labels) & (labels >= low) & (labels <= high))
    else:
        wrong = (labels < 0) | (labels >= task.num_classes)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise UserError(
            f"{where}, record {row}: the label is {labels[row]}, not {_allowed(task)}; "
            "prepare the set again"
        )
    return labels.astype(np.float32 if task.regression else np.int32)


def _read_tsv(task: Task, source: Source, split: str) -> Examples:
    path = source.path(split)
    fields = (*task.first, *task.second)
    rows = _rows(path)
    header = next(rows, (1, [""]))[1]
    may_lack_labels = split.startswith(_MAYBE_UNLABELLED)
    wanted = fields if may_lack_labels and _LABEL not in header else (*fields, _LABEL)
    places = {}
    for field in wanted:
        if header.count(field) != 1:
            found = ", ".join(repr(name[:40]) for name in header[:20])
            raise UserError(
                f"{path}, line 1: {header.count(field) or 'no'} column named {field!r} among "
                f"{found}; the task {task.name!r} needs one of each of {', '.join(wanted)}"
            )
        places[field] = header.index(field)
    texts = {field: [] for field in fields}
    labels = []
    for number, row in rows:
        if len(row) != len(header):
            raise UserError(
                f"{path}, line {number}: {len(row)} columns, not the header's {len(header)}; "
                "separate columns by one tab, and take tabs and line ends out of texts"
            )
        for field in fields:
            text = row[places[field]]
            if not text.strip():
                raise UserError(
                    f"{path}, line {number}: the text in column {field!r} is empty; "
                    "fill it in or take the line out"
                )
            texts[field].append(text)
        if _LABEL in places:
            labels.append(_parse_label(task, row[places[_LABEL]], f"{path}, line {number}"))
    count = len(texts[fields[0]])
    if not count:
        raise UserError(f"{path} holds no example: give a header and a line for each example")
    values = np.array(labels, np.float32 if task.regression else np.int32) if labels else None
    groups = _groups_by_text(task, texts) if task.grouped else None
    return _examples(task, texts, values, np.arange(count, dtype=np.int64), groups)


def _rows(path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines_of(path), start=1):
        yield number, line.split("\t")


def _parse_label(task: Task, text: str, where: str) -> int | float:
    text = text.strip()
    if task.regression:
        low, high = task.score_range or (-math.inf, math.inf)
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if math.isfinite(score) and low <= score <= high:
            return score
    elif text in task.labels:
        return task.labels.index(text)
    elif text.isdecimal() and int(text) < task.num_classes:
        return int(text)
    raise UserError(
        f"{where}: {text[:40]!r} in column {_LABEL!r} is not {_allowed(task)}; "
        "correct it or take the line out"
    )


def _allowed(task: Task) -> str:
    if not task.regression:
        return f"one of the classes {', '.join(task.labels)} (or their numbers from 0)"
    if task.score_range is None:
        return "a finite number"
    return "a number from {:g} to {:g}".format(*task.score_range)


def _groups_by_text(task: Task, texts: dict[str, list[str]]) -> np.ndarray:
    """(N, 2) int64: in a table, equal texts are the same paragraph, or the same question to it."""
    paragraphs, questions = {}, {}
    pairs = zip(texts[task.first[0]], texts[task.second[0]], strict=True)
    return np.array(
        [
            (
                paragraphs.setdefault(paragraph, len(paragraphs)),
                questions.setdefault((paragraph, question), len(questions)),
            )
            for paragraph, question in pairs
        ],
        np.int64,
    )


def _examples(task, texts, labels, indices, groups) -> Examples:
    second = _joined(texts, task.second) if task.second else None
    return Examples(_joined(texts, task.first), second, labels, indices, groups)


def _joined(texts: dict[str, list[str]], fields: Sequence[str]) -> list[str]:
    return [" ".join(parts) for parts in zip(*(texts[field] for field in fields), strict=True)]


_CHUNK = 1024  # texts tokenized at once: at 512 ids a row, 2 MB of ids


def encode_examples(
    vocabulary: PieceVocabulary,
    examples: Examples,
    max_length: int,
    progress: Progress | None = None,
    causal: bool = False,
) -> EncodedExamples:
    """Tokenizes a split once, by `encode_pairs` or `encode_causal`.

    Args:
        vocabulary: an encoder vocabulary.
        examples: a split.
        max_length: greatest length of a row, special ids included.
        progress: see `in_parts`.
        causal: whether the rows are a causal model's.

    Returns:
        The rows, in the examples' order.

    Raises:
        UserError: no example, or `max_length` is too small.
    """
    if not len(examples):
        raise UserError("no example to encode: take a larger split")
    rows, boundaries = [], []
    for part in in_parts(len(examples), _CHUNK, progress):
        first, second = (
            None if texts is None else tf.constant(texts[part])
            for texts in (examples.first, examples.second)
        )
        encoded = row_encoder(causal)(vocabulary, first, second, max_length)
        token_ids = encoded["token_ids"].numpy()  # (B, L)
        lengths = (token_ids != 0).sum(axis=1)  # (B,): PAD is 0 and stands only at the end
        boundaries.append(lengths - (encoded["segment_ids"].numpy() != 0).sum(axis=1))
        rows += [row[:length] for row, length in zip(token_ids, lengths, strict=True)]
    return EncodedExamples(
        TokenRows.from_lists(rows, vocabulary.size),
        np.concatenate(boundaries).astype(np.int64),
        examples.labels,
        max_length,
        cls_last=vocabulary.cls_last,
    )


class ClassificationData(ExampleBatches):
    """`ExampleBatches` of a classification task; its labels are classes or scores."""

    @classmethod
    def from_examples(
        cls,
        examples: Examples,
        vocabulary: PieceVocabulary,
        max_length: int,
        batch_size: int,
        **options,
    ) -> "ClassificationData":
        """Tokenizes and batches a split.

        Args:
            examples, vocabulary, max_length: as for `encode_examples`.
            batch_size, options: as for `ExampleBatches`.

        Returns:
            The data.

        Raises:
            UserError: as those two.
        """
        return cls(encode_examples(vocabulary, examples, max_length), batch_size, **options)
