"""Questions, their contexts and the answers that stand in them: from TFDS or SQuAD's files."""

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import NamedTuple

from macaron_tf.data import storage
from macaron_tf.data.tasks import Task
from macaron_tf.data.text_files import split_path
from macaron_tf.data.tfds_records import read_sequences
from macaron_tf.errors import UserError

# Only what is to be predicted may come without answers.
_MAYBE_UNLABELLED = ("test", "all")


class Answer(NamedTuple):
    """An answer: `context[start : start + len(text)] == text`, counted in characters."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, eq=False)
class Questions:
    """A split of a question answering task, N examples in the source's order.

    Args:
        ids: the source's name of each question.
        questions: the questions.
        contexts: the text that each is about.
        labels: the right answers of each question, none where there is no answer; None where they
            are kept secret.
    """

    ids: list[str]
    questions: list[str]
    contexts: list[str]
    labels: list[tuple[Answer, ...]] | None

    def __len__(self) -> int:
        """N."""
        return len(self.questions)


def read_questions(
    task: Task,
    split: str,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
    source: str | None = None,
) -> Questions:
    """Reads a split of a task of spans.

    Args:
        task: what to read.
        split: as for `read_examples`.
        data_dir, download: TFDS's folder, and whether TFDS may fetch the set.
        source: instead of the task's own, one of
            `tfds:NAME[/CONFIG][:VERSION]`: records of SQuAD's fields;
            `squad:FILE`: SQuAD's JSON of version 1.1 or 2.0; `{split}` in the name stands for the
                split; without it there are "train" and, equally, "all". Answers may be absent
                where the split's name begins with "test" or "all".

    Returns:
        The questions; empty contexts are kept.

    Raises:
        UserError: no such source, split, field; an answer that does not stand where it should, or
            is missing; names the file, the question and the field.
    """
    source = source or task.source
    kind, _, rest = (source or "").partition(":")
    if kind == "tfds" and rest:
        where, rows = f"tfds:{rest}, split {split!r}", _tfds_rows(rest, split, data_dir, download)
    elif kind == "squad" and rest:
        path = split_path("squad", rest, split)
        where, rows = str(path), _file_rows(path)
    else:
        raise UserError(
            f"unknown source {source!r} of the task {task.name!r}: give "
            "tfds:NAME[/CONFIG][:VERSION] or squad:FILE"
        )
    rows = list(rows)
    if not rows:
        raise UserError(f"{where} holds no question: take a larger split or another file")
    secret = split.startswith(_MAYBE_UNLABELLED) and all(row.answers is None for row in rows)
    for row in rows:
        if not secret:
            _check_answers(task, row, where)
    ids, questions, contexts, answers = zip(*rows, strict=True)
    return Questions(
        list(ids), list(questions), list(contexts), None if secret else [*map(tuple, answers)]
    )


class _Row(NamedTuple):
    id: str
    question: str
    context: str
    answers: list[Answer] | None


def _check_answers(task: Task, row: _Row, where: str) -> None:
    where = f"{where}, question {row.id!r}"
    if row.answers is None:
        raise UserError(f"{where}: the field 'answers' is missing; give it, or leave it out of all")
    if not row.answers and not task.unanswerable:
        raise UserError(
            f"{where} has no answer, which the task {task.name!r} does not know: take the question "
            "out, or the task squad2"
        )
    for text, start in row.answers:
        if not text or row.context[start : start + len(text)] != text or start < 0:
            raise UserError(
                f"{where}: the answer {text[:40]!r} does not stand at character {start} of the "
                "context; correct 'answer_start', which counts characters from 0"
            )


def _tfds_rows(name, split, data_dir, download) -> Iterator[_Row]:
    fields = ("id", "question", "context")
    values = read_sequences(name, split, (*fields, "answers"), data_dir, download).values
    columns = (*fields, "answers/text", "answers/answer_start")
    for *named, texts, starts in zip(*(values[column] for column in columns), strict=True):
        answers = [Answer(_decoded(t), int(start)) for t, start in zip(texts, starts, strict=True)]
        yield _Row(*map(_decoded, named), answers)


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _file_rows(path) -> Iterator[_Row]:
    """The questions of a JSON file; every field that is used is checked."""
    try:
        document = json.loads(storage.read_bytes(path))
    except ValueError as error:  # also bytes that are not UTF-8
        raise UserError(f"{path} is not JSON ({error}): give a file in SQuAD's format") from error
    for a, article in enumerate(_field(document, "data", list, path)):
        for p, paragraph in enumerate(_field(article, "paragraphs", list, f"{path}, data[{a}]")):
            place = f"{path}, data[{a}].paragraphs[{p}]"
            context = _text(paragraph, "context", place)
            for q, question in enumerate(_field(paragraph, "qas", list, place)):
                yield _question(question, context, f"{place}.qas[{q}]")


def _question(record, context: str, place: str) -> _Row:
    name, question = _text(record, "id", place), _text(record, "question", place)
    if not question.strip():
        raise UserError(f"{place}: the question is empty; fill it in or take it out")
    if "answers" not in record:
        return _Row(name, question, context, None)
    answers = [
        Answer(_text(answer, "text", place), _field(answer, "answer_start", int, place))
        for answer in _field(record, "answers", list, place)
    ]
    return _Row(name, question, context, answers)


def _field(record, name: str, kind: type, where):
    """A field of a JSON object, of the kind that it must be of."""
    value = record.get(name) if isinstance(record, dict) else None
    if type(value) is not kind:
        wanted = {list: "list", str: "text", int: "whole number"}[kind]
        raise UserError(f"{where}: the field {name!r} is not a {wanted}; give SQuAD's format")
    return value


def _text(record, name: str, where: str) -> str:
    # JSON may hold half of a character, which UTF-8 cannot: a "?" keeps the places of the others.
    return _field(record, name, str, where).encode("utf-8", "replace").decode("utf-8")
