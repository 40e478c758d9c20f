"""Readers of examples with one or several texts, from TensorFlow Datasets or tables."""

import array
import contextlib
import dataclasses
import math
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

from macaron_tf.data.sources.names import RECORD_TABLE_FORMS, parse_source
from macaron_tf.data.sources.tfds import Tfds, decode_texts, read_columns
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.stored import Texts
from macaron_tf.data.tasks.tables import TABLE_FORMS, Table, parse_task_source
from macaron_tf.errors import UserError, plural

_LABEL, _INDEX = "label", "idx"
_MAX_LISTED_CLASSES = 20  # maximum number of classes that an error message lists
_INVISIBLE = re.compile(  # white space, joiners, direction marks and variation selectors
    "[\\s\\xad\\u034f\\u061c\\u180b-\\u180f\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\ufe00-\\ufe0f\\ufeff]"
)


def may_be_unlabelled(split: str) -> bool:
    """Returns whether a split may lack labels.

    Labels may be missing from splits whose names begin with "test" or "all". Other splits must have
    labels, so that a misspelt label column in a training file is an error.
    """
    return split.startswith(("test", "all"))


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """A split of N examples with one or several texts each, in the order of the source.

    Attributes:
        texts: tuple of sequences of N texts, where `texts[t][n]` is text t of example n. In
            multiple choice, text 0 is the context, and texts 1, 2 and so on are the choices. If an
            example has fewer choices than the task allows, "" stands for each missing choice. In
            triplets, the texts are the anchor, the positive and the negative. A sequence of 16 MB
            or more may be a `Texts` object, which is stored on disk.
        labels: `(N,)` int32 classes or indices of the correct choices, or float32 scores. Scores
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

    def __len__(self) -> int:
        return len(self.texts[0])

    @property
    def first(self) -> Sequence[str]:
        return self.texts[0]

    @property
    def second(self) -> Sequence[str] | None:
        """Second text of each example, or `None` if the task has one text.

        In multiple choice, this is the first choice.
        """
        return self.texts[1] if len(self.texts) > 1 else None

    def take(self, rows: np.ndarray) -> "Examples":
        """Returns the examples with the indices `rows`, in that order."""
        texts = tuple(
            column.take(rows) if isinstance(column, Texts) else [column[row] for row in rows]
            for column in self.texts
        )
        arrays = (self.labels, self.indices, self.groups)
        taken = (None if array is None else array[rows] for array in arrays)
        return Examples(texts, *taken, self.questions and [self.questions[row] for row in rows])


def read_examples(
    task: Task,
    split: str,
    tfds: Tfds | None = None,
    source: str | None = None,
    language: str | None = None,
) -> Examples:
    """Reads a split of a task.

    A dataset of TensorFlow Datasets (TFDS) has records with the fields of the task, a field
    `label`, and a field `idx` if the task has submission files. If all labels of a split are -1,
    the labels are withheld. For multiple choice, `Task.lists` describes the fields, and `source`
    may name several datasets, separated by commas.

    All other sources are tables (see `Table`). A task on the user's own table reads TFDS datasets
    as tables, too. A table has a column for each field of the task and a column `Task.label` with
    scores or class names. For a task with fixed columns and classes, class indices are also
    allowed. Other columns are ignored. If the name of the split begins with "test" or "all", the
    label column may be missing, or empty in all rows.

    Args:
        task: classification, regression or multiple-choice task.
        split: name of the split. A TFDS split may be a slice such as "train[:10%]".
        tfds: argument of `open_set`.
        source: name of the source, in the form `tfds:NAME[/CONFIG][:VERSION]`, `tsv:FILE`,
            `jsonl:FILE`, `parquet:FILE`, `datasets:DIR` or `python:MODULE:FUNCTION`; `None` means
            the default source of the task.
        language: code of the language to read if the records of a TFDS dataset have texts in
            several languages, as in XNLI. Multiple choice and tables ignore `language`.

    Returns:
        The examples. Texts from a file or a function are never empty, except for missing choices. A
        TFDS dataset may have empty texts, such as some answers of MultiRC.

    Raises:
        UserError: the source, the split or a field does not exist; a label is not one of the
            classes; a score is not a number or is out of range; only some labels of a split are
            missing; a TFDS dataset has other classes than the task, too many or too few choices, or
            no texts in `language`; or the table is invalid (see `Table.rows`).
    """
    parsed = parse_task_source(task, source, *TABLE_FORMS)
    if parsed.kind == "tfds" and not task.own:
        arguments = (task, parsed.location, split, tfds)
        if task.kind == "choice":
            texts_by_field, *arrays = _choices_of_tfds(*arguments)
        else:
            texts_by_field, *arrays = _columns_of_tfds(*arguments, language)
    else:
        texts_by_field, *arrays = _columns_of_table(task, Table(parsed, split, tfds))
    second = [(field,) for field in task.second] if task.kind == "choice" else [task.second]
    first, questions, *second = (
        _joined([*map(texts_by_field.get, names)]) for names in (task.first, task.question, *second)
    )
    texts = (first, *filter(None, second))
    return Examples(texts, *arrays, questions=questions or None)


def _joined(columns: Sequence[Sequence[str]]) -> Sequence[str]:
    """Joins the texts of several columns by spaces, separately for each example."""
    if len(columns) == 1:
        return columns[0]
    return Texts.of(map(" ".join, zip(*columns, strict=True)))


# Dict mapping field name to texts, and the `labels`, `indices` and `groups` of `Examples`.
_Columns = tuple[Mapping[str, Sequence[str]], np.ndarray | None, np.ndarray, np.ndarray | None]


def _columns_of_tfds(task, name, split, tfds, language) -> _Columns:
    fields, index = (*task.first, *task.second), (_INDEX,) * bool(task.submissions)
    columns = read_columns(name, split, (*fields, _LABEL, *index), tfds)
    _check_classes(task, name, columns.class_names.get(_LABEL, task.labels))
    values = columns.values
    if task.undecided and not np.all(values[_LABEL] == -1):
        values = {key: value[values[_LABEL] != -1] for key, value in values.items()}
    labels = values[_LABEL]
    if np.all(labels == -1):  # the labels of a test set are withheld
        labels = None
    else:
        for record_index, label in enumerate(labels.tolist()):
            if not _is_allowed(task, label):
                raise UserError(
                    f"tfds:{name}, split {split!r}, record {record_index} has the label {label}, "
                    f"not {_allowed_labels(task)}: prepare the dataset again"
                )
        labels = labels.astype(np.float32 if task.regression else np.int32)
    groups = None
    if task.grouped:
        parts = [values[f"{_INDEX}/{part}"] for part in ("paragraph", "question")]
        groups = np.stack(parts, axis=1).astype(np.int64)
    key = f"{_INDEX}/answer" if task.grouped else _INDEX
    indices = values[key] if index else np.arange(len(values[_LABEL]))
    where = f"tfds:{name}, split {split!r}"
    texts = {field: _texts(values, field, language, where) for field in fields}
    return texts, labels, indices.astype(np.int64), groups


def _texts(values: Mapping, field: str, language: str | None, where: str) -> list[str]:
    """Returns the texts of a field, in `language` if the field has several languages."""
    codes, translations = (values.get(f"{field}/{key}") for key in ("language", "translation"))
    if field in values:
        return decode_texts(values[field])
    if f"{field}/{language}" in values:
        return decode_texts(values[f"{field}/{language}"])
    languages = {key.partition("/")[2] for key in values if key.startswith(f"{field}/")}
    if codes is not None:  # each record has a list of language codes and a list of translations
        languages = {code.decode() for row in codes for code in row}
        rows = [dict(zip(*pair, strict=True)) for pair in zip(codes, translations, strict=True)]
        if language and all(language.encode() in row for row in rows):
            return decode_texts([row[language.encode()] for row in rows])
    if language in languages:
        raise UserError(
            f"{where}: some records have no text in {language!r} in the field {field!r}: give "
            "another language in --languages, or another split"
        )
    raise UserError(
        f"{where}: {field!r} has the languages {', '.join(sorted(languages))}, but --languages "
        f"names {repr(language) if language else 'none'}: give one of the languages"
    )


def _check_classes(task: Task, name: str, classes: tuple[str, ...]) -> None:
    if classes != task.labels:
        raise UserError(
            f"tfds:{name} has the classes {', '.join(classes) or 'none'}, but the task "
            f"{task.name!r} has {', '.join(task.labels) or 'none'}: give a dataset with the "
            "classes of the task in the same order"
        )


def _choices_of_tfds(task: Task, names: str, split: str, tfds: Tfds | None) -> _Columns:
    """Reads multiple-choice examples from one or several TFDS datasets.

    Args:
        names: names of the datasets, separated by commas.
    """
    several = len(task.lists) == 3  # each record has several questions
    example_fields = (
        task.lists if several else (*task.question, *(task.lists or task.second), _LABEL)
    )
    fields, rows, labels = (*task.first, *example_fields), [], []
    for name in names.split(","):
        columns = read_columns(name, split, fields, tfds)
        _check_classes(task, name, columns.class_names.get(_LABEL, task.labels))
        records = zip(*map(columns.values.get, fields), strict=True)
        for record_index, (first, *others) in enumerate(records):
            where = f"tfds:{name}, split {split!r}, record {record_index}"
            examples = zip(*others, strict=True) if several else [_split_record(task, others)]
            for *question, choices, label in examples:
                if not 2 <= len(choices) <= len(task.second):
                    raise UserError(
                        f"{where} has {len(choices)} {plural('choice', len(choices))}, not 2 to "
                        f"{len(task.second)}: give another dataset, or prepare this dataset again"
                    )
                # In a TFDS dataset, an empty text is still a choice, so a hyphen replaces it.
                choice_texts = [text.strip() or "-" for text in decode_texts(choices)]
                missing = len(task.second) - len(choice_texts)
                rows.append((*decode_texts([first, *question]), *choice_texts, *[""] * missing))
                label = label.decode() if isinstance(label, bytes) else str(label)
                place = f" in field {fields[-1]!r}"
                labels.append(-1 if label == "-1" else _parse_label(task, label, where, place))
    is_secret = set(labels) == {-1}
    if -1 in labels and not is_secret:
        raise UserError(
            f"tfds:{names}, split {split!r} has both withheld (-1) and known labels: prepare the "
            "dataset again"
        )
    names = (*task.first, *task.question, *task.second)
    texts = {
        name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    return texts, None if is_secret else np.array(labels, np.int32), np.arange(len(rows)), None


def _split_record(task: Task, values: Sequence) -> tuple:
    """Splits the values of a record into the question (if any), the choices and the label."""
    *texts, label = values
    question, choices = texts[: len(task.question)], texts[len(task.question) :]
    return *question, choices[0] if task.lists else choices, label


def _columns_of_table(task: Task, table: Table) -> _Columns:
    fields, choices = (*task.first, *task.question, *task.second), task.kind == "choice"
    needs_labels = not may_be_unlabelled(table.split)
    reads_labels = needs_labels or task.label in table.header
    may_be_empty = (task.label, *(task.second if choices else ()))
    columns, labels = [Texts() for _ in fields], array.array("d")
    quoted, first_quoted, unlabelled = 0, "", ""
    place = f" in column {task.label!r}"
    for where, row in table.rows((*fields, task.label) if reads_labels else fields, may_be_empty):
        for column, text in zip(columns, row, strict=False):
            column.append(text)
        if table.keeps_quotes and any(cell[:1] == '"' == cell[1:][-1:] for cell in row):
            quoted, first_quoted = quoted + 1, first_quoted or where
        answer = None
        if reads_labels and (needs_labels or row[-1].strip()):
            answer = _parse_label(task, row[-1].strip(), where, place)
            labels.append(answer)
        else:
            unlabelled = unlabelled or where
        if choices:
            _check_choices(task, row[: len(fields)][-len(task.second) :], answer, where)
    if quoted:
        print(
            f"warning: {first_quoted}: quotes surround a text, in {quoted:,} "
            f"{plural('line', quoted)} of the file; the quotes are part of the text, because the "
            "name of the file does not end in .csv",
            file=sys.stderr,
        )
    if labels and unlabelled:
        _parse_label(task, "", unlabelled, place)  # raises a UserError
    texts = {field: column.list_if_small() for field, column in zip(fields, columns, strict=True)}
    count, groups = len(columns[0]), None
    if task.grouped:  # equal texts get the same paragraph index or question index
        paragraphs, questions = texts[task.first[0]], texts[task.second[0]]
        pairs = list(zip(paragraphs, questions, strict=True))
        groups = np.stack([_distinct_indices(paragraphs), _distinct_indices(pairs)], axis=1)
    scores = np.float64 if task.own else np.float32
    answers = np.array(labels, scores if task.regression else np.int32) if labels else None
    return texts, answers, np.arange(count, dtype=np.int64), groups


def _check_choices(task: Task, choices: Sequence[str], answer: int | None, where: str) -> None:
    """Raises a `UserError` if the correct choice is empty, or fewer than two choices have text."""
    is_filled = [bool(choice.strip()) for choice in choices]
    if sum(is_filled) < 2:
        names = ", ".join(task.second)
        raise UserError(
            f"{where}: fewer than two choices have text: fill in two or more of the columns {names}"
        )
    if answer is not None and not is_filled[answer]:
        raise UserError(
            f"{where}: the correct choice {task.labels[answer]!r} is empty: fill in the column "
            f"{task.second[answer]}, or correct the label"
        )


def _distinct_indices(items: Sequence) -> list[int]:
    """Numbers the distinct items from 0, and returns the number of each item."""
    indices = {item: index for index, item in enumerate(dict.fromkeys(items))}
    return [indices[item] for item in items]


def _parse_label(task: Task, text: str, where: str, place: str = "") -> int | float:
    label = math.nan if task.regression else -1
    if task.regression:
        with contextlib.suppress(ValueError):
            label = float(text)
    elif text in task.labels:
        label = task.labels.index(text)
    elif text.isdecimal() and not task.own:
        label = int(text)
    if _is_allowed(task, label):
        return label
    lookalikes = [name for name in task.labels if normalize_label(name) == normalize_label(text)]
    shown = f"{text[:40]!a}, which looks like {lookalikes[0]!a}," if lookalikes else repr(text[:40])
    raise UserError(
        f"{where}: {shown}{place} is not {_allowed_labels(task)}: "
        "correct the label or remove the example"
    )


def normalize_label(label: str) -> str:
    """Normalizes a label, so that labels that look alike become equal.

    Letters become lower-case, and white space and invisible characters are removed. A number such
    as "01" becomes "1.0".
    """
    visible = _INVISIBLE.sub("", unicodedata.normalize("NFC", label)).casefold()
    with contextlib.suppress(ValueError):
        return str(float(visible))
    return visible


def warn_alike(where_by_label: Mapping[str, str]) -> None:
    """Prints a warning for each label that looks like an earlier label.

    Args:
        where_by_label: dict mapping each label to the location where the label first occurs, such
            as a file and a line.
    """
    looks: dict[str, str] = {}
    for label, where in where_by_label.items():
        if (earlier := looks.setdefault(normalize_label(label), label)) != label:
            print(
                f"warning: {where}: the label {label!a} looks like the label {earlier!a} in "
                f"{where_by_label[earlier]}, but is a different class; if both mean the same "
                "class, correct one of them",
                file=sys.stderr,
            )


def _is_allowed(task: Task, label: float) -> bool:
    if not task.regression:
        return 0 <= label < task.num_classes
    low, high = task.score_range or (-math.inf, math.inf)
    return math.isfinite(label) and low <= label <= high


def _allowed_labels(task: Task) -> str:
    if not task.regression:
        more = ("...",) if len(task.labels) > _MAX_LISTED_CLASSES else ()
        names = ", ".join((*task.labels[:_MAX_LISTED_CLASSES], *more))
        return f"one of the classes {names}" + (not task.own) * " (or their numbers from 0)"
    if task.score_range is None:
        return "a finite number"
    return "a number from {:g} to {:g}".format(*task.score_range)


def read_triplets(source: str, split: str) -> Examples:
    """Reads triplets from a table with the columns `anchor`, `positive` and `negative`.

    Args:
        source: name of the source, in the form `tsv:FILE`, `jsonl:FILE`, `parquet:FILE` or
            `datasets:DIR`.
        split: name of the split.

    Raises:
        UserError: `source` has another form, or the table is invalid (see `Table.rows`).
    """
    table = Table(parse_source(source, ("tsv:FILE", *RECORD_TABLE_FORMS), "triplets"), split)
    rows = [texts for _, texts in table.rows(("anchor", "positive", "negative"))]
    return Examples(tuple(map(list, zip(*rows, strict=True))), None)
