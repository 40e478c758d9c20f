"""Answers that stand in a context."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from experiments.finetune.kinds.base import Limits, SpanLimits, TaskKind
from macaron_tf.data.tasks.questions import (
    EncodedQuestions,
    Questions,
    encode_question_examples,
    read_questions,
)
from macaron_tf.decoding.spans import best_answers, best_spans, decided
from macaron_tf.errors import UserError, parse_json
from macaron_tf.evaluation.reading import score_answers
from macaron_tf.models import EncoderSpanReader
from macaron_tf.objectives import SpanObjective

# Windows searched at once: of 384 positions and answers of 30, 12 MB of scores.
_CHUNK = 256
THRESHOLD = "best_f1_thresh"


@dataclasses.dataclass(frozen=True, eq=False)
class SpanOutputs:
    """The best answer to each of N questions.

    Attributes:
        texts: that answer, cut out of the context; "" where nothing can be one.
        found: see `macaron_tf.decoding.spans.best_answers`, as arrays.
        threshold: see `macaron_tf.decoding.spans.decided`.
    """

    texts: list[str]
    found: dict[str, np.ndarray]
    threshold: float | None


class Spans(TaskKind):
    """Tasks of SQuAD's kind."""

    reader = staticmethod(read_questions)

    @property
    def answer(self) -> str:
        return "a part of the context" + (", or none" if self.task.unanswerable else "")

    def of_texts(self, *columns: Sequence[str]) -> Questions:
        questions, contexts = map(list, columns)
        return Questions([*map(str, range(len(questions)))], questions, contexts, None)

    def parse(self, lines: list[str], first: int) -> Questions:
        """Lines of a question and a context: a tab between, or a JSON object of both."""
        columns: list[list[str]] = [[], []]
        for number, line in enumerate(lines, first):
            # JSON writes a tab within a text as \t.
            if "\t" in line or not line.startswith("{"):
                pair = super().parse([line], number)
                columns[0] += pair.questions
                columns[1] += pair.contexts
                continue
            try:
                record = parse_json(line, question=str, context=str)
                for column, name in zip(columns, ("question", "context"), strict=True):
                    column.append(record[name].encode("utf-8", "replace").decode("utf-8"))
            except ValueError as error:
                raise UserError(
                    f'line {number} is no JSON object of a "question" and a "context", both of '
                    "text: correct it, or separate the two by one tab"
                ) from error
        return self.of_texts(*columns)

    def least_length(self, spans: SpanLimits) -> int:
        return spans.max_question + 4

    def encode(self, vocabulary, examples: Questions, limits: Limits) -> EncodedQuestions:
        return encode_question_examples(
            vocabulary,
            examples,
            max_length=limits.max_length,
            stride=limits.spans.doc_stride,
            max_question=limits.spans.max_question,
        )

    def network(self, config, head_dropout, policy) -> EncoderSpanReader:
        return EncoderSpanReader(config, dtype=policy)

    @property
    def objective(self) -> SpanObjective:
        return SpanObjective()

    def outputs(
        self, logits, encoded: EncodedQuestions, examples: Questions, limits: Limits, tuned
    ) -> SpanOutputs:
        chunks = [
            best_spans(tf.constant(logits[begin : begin + _CHUNK]), limits.spans.max_answer)
            for begin in range(0, len(logits), _CHUNK)
        ]
        spans = {name: tf.concat([chunk[name] for chunk in chunks], axis=0) for name in chunks[0]}
        answers = best_answers(spans, encoded.positions)
        found = {name: value.numpy() for name, value in answers.items()}
        positions = zip(examples.contexts, found["start"], found["end"], strict=True)
        texts = [context[start:end] for context, start, end in positions]
        threshold = float(tuned.get(THRESHOLD, 0.0)) if self.task.unanswerable else None
        return SpanOutputs(texts, found, threshold)

    def finite(self, outputs: SpanOutputs) -> bool:
        return super().finite(outputs.found)

    def score(self, predictions: SpanOutputs, examples: Questions) -> dict[str, float]:
        truths, found = [[one.text for one in answers] for answers in examples.labels], ()
        if self.task.unanswerable:  # its metrics look for a threshold themselves
            unlikely = predictions.found["null"] - predictions.found["score"]  # (N,)
            found = (unlikely, predictions.threshold)
        return self.with_score(score_answers(predictions.texts, truths, *found))

    def answers(self, outputs: SpanOutputs, examples: Questions) -> dict[str, str]:
        """The official scripts' form: answers by the questions' ids."""
        said = [text for text, *_ in self._said(outputs)]
        return dict(zip(examples.ids, said, strict=True))

    def lines(self, outputs: SpanOutputs, examples: Questions) -> str:
        """A line a question: answer, probability, and where it begins and ends, in characters."""
        return "".join(
            f"{' '.join(text.split())}\t{probability:.4f}\t{start}\t{end}\n"
            for text, probability, start, end in self._said(outputs)
        )

    def _said(self, outputs: SpanOutputs) -> list[tuple[str, float, int, int]]:
        found = outputs.found
        judged = decided(found, outputs.threshold)
        answered, probability = (np.asarray(judged[n]) for n in ("answered", "probability"))
        columns = zip(
            outputs.texts, answered, probability, found["start"], found["end"], strict=True
        )
        return [
            (text, p, start, end) if answers else ("", p, 0, 0)
            for text, answers, p, start, end in columns
        ]
