"""A fine-tuned run as a SavedModel, whatever the kind of its task."""

from typing import ClassVar

import tensorflow as tf
from etils import epath

from experiments.finetune.kinds import Limits
from experiments.finetune.kinds.spans import THRESHOLD
from experiments.finetune.run import FinetuningRun, recipe_of
from export.module import ExportedModule, require
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.encoding import encode_choices, encode_pairs, present
from macaron_tf.data.tasks.questions import encode_questions
from macaron_tf.data.tasks.tags import encode_words, word_probabilities
from macaron_tf.decoding.spans import best_answers, best_spans, decided
from macaron_tf.models import EncoderTagger
from macaron_tf.models.pretrained import Pretrained
from macaron_tf.text import PieceVocabulary


class TaskModule(ExportedModule):
    """Base of the models that name classes; `limits` are those of the rows of training."""

    def __init__(self, network, vocabulary: PieceVocabulary, task: Task, limits: Limits):
        super().__init__(network, vocabulary)
        self.task, self.limits = task, limits


class ClassifierModule(TaskModule):
    """A classifier of one text or two.

    Signature `serving_default`: `text (B,)` strings, or `first (B,)` and `second (B,)` for a task
    on two texts, to `label (B,)` strings, `probabilities (B, C)` float32 and `classes (B, C)`
    strings, their names; to `score (B,)` float32 for a regression task. A long text is truncated as
    in training.
    """

    def functions(self):
        names = ("first", "second") if self.task.second else ("text",)
        return {"serving_default": (self.serve, dict.fromkeys(names, tf.string))}

    def serve(self, first: tf.Tensor, second: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        limits = self.limits
        how = limits.max_length, limits.causal, limits.language
        inputs = encode_pairs(self.vocabulary, first, second, *how)
        if limits.language_id:
            inputs["language_ids"] = tf.ones_like(inputs["token_ids"]) * limits.language_id
        logits = tf.cast(self.network(inputs, training=False), tf.float32)  # (B, C)
        if self.task.regression:
            scores = logits[:, 0] * self.task.deviation + self.task.mean  # (B,)
            if self.task.score_range:
                scores = tf.clip_by_value(scores, *self.task.score_range)
            return {"score": scores}
        return _classes(self.task, logits)


def _classes(task: Task, logits: tf.Tensor) -> dict[str, tf.Tensor]:
    """The answers that logits `(B, C)` give."""
    names = tf.constant(task.labels)  # (C,)
    return {
        "label": tf.gather(names, tf.argmax(logits, axis=1)),
        "probabilities": tf.nn.softmax(logits),
        "classes": tf.broadcast_to(names, tf.shape(logits)),
    }


class ChooserModule(TaskModule):
    """A choice among R texts.

    Signature `serving_default`: `context (B,)` strings, `question (B,)` of a task with questions,
    and `choice1 (B,)` to `choiceR (B,)`, "" where there is none, to the outputs of
    `ClassifierModule`, the classes being the names of the choices. A long text is truncated as in
    training.
    """

    def functions(self):
        asked = ["question"] if self.task.question else []
        choices = (f"choice{number}" for number in range(1, len(self.task.second) + 1))
        return {
            "serving_default": (self.serve, dict.fromkeys(["context", *asked, *choices], tf.string))
        }

    def serve(self, context: tf.Tensor, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        count = len(self.task.second)  # R
        asked = tf.repeat(texts[0], count) if self.task.question else None  # (B R,)
        choices = tf.stack(texts[-count:], axis=1)  # (B, R)
        several = tf.math.count_nonzero(present(choices), axis=1) > 1
        message = "a row has fewer than two choices: give two or more"
        choices = require(several, message, tf.reshape(choices, [-1]))  # (B, R) -> (B R,)
        given = tf.repeat(context, count), asked, choices
        how = self.limits.max_length, self.limits.causal
        rows = encode_choices(self.vocabulary, *given, *how)
        shape = (tf.shape(context)[0], count, tf.shape(rows["token_ids"])[1])
        rows = {name: tf.reshape(ids, shape) for name, ids in rows.items()}  # (B, R, L)
        return _classes(self.task, tf.cast(self.network(rows, training=False), tf.float32))


def classifier_module(place: str, found: Pretrained) -> TaskModule:
    """A classifier of one text, a regression or a tagger, without a run; `place` is for errors."""
    recipe = recipe_of(place, found)
    kind = TaggerModule if isinstance(found.network, EncoderTagger) else ClassifierModule
    return kind(found.network, found.vocabulary, recipe.described, recipe.limits)


class SpanReaderModule(TaskModule):
    """A reader that finds the answer to a question in a context.

    Signature `serving_default`: `question (B,)` and `context (B,)` strings to `answer (B,)`
    strings, "" for no answer, `start (B,)` and `end (B,)` int64, character offsets in the context,
    and `probability (B,)` float32. A context of any length is read through windows.

    Args:
        threshold: see `macaron_tf.decoding.spans.decided`; of a task where a question may have no
            answer.
    """

    inputs: ClassVar = {"question": tf.string, "context": tf.string}

    def __init__(
        self, network, vocabulary: PieceVocabulary, task: Task, limits: Limits, threshold: float
    ):
        super().__init__(network, vocabulary, task, limits)
        self.threshold = threshold if task.unanswerable else None

    def serve(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        spans = self.limits.spans
        inputs, places = encode_questions(
            self.vocabulary,
            question,
            context,
            max_length=self.limits.max_length,
            stride=spans.doc_stride,
            max_question=spans.max_question,
        )
        logits = self.network(inputs, training=False)  # (M, 2, L)
        found = best_answers(best_spans(logits, spans.max_answer), places)
        judged = decided(found, self.threshold)
        start, end = (
            tf.where(judged["answered"], found[name], tf.zeros_like(found[name]))
            for name in ("start", "end")
        )
        answer = tf.strings.substr(context, start, end - start, unit="UTF8_CHAR")
        probability = judged["probability"]
        return {"answer": answer, "start": start, "end": end, "probability": probability}


class TaggerModule(TaskModule):
    """A tagger of words.

    Signature `serving_default`: `text (B,)` strings, words with white space between, to `words
    (B, W)` and `tags (B, W)` strings, padded with "", and `probabilities (B, W)` float32 of the
    tags. Sentences longer than a row are read through windows.
    """

    def serve(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        words = tf.strings.split(text)  # (B, None)
        inputs, places = encode_words(self.vocabulary, words, self.limits.max_length)
        logits = self.network(inputs, training=False)
        found = word_probabilities(logits, places, self.task.outside)  # (N, C), N words
        tags = tf.gather(tf.constant(self.task.labels), tf.argmax(found, axis=1))  # (N,)
        return {
            "words": words.to_tensor(),
            "tags": words.with_values(tags).to_tensor(),
            "probabilities": words.with_values(tf.reduce_max(found, axis=1)).to_tensor(),
        }


_OF_CLASSES = {"classification": ClassifierModule, "tags": TaggerModule, "choice": ChooserModule}


def fine_tuned_module(run: FinetuningRun, weights: epath.Path) -> tuple[ExportedModule, dict]:
    """A fine-tuned run's model with a checkpoint's weights, and facts for the record."""
    task, limits = run.task, run.recipe.limits
    given = (run.load_network(weights), run.vocabulary, task, limits)
    if task.kind == "spans":
        threshold = run.tuned(weights).get(THRESHOLD, 0.0)
        module = SpanReaderModule(*given, threshold)
    else:
        module = _OF_CLASSES[task.kind](*given)
    return module, {"task": task.name, "labels": list(task.labels), "max_length": limits.max_length}
