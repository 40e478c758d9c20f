"""Extractive question answering: readers of SQuAD-style examples, and encoding as windows."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import EncodedExamples
from macaron_tf.data.rows import Columns
from macaron_tf.data.sources.names import RECORD_FORMS
from macaron_tf.data.sources.records import open_records
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.encoding import check_length, encode_parts, rows_of, windows_over
from macaron_tf.data.tasks.examples import may_be_unlabelled
from macaron_tf.errors import UserError
from macaron_tf.settings import Count, Settings
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.normalization import LocatedPieces


class Answer(NamedTuple):
    """An answer span in a context, where `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, eq=False)
class Questions(Columns):
    """A split of N questions with contexts and answers, in the order of the source.

    Attributes:
        labels: correct answers of each question. An unanswerable question has an empty tuple.
            `None` means that the answers are withheld, as in some test sets.
    """

    ids: list[str]
    questions: list[str]
    contexts: list[str]
    labels: list[tuple[Answer, ...]] | None


def read_questions(
    task: Task, split: str, tfds: Tfds | None = None, source: str | None = None
) -> Questions:
    """Reads a split of an extractive question answering task.

    Args:
        source: name of the source. `None` means the default source of the task. The records have
            the fields of SQuAD in TensorFlow Datasets and on Hugging Face's hub: `id`, `question`,
            `context`, and `answers` with the lists `text` and `answer_start`. For the task
            `record`, `tfds:` has the fields of ReCoRD. If the name of the split begins with "test"
            or "all", all answers may be missing.
    """
    parsed = task.parse_source(source, *RECORD_FORMS)
    records = open_records(parsed, split, tfds)
    is_record = task.name == "record" and parsed.kind == "tfds"
    fields = ("idx", "query", "passage") if is_record else ("id", "question", "context")
    found = records.rows((*fields, "answers"), ("answers",))
    rows, unanswered = {}, ""  # `unanswered`: place of the first question without answers
    for where, (name, question, context, answers) in found:
        if is_record:
            name, answers = str(name["query"]), _located(answers, context)
        if not question.strip():
            raise UserError(f"{where}: the question is empty: add a text, or remove it")
        if name in rows:  # predictions are stored by id
            raise UserError(f"{where} repeats the question id {name[:40]!r}")
        spans = _spans(task, f"{where}, question {name!r}", context, answers) if answers else None
        rows[name] = question, context, spans
        unanswered = unanswered or ("" if answers else where)
    questions, contexts, labels = map(list, zip(*rows.values(), strict=True))
    secret = may_be_unlabelled(split) and not any(spans is not None for spans in labels)
    if unanswered and not secret:
        raise UserError(f"{unanswered}: the field 'answers' is missing: add it, or leave all out")
    return Questions([*rows], questions, contexts, None if secret else labels)


def _located(names: Sequence[str], passage: str) -> dict[str, list] | None:
    """Returns the answers of ReCoRD as those of SQuAD: a name is where the passage first has it."""
    starts = [passage.find(name) for name in names]
    return {"text": [*names], "answer_start": starts} if names else None


def _spans(task: Task, where: str, context: str, answers: dict[str, list]) -> tuple[Answer, ...]:
    """Returns the answers of a record, and checks that the context has them."""
    try:
        spans = tuple(map(Answer, answers["text"], answers["answer_start"]))
    except (TypeError, KeyError) as error:
        lists = "'answers' must have the lists 'text' and 'answer_start'"
        raise UserError(f"{where}: {lists} ({error})") from error
    if not spans and not task.unanswerable:
        raise UserError(f"{where} has no answer: add one, or use the task squad2")
    for text, start in spans:
        if not text.strip():
            raise UserError(f"{where} has an empty answer: correct its 'text', or remove it")
        if context[start : start + len(text)] != text or start < 0:
            raise UserError(f"{where}: {text[:40]!r} is not at character {start}")
    return spans


@dataclasses.dataclass(frozen=True)
class SpanLimits(Settings):
    """Length limits for extractive question answering. The defaults are from BERT.

    Attributes:
        doc_stride: number of tokens between the starts of two consecutive windows of a long
            context.
        max_question: maximum number of tokens in a question. Longer questions are truncated.
        max_answer: maximum number of tokens in an answer.
    """

    section: ClassVar[str] = "data.spans"

    doc_stride: Count = 128
    max_question: Count = 64
    max_answer: Count = 30


class WindowPositions(NamedTuple):
    """Mapping from token positions in M windows to characters in the contexts of N questions.

    Attributes:
        question: `(M,)` int64, index of each window's question, in ascending order.
        boundary: `(M,)` int64, index of each window's first context token among the logits of
            `EncoderQuestionAnswering`.
        starts, ends: ragged `(N, None)` int64, start and end of each context token in characters.
            The end is exclusive.
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
    max_length: int,
    spans: SpanLimits,
) -> tuple[dict[str, tf.Tensor], WindowPositions]:
    """Encodes questions and contexts as windows `[CLS] question [SEP] context [SEP]`.

    A context that is too long for one window gives several windows, which overlap if the stride is
    less than their number of context tokens. The vocabulary's `pair_separators` is the number of
    [SEP] between the two texts. With a vocabulary whose `cls_last` is True, windows are `context
    [SEP] question [SEP] [CLS]`, as in XLNet.
    The stride is shorter than `spans.doc_stride` if a window has room for fewer context tokens.

    Returns:
        The M windows in the order of the questions, and their positions. The windows are a dict of
        "token_ids" `(M, L)` int32, with padding, and "segment_ids" `(M, L)` int32. Segment ids are
        1 in the second text and its [SEP], 2 at a final [CLS], and 0 elsewhere.

    References: Devlin et al. 2018 (BERT), section 4.2 and the released code; Yang et al. 2019
    (XLNet), the released code.
    """
    num_special = 2 + vocabulary.pair_separators
    needs = f"questions of data.spans.max_question={spans.max_question} tokens"
    check_length(max_length, spans.max_question + num_special + 1, needs)
    question_ids = vocabulary.encode(questions)[:, : spans.max_question]  # (N, None)
    # SQuAD has about five questions per paragraph, so each distinct paragraph is tokenized once.
    distinct, context_index = tf.unique(contexts)
    encoded = vocabulary.encode_with_offsets(distinct)
    located = LocatedPieces(*(tf.gather(rows, context_index) for rows in encoded))  # each (N, None)
    rooms = max_length - num_special - question_ids.row_lengths()
    windows, starts = windows_over(located.ids, rooms, spans.doc_stride)
    question = starts.value_rowids()  # (M,)
    question_ids, sep = tf.gather(question_ids, question), vocabulary.special.end
    first, second, between = question_ids, windows, [(sep, 0)] * vocabulary.pair_separators
    if vocabulary.cls_last:
        first, second = second, first
        # `EncoderQuestionAnswering` puts the scores of [CLS] first.
        boundary = tf.ones_like(question)
    else:
        boundary = question_ids.row_lengths() + int(vocabulary.cls_first) + len(between)
    positions = WindowPositions(question, boundary, starts.values, located.starts, located.ends)
    return rows_of(vocabulary, [(first, 0), *between, (second, 1), (sep, 1)]), positions


def encode_question_examples(
    vocabulary: PieceVocabulary, examples: Questions, max_length: int, spans: SpanLimits
) -> EncodedExamples:
    """Tokenizes a split of questions with `encode_questions`, as M rows, one row per window.

    The labels `(M, 2)` int32 are the indices of the answer's first and last token among the logits
    of `EncoderQuestionAnswering`. If the window does not contain the whole answer, or the question
    is unanswerable, both indices are 0, which is the index of [CLS].
    """

    def encode(part: slice) -> tuple:
        texts = (tf.constant(texts[part]) for texts in (examples.questions, examples.contexts))
        inputs, positions = encode_questions(vocabulary, *texts, max_length, spans)
        # int32 halves the memory. SQuAD has millions of tokens.
        starts, ends = (tf.cast(rows, tf.int32) for rows in (positions.starts, positions.ends))
        question = positions.question + part.start
        return inputs, positions._replace(question=question, starts=starts, ends=ends)

    encoded, arrays = encode_parts(vocabulary, examples, max_length, encode)
    positions = WindowPositions(*(tf.concat(parts, axis=0) for parts in zip(*arrays, strict=True)))
    # A context ends before a [SEP]. If a window begins with the context, `EncoderQuestionAnswering`
    # puts the scores of [CLS] before it, which shifts all positions by one.
    ends = encoded.boundaries if vocabulary.cls_last else encoded.rows.lengths - 1
    labels = None if examples.labels is None else _labels(examples, positions, ends)
    return dataclasses.replace(encoded, labels=labels, positions=positions)


def _labels(examples: Questions, positions: WindowPositions, limits: np.ndarray) -> np.ndarray:
    """Computes the labels of `encode_question_examples`."""
    starts, ends = positions.starts.values.numpy(), positions.ends.values.numpy()
    splits = positions.starts.row_splits.numpy()
    question, boundary = positions.question.numpy(), positions.boundary.numpy()  # (M,)
    # Indices of the first and last token of each answer in its context. An answer without a token
    # has the index -1.
    pieces = np.full((len(examples), 2), -1, np.int64)  # (N, 2)
    for index, answers in enumerate(examples.labels):
        if answers:
            text, start = answers[0]
            row = slice(*splits[index : index + 2])
            first = np.searchsorted(ends[row], start, side="right")
            last = np.searchsorted(starts[row], start + len(text)) - 1
            if first <= last:
                pieces[index] = first, last
    shift = boundary - positions.first_piece.numpy()  # (M,)
    spans = pieces[question] + shift[:, None]  # (M, 2)
    inside = (spans[:, 0] >= boundary) & (spans[:, 1] < limits) & (pieces[question, 0] >= 0)
    return np.where(inside[:, None], spans, 0).astype(np.int32)
