"""Extractive question answering, in which each answer is a span of a context."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import EncodedExamples
from macaron_tf.data.tasks.questions import (
    Questions,
    encode_question_examples,
    encode_questions,
    read_questions,
)
from macaron_tf.decoding.spans import best_answers, best_spans, decide_answered
from macaron_tf.evaluation.answers import score_answers
from macaron_tf.models import EncoderQuestionAnswering
from macaron_tf.objectives import SpanObjective
from macaron_tf.tasks.labelled import LabelledTask, Limits

# Number of windows searched at once. The scores of 256 windows with 384 positions take 12 MB, if an
# answer has at most 30 tokens.
_CHUNK = 256
_THRESHOLD = "best_f1_thresh"


@dataclasses.dataclass(frozen=True, eq=False)
class SpanOutputs:
    """Best answer to each of N questions.

    Attributes:
        texts: text of each answer, copied from its context, or "" if no span is possible.
        answers: result of `macaron_tf.decoding.spans.best_answers` as NumPy arrays.
    """

    texts: list[str]
    answers: dict[str, np.ndarray]
    threshold: float | None


class QuestionAnswering(LabelledTask):
    """Extractive question answering, as in SQuAD.

    The signature `serving_default` has the inputs `question (B,)` and `context (B,)`, both strings.
    Its outputs are `answer (B,)` strings, `start (B,)` and `end (B,)` int64, and `probability (B,)`
    float32. The answer is `context[start:end]`, in characters. The answer is "" and both offsets
    are 0 if no span is possible, or if the model of a task with unanswerable questions finds no
    answer. Long contexts are split into windows, so a context may have any length.
    """

    name = "reader"
    pipeline = "question-answering"
    kind = "spans"
    inputs: ClassVar = {"question": tf.string, "context": tf.string}
    reader = staticmethod(read_questions)

    @property
    def answer(self) -> str:
        return "a part of the context" + (", or none" if self.task.unanswerable else "")

    @property
    def threshold(self) -> float | None:
        """No-answer threshold, by default 0; `None` if every question of the task has an answer."""
        return float(self.tuned.get(_THRESHOLD, 0.0)) if self.task.unanswerable else None

    def prepare(self, question: tf.Tensor, context: tf.Tensor) -> tuple[dict, tuple]:
        limits = self.limits.max_length, self.limits.spans
        rows, positions = encode_questions(self.vocabulary, question, context, *limits)
        return self.with_characters(rows), (context, positions)

    def conclude(self, computed: tf.Tensor, extras: tuple) -> dict[str, tf.Tensor]:
        context, positions = extras
        # (M, 2, L)
        answers = best_answers(best_spans(computed, self.limits.spans.max_answer), positions)
        decision = decide_answered(answers, self.threshold)
        start, end = (
            tf.where(decision["answered"], answers[name], tf.zeros_like(answers[name]))
            for name in ("start", "end")
        )
        answer = tf.strings.substr(context, start, end - start, unit="UTF8_CHAR")
        probability = decision["probability"]
        return {"answer": answer, "start": start, "end": end, "probability": probability}

    def encode(self, vocabulary, examples: Questions, limits: Limits) -> EncodedExamples:
        return encode_question_examples(vocabulary, examples, limits.max_length, limits.spans)

    def make_network(self, config, head_dropout, policy) -> EncoderQuestionAnswering:
        return EncoderQuestionAnswering(config, dtype=policy)

    @property
    def objective(self) -> SpanObjective:
        return SpanObjective()

    def outputs(self, logits, encoded: EncodedExamples, examples: Questions) -> SpanOutputs:
        max_answer = self.limits.spans.max_answer
        chunks = [
            best_spans(tf.constant(logits[begin : begin + _CHUNK]), max_answer)
            for begin in range(0, len(logits), _CHUNK)
        ]
        spans = {name: tf.concat([chunk[name] for chunk in chunks], axis=0) for name in chunks[0]}
        answer_tensors = best_answers(spans, encoded.positions)
        answers = {name: value.numpy() for name, value in answer_tensors.items()}
        positions = zip(examples.contexts, answers["start"], answers["end"], strict=True)
        texts = [context[start:end] for context, start, end in positions]
        return SpanOutputs(texts, answers, self.threshold)

    def is_finite(self, outputs: SpanOutputs) -> bool:
        return super().is_finite(outputs.answers)

    def score(self, predictions: SpanOutputs, examples: Questions) -> dict[str, float]:
        truths = [[answer.text for answer in answers] for answers in examples.labels]
        threshold_arguments: tuple = ()
        if self.task.unanswerable:  # the metrics include the best threshold
            no_answer = predictions.answers["null"] - predictions.answers["score"]  # (N,)
            threshold_arguments = (no_answer, predictions.threshold)
        return self.with_score(score_answers(predictions.texts, truths, *threshold_arguments))

    def constants(self, train: Questions, examples: Questions) -> list[SpanOutputs]:
        count = len(examples)
        return [SpanOutputs([""] * count, dict.fromkeys(("null", "score"), np.zeros(count)), 0.0)]

    def answers(self, outputs: SpanOutputs, examples: Questions) -> dict[str, str]:
        """Returns a dict mapping question id to answer, as SQuAD's official script expects."""
        answered = np.asarray(decide_answered(outputs.answers, outputs.threshold)["answered"])
        texts = [
            text if is_answered else ""
            for text, is_answered in zip(outputs.texts, answered, strict=True)
        ]
        return dict(zip(examples.ids, texts, strict=True))

    def line(self, answer: dict[str, Any]) -> str:
        """Formats an answer as a line: text, probability, start and end, separated by tabs."""
        text, share = " ".join(answer["answer"].split()), answer["probability"]
        return f"{text}\t{share:.4f}\t{answer['start']}\t{answer['end']}\n"
