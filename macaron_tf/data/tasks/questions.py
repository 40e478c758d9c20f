"""Reads and encodes questions, contexts and answer spans, from TFDS or files in SQuAD's format."""

import collections
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import EncodedExamples
from macaron_tf.data.sources.tfds import Tfds, decoded, read_columns
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.encoding import check_length, encode_parts, rows_of, windows_over
from macaron_tf.data.tasks.examples import may_be_unlabelled
from macaron_tf.data.tasks.tables import parse_task_source
from macaron_tf.errors import UserError, parse_json
from macaron_tf.io import paths as storage
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.normalization import LocatedPieces


class Answer(NamedTuple):
    """An answer span: `context[start : start + len(text)] == text`, in characters."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, eq=False)
class Questions:
    """A split of N questions with their contexts and answers, in the source's order.

    Attributes:
        ids: the source's identifier of each question.
        questions: the questions.
        contexts: text that each question is about.
        labels: right answers of each question, () for a question without an answer; None: the
            answers are secret.
    """

    ids: list[str]
    questions: list[str]
    contexts: list[str]
    labels: list[tuple[Answer, ...]] | None

    def __len__(self) -> int:
        return len(self.questions)

    def take(self, rows: np.ndarray) -> "Questions":
        """Returns the questions with these numbers."""
        columns = (self.ids, self.questions, self.contexts, self.labels)
        return Questions(*(column and [column[row] for row in rows] for column in columns))


def read_questions(
    task: Task, split: str, tfds: Tfds | None = None, source: str | None = None
) -> Questions:
    """Reads a split of a question answering task with answer spans.

    Args:
        split, tfds: see `open_set`.
        source: source of the questions; None: the task's own source. One of
            `tfds:NAME[/CONFIG][:VERSION]`: records with SQuAD's fields.
            `squad:FILE`: JSON of SQuAD 1.1 or 2.0, see `Source.path`. Answers may be missing if the
                split's name begins with "test" or "all".

    Raises:
        UserError: the source, split or a field does not exist, an answer is missing, or it is not
            at its place in the context. The message names the file, the question and the field.
    """
    parsed = parse_task_source(task, source, "squad:FILE")
    if parsed.kind == "tfds":
        where = f"{parsed}, split {split!r}"
        rows = _tfds_rows(parsed.place, split, tfds)
    else:
        path = parsed.path(split)
        where, rows = str(path), _file_rows(path)
    rows = list(rows)
    if not rows:
        raise UserError(f"{where} has no question: give a larger split or another file")
    secret = may_be_unlabelled(split) and all(row.answers is None for row in rows)
    for row in [] if secret else rows:
        _check_answers(task, row, where)
    counts = collections.Counter(row.id for row in rows)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise UserError(
            f"{where}: {len(repeated)} ids of questions are repeated, such as "
            f"{repeated[0][:40]!r}: give each question its own id, because predictions are stored "
            "by id"
        )
    ids, questions, contexts, answers = map(list, zip(*rows, strict=True))
    return Questions(ids, questions, contexts, None if secret else [*map(tuple, answers)])


class _Row(NamedTuple):
    id: str
    question: str
    context: str
    answers: list[Answer] | None


def _check_answers(task: Task, row: _Row, where: str) -> None:
    where = f"{where}, question {row.id!r}"
    if row.answers is None:
        raise UserError(
            f"{where}: the field 'answers' is missing: give it, or omit it in all questions of a "
            "test set"
        )
    if not row.answers and not task.unanswerable:
        raise UserError(
            f"{where} has no answer, but the task {task.name!r} needs one: remove the question, or "
            "use the task squad2"
        )
    for text, start in row.answers:
        if not text.strip() or row.context[start : start + len(text)] != text or start < 0:
            raise UserError(
                f"{where}: the answer {text[:40]!r} is not at character {start} of the context: "
                "correct 'answer_start', which counts characters from 0"
            )


def _tfds_rows(name, split, tfds) -> Iterator[_Row]:
    fields = ("id", "question", "context")
    values = read_columns(name, split, (*fields, "answers"), tfds).values
    columns = [decoded(values[field]) for field in fields]
    answers = zip(values["answers/text"], values["answers/answer_start"], strict=True)
    for *named, (texts, starts) in zip(*columns, answers, strict=True):
        yield _Row(*named, list(map(Answer, decoded(texts), starts.tolist())))


def _file_rows(path) -> Iterator[_Row]:
    """Yields the questions of a JSON file; checks every field that it reads."""
    try:
        document = parse_json(storage.read_bytes(path), object)
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
        raise UserError(f"{place}: the question is empty: fill it in or remove it")
    if "answers" not in record:
        return _Row(name, question, context, None)
    answers = [
        Answer(_text(answer, "text", place), _field(answer, "answer_start", int, place))
        for answer in _field(record, "answers", list, place)
    ]
    return _Row(name, question, context, answers)


def _field(record, name: str, kind: type, where):
    """Returns a field of a JSON object; raises if it is missing or not of this type."""
    value = record.get(name) if isinstance(record, dict) else None
    if type(value) is not kind:
        wanted = {list: "list", str: "text", int: "whole number"}[kind]
        raise UserError(f"{where}: the field {name!r} is not a {wanted}: give SQuAD's format")
    return value


def _text(record, name: str, where: str) -> str:
    # JSON may contain half of a surrogate pair, which UTF-8 cannot encode. "?" keeps all positions.
    return _field(record, name, str, where).encode("utf-8", "replace").decode("utf-8")


class WindowPositions(NamedTuple):
    """Maps positions in M windows back to characters in the contexts of N questions.

    Attributes:
        question: `(M,)` int64, the number of each window's question, ascending.
        boundary: `(M,)` int64, the position of the first context token in each window, as
            `EncoderSpanReader` counts positions.
        first_piece: `(M,)` int64, the number of that token in its context.
        starts, ends: ragged `(N, None)` int64, the first character of each context token, and the
            character after its last.
    """

    question: tf.Tensor
    boundary: tf.Tensor
    first_piece: tf.Tensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


def encode_questions(
    vocabulary: PieceVocabulary,
    questions: tf.Tensor,
    contexts: tf.Tensor,
    *,
    max_length: int,
    stride: int,
    max_question: int,
) -> tuple[dict[str, tf.Tensor], WindowPositions]:
    """Encodes questions and contexts as windows `[CLS] question [SEP] context [SEP]`.

    A long context gives several overlapping windows. A vocabulary with `cls_last` gives XLNet's
    windows, `context [SEP] question [SEP] [CLS]`.

    Args:
        questions, contexts: `(N,)` strings.
        max_length: most ids of a window.
        stride: context tokens between the starts of two windows.
        max_question: most tokens of a question; longer questions are truncated.

    Returns:
        Dictionary of "token_ids" `(M, L)` int32, padded with 0 (PAD), and "segment_ids" `(M, L)`
        int32: 1 in the second text and its [SEP], 2 at a [CLS] that ends a row, else 0; and the
        positions.

    Raises:
        UserError: `max_length` leaves no room for a context token.

    References: Devlin et al. 2018 (BERT), section 4.2 and its released code; Yang et al. 2019
    (XLNet), its released code.
    """
    specials = 2 + vocabulary.pair_separators
    needs = f"questions of {max_question} tokens"
    check_length(max_length, max_question + specials + 1, needs, "lower max_question or ")
    asked = vocabulary.encode(questions)[:, :max_question]  # (N, None)
    # SQuAD has about five questions per paragraph: tokenize each paragraph once.
    distinct, number = tf.unique(contexts)
    found = vocabulary.encode_with_offsets(distinct)
    located = LocatedPieces(*(tf.gather(rows, number) for rows in found))  # each (N, None)
    windows = windows_over(located.ids, max_length - specials - asked.row_lengths(), stride)
    question = windows.starts.value_rowids()  # (M,)
    asked, sep = tf.gather(asked, question), vocabulary.sep_id
    first, second, between = asked, windows.ids, [(sep, 0)] * vocabulary.pair_separators
    if vocabulary.cls_last:
        first, second = second, first
        boundary = tf.ones_like(question)  # the scores of [CLS] come first, see `EncoderSpanReader`
    else:
        boundary = asked.row_lengths() + 1 + len(between)
    positions = WindowPositions(
        question, boundary, windows.starts.values, located.starts, located.ends
    )
    return rows_of(vocabulary, [(first, 0), *between, (second, 1), (sep, 1)]), positions


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedQuestions(EncodedExamples):
    """Tokenized questions as M rows, one for each window.

    The labels are the first and last position of the answer, or 0, the position of [CLS], in
    windows without the answer.

    Attributes:
        positions: positions of the windows; its `starts` and `ends` are int32.
    """

    positions: WindowPositions


def encode_question_examples(
    vocabulary: PieceVocabulary,
    examples: Questions,
    *,
    max_length: int,
    stride: int,
    max_question: int,
) -> EncodedQuestions:
    """Tokenizes a split by `encode_questions`; the first right answer of a question is the label.

    Args:
        max_length, stride, max_question: see `encode_questions`.
    """

    def encode(part: slice) -> tuple:
        texts = (tf.constant(texts[part]) for texts in (examples.questions, examples.contexts))
        inputs, found = encode_questions(
            vocabulary, *texts, max_length=max_length, stride=stride, max_question=max_question
        )
        # SQuAD has millions of tokens: int32 halves their memory.
        starts, ends = (tf.cast(rows, tf.int32) for rows in (found.starts, found.ends))
        found = found._replace(question=found.question + part.start, starts=starts, ends=ends)
        opening = (inputs["token_ids"] != 0) & (inputs["segment_ids"] == 0)  # (M, L)
        return inputs["token_ids"], tf.math.count_nonzero(opening, axis=1), *found

    rows, found = encode_parts(len(examples), encode, vocabulary.size)
    boundaries, *found = (tf.concat(parts, axis=0) for parts in zip(*found, strict=True))
    positions, last = WindowPositions(*found), vocabulary.cls_last
    boundaries = boundaries.numpy()
    # A context ends before a [SEP]. If it is first, the scores of [CLS] come before it.
    ends = boundaries if last else rows.lengths - 1
    labels = None if examples.labels is None else _labels(examples, positions, ends)
    return EncodedQuestions(rows, boundaries, labels, max_length, positions, cls_last=last)


def _labels(examples: Questions, positions: WindowPositions, limits: np.ndarray) -> np.ndarray:
    """Finds the first and last position of each question's first answer in its windows.

    Args:
        limits: `(M,)`, the position after the last context token of each window.

    Returns:
        `(M, 2)` int32; 0, the position of [CLS], in windows that do not contain all of the answer.
    """
    starts, ends = positions.starts.values.numpy(), positions.ends.values.numpy()
    splits = positions.starts.row_splits.numpy()
    question, boundary = positions.question.numpy(), positions.boundary.numpy()  # (M,)
    # First and last token of each answer; -1 if it has none, because it is white space.
    pieces = np.full((len(examples), 2), -1, np.int64)  # (N, 2)
    for number, answers in enumerate(examples.labels):
        if answers:
            text, start = answers[0]
            row = slice(*splits[number : number + 2])
            first = np.searchsorted(ends[row], start, side="right")
            last = np.searchsorted(starts[row], start + len(text)) - 1
            if first <= last:
                pieces[number] = first, last
    shift = boundary - positions.first_piece.numpy()  # (M,)
    found = pieces[question] + shift[:, None]  # (M, 2)
    inside = (found[:, 0] >= boundary) & (found[:, 1] < limits)
    inside &= pieces[question, 0] >= 0
    return np.where(inside[:, None], found, 0).astype(np.int32)
