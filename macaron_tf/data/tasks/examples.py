"""Readers of examples with one or several texts, from TensorFlow Datasets or tables."""

import array
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from macaron_tf.data.rows import Columns, GrowingTexts
from macaron_tf.data.sources.names import TABLE_FORMS, Source, parse_source
from macaron_tf.data.sources.records import Records, open_records
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.errors import UserError, nearest


def may_be_unlabelled(split: str) -> bool:
    """Returns whether a split may lack labels.

    Labels may be missing from splits whose names begin with "test" or "all". Other splits must have
    labels, so that a misspelt label column in a training file is an error.
    """
    return split.startswith(("test", "all"))


@dataclasses.dataclass(frozen=True, eq=False)
class Examples(Columns):
    """A split of N examples with one or several texts each, in the order of the source.

    Attributes:
        texts: tuple of sequences of N texts, where `texts[t][n]` is text t of example n. In
            multiple choice, text 0 is the context, and texts 1, 2 and so on are the choices. If an
            example has fewer choices than the task allows, "" stands for each missing choice. In
            triplets, the texts are the anchor, the positive and the negative. A sequence of 16 MB
            or more may be a `Texts` object, which is stored on disk.
        labels: `(N,)` int32 classes or indices of the correct choices; `(N, C)` int32, 1 for each
            class that applies, if several may apply; or `(N,)` float32 scores. Scores
            from the user's table are float64, because such scores may have any range. `None` means
            that the labels are missing or withheld, or that the examples are triplets.
        indices: `(N,)` int64, index of each example in the benchmark, which submission files need.
            Without such an index, this is the index in the split. `None` for triplets.
        groups: `(N, 2)` int64, paragraph index and question index of each example, for tasks that
            also score all answers to a question together. `None` for all other tasks.
        questions: in multiple choice, question that the choices of each example answer. `None`
            means that the choices answer no question.
    """

    texts: tuple[Sequence[str], ...]
    labels: np.ndarray | None
    indices: np.ndarray | None = None
    groups: np.ndarray | None = None
    questions: list[str] | None = None

    @property
    def first(self) -> Sequence[str]:
        return self.texts[0]

    @property
    def second(self) -> Sequence[str] | None:
        """Second text of each example, or `None` if the task has one text."""
        return self.texts[1] if len(self.texts) > 1 else None


def read_examples(
    task: Task,
    split: str,
    tfds: Tfds | None = None,
    source: str | None = None,
    language: str | None = None,
) -> Examples:
    """Reads a split of a task.

    A dataset of TensorFlow Datasets (TFDS) has records with the fields of the task, a field
    `label`, and a field `idx` if the task has submission files or groups. If all labels of a split
    are -1, the labels are withheld. For multiple choice, `Task.lists` describes the fields, and
    `source` may name several datasets, separated by commas.

    All other sources are tables (see `open_records`). A task on the user's own table reads TFDS
    datasets as tables, too. A table has a column for each field of the task and a column
    `Task.label` with scores or class names. For a task with fixed columns and classes, class
    indices are also allowed. Other columns are ignored. If the name of the split begins with "test"
    or "all", the label column may be missing, or empty. Examples without a label are left out,
    unless no example has one.

    Args:
        language: code of the language to read if the records of a TFDS dataset have texts in
            several languages, as in XNLI. Multiple choice and tables ignore `language`.

    Returns:
        The examples. Texts from a file or a function are never empty, except for missing choices. A
        TFDS dataset may have empty texts, such as some answers of MultiRC.
    """
    parsed = task.parse_source(source, *TABLE_FORMS)
    choices, needs_labels = task.kind == "choice", False
    if parsed.kind == "tfds" and not task.own:
        rows = _tfds_rows(task, parsed.location, split, tfds, language)
    else:
        needs_labels = not may_be_unlabelled(split)
        rows = _table_rows(task, open_records(parsed, split, tfds), needs_labels)
    seconds = [(field,) for field in task.second] if choices else [task.second]
    sides = [side for side in (task.first, task.question, *seconds) if side]
    columns = [GrowingTexts() for _ in sides]
    labels, indices = array.array("d"), []
    width = task.num_classes if task.several else 1
    for where, texts, label, index in rows:
        parts = iter(texts)
        for column, side in zip(columns, sides, strict=True):
            column.append(" ".join(itertools.islice(parts, len(side))))
        is_given = label or needs_labels or (task.several and label is not None)
        answers = _parse_label(task, label, where) if is_given else [math.nan] * width
        if choices and is_given and not texts[int(answers[0]) - len(task.second)].strip():
            raise UserError(f"{where}: the correct choice, {label}, is empty")
        labels.extend(answers)
        if index is not None:
            indices.append(index)
    table = np.array(labels).reshape(-1, width)  # (N, 1) or (N, C)
    is_known = ~np.isnan(table[:, 0])  # (N,)
    columns = [column.finish() for column in columns]
    questions = columns.pop(1) if task.question else None
    dtype = (np.float64 if task.own else np.float32) if task.regression else np.int32
    known = np.nan_to_num(table).astype(dtype)
    answers = (known if task.several else known[:, 0]) if is_known.any() else None
    numbers, groups = np.array(indices or np.arange(len(table)), np.int64), None
    if task.grouped:  # the index of an example is that of its answer
        numbers, groups = numbers[:, 2], numbers[:, :2]
    examples = Examples(tuple(columns), answers, numbers, groups, questions)
    is_partly_known = is_known.any() and not is_known.all()
    return examples.take(np.flatnonzero(is_known)) if is_partly_known else examples


# The place of an example for messages, its texts in the order of the task's fields, its label (""
# if it is missing or withheld, `None` if the table has no labels), and its index in the benchmark,
# or `None`. In a grouped task, the index consists of the numbers of its paragraph, its question and
# its answer.
_Rows = Iterator[tuple[str, list[str], str | None, Any]]


def _tfds_rows(task: Task, names: str, split: str, tfds, language: str | None) -> _Rows:
    """Reads the examples of one or several TFDS datasets, whose names are separated by commas."""
    several = len(task.lists) == 3  # each record has several questions
    plain = task.first if task.kind == "choice" else (*task.first, *task.second)
    own_fields = () if several else (*task.question, task.label)
    fields = (*task.first, *(task.lists or task.second), *own_fields)
    fields += ("idx",) * bool(task.submissions or task.grouped)  # index in the benchmark
    for name in names.split(","):
        records = open_records(Source("tfds", name), split, tfds)
        classes = records.class_names.get(task.label) or task.labels
        if {*classes} != {*task.labels}:
            found = f"{records.place} has the classes {', '.join(classes)}"
            raise UserError(f"{found}, but the task {task.name!r} has {', '.join(task.labels)}")
        for where, values in records.rows(fields):
            record = dict(zip(fields, values, strict=True))
            index = record.get("idx")
            if task.grouped:
                index = [index[part] for part in ("paragraph", "question", "answer")]
            texts = [_in_language(record[field], field, language, where) for field in plain]
            if several:
                for question, choices, label in zip(*map(record.get, task.lists), strict=True):
                    yield where, [*texts, question, *_padded(task, choices, where)], label, index
                continue
            if task.kind == "choice":
                choices = record[task.lists[0]] if task.lists else map(record.get, task.second)
                texts += [*map(record.get, task.question), *_padded(task, [*choices], where)]
            label = str(record[task.label])
            yield where, texts, "" if label in ("-1", "-1.0") else label, index


def _padded(task: Task, choices: Sequence[str], where: str) -> list[str]:
    """Returns the texts of all choices of the task; "" stands for a missing choice."""
    missing = len(task.second) - len(choices)
    if len(choices) < 2 or missing < 0:
        raise UserError(f"{where} has {len(choices)} of 2 to {len(task.second)} choices")
    # In a TFDS dataset, an empty text is still a choice, so a hyphen replaces it.
    return [text.strip() or "-" for text in choices] + [""] * missing


def _in_language(texts: str | dict, field: str, language: str | None, where: str) -> str:
    """Returns the text of a field, in `language` if the field has several languages."""
    if not isinstance(texts, dict):
        return texts
    if "translation" in texts:  # a list of language codes and a list of translations
        texts = dict(zip(texts["language"], texts["translation"], strict=True))
    if language not in texts:
        known = ", ".join(sorted(texts))
        raise UserError(f"{where}: {field!r} has the languages {known}, but not {language!r}")
    return texts[language]


def _table_rows(task: Task, table: Records, needs_labels: bool) -> _Rows:
    fields = (*task.first, *task.question, *task.second)
    labels = (task.label,) if needs_labels or task.label in table.fields else ()
    may_be_empty = (task.label, *(task.second if task.kind == "choice" else ()))
    paragraphs, questions = {}, {}
    rows = table.texts((*fields, *labels), may_be_empty, task.several)
    for number, (where, texts) in enumerate(rows):
        index = None
        if task.grouped:  # equal texts get the same paragraph or question
            paragraph = paragraphs.setdefault(texts[0], len(paragraphs))
            index = [paragraph, questions.setdefault((*texts[:2],), len(questions)), number]
        yield where, texts[: len(fields)], texts[-1].strip() if labels else None, index


def _parse_label(task: Task, text: str, where: str) -> list[float]:
    """Returns a class, a score, or for each class 1 if it is among the comma-separated names."""
    if task.several:
        names = set(label_names(text))
        if strange := sorted(names - {*task.labels}):
            _parse_label(dataclasses.replace(task, kind="classification"), strange[0], where)
        return [float(name in names) for name in task.labels]
    if task.regression:
        low, high = task.score_range or (-math.inf, math.inf)
        with contextlib.suppress(ValueError):
            if math.isfinite(score := float(text)) and low <= score <= high:
                return [score]
        allowed = f"a number from {low:g} to {high:g}" if task.score_range else "a finite number"
    else:
        label = int(text) if text.isdecimal() and not task.own else -1
        label = task.labels.index(text) if text in task.labels else label
        if 0 <= label < task.num_classes:
            return [label]
        numbers = "" if task.own else " (or their numbers from 0)"
        allowed = f"one of the classes {', '.join(task.labels[:20])}{numbers}"
    near = nearest(text, task.labels)
    raise UserError(f"{where}: {text[:40]!r} in column {task.label!r} is not {allowed}{near}")


def label_names(text: str) -> list[str]:
    """Splits the labels of an example at commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def read_triplets(source: str, split: str) -> Examples:
    """Reads triplets from a table with the columns `anchor`, `positive` and `negative`."""
    table = open_records(parse_source(source, TABLE_FORMS, "triplets"), split)
    rows = [texts for _, texts in table.texts(("anchor", "positive", "negative"))]
    return Examples(tuple(map(list, zip(*rows, strict=True))), None)
