"""Text-to-text format of tasks, as in T5: input texts with prefixes, and answer texts."""

import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.tasks.definitions import Task, get_task
from macaron_tf.data.tasks.encoding import WHITE_SPACE
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.data.tasks.questions import Questions

# Tasks whose targets are summaries: the source, and the fields of the text and the summary.
SUMMARIES = {
    "summarization": ("tfds:aeslc", ("email_body", "subject_line")),
    "cnn_dailymail": ("tfds:cnn_dailymail", ("article", "highlights")),
    "xsum": ("tfds:xsum", ("document", "summary")),
}
# Input prefixes of the tasks whose examples are pairs of a source and a target text.
PREFIXES = {**dict.fromkeys(SUMMARIES, "summarize: "), "translation": "translate: "}
_SCORE_STEP = 0.2  # scores are rounded to multiples of this step, so STS-B has 26 different answers


def as_texts(task: Task, examples: Examples) -> list[tuple[str, str]]:
    """Converts examples to (source, target) lines for a text-to-text model.

    A source is the task name, and then each field name and its text, as in "mrpc sentence1: ...
    sentence2: ...". If a classification task has two texts, their field names are in alphabetical
    order, as in the code of T5. A target is the name of the class, or a score rounded to a multiple
    of 0.2, such as "3.8". If the examples have no labels, all targets are "".

    References: Raffel et al. 2020 (T5), section 2.4 and appendix D.
    """
    labels = [None] * len(examples) if examples.labels is None else examples.labels
    answers = ["" if label is None else answer_text(task, label) for label in labels]
    return list(zip(_sources(task, *examples.texts), answers, strict=True))


def questions_as_texts(questions: Questions) -> list[tuple[str, str]]:
    """Converts questions to (source, target) lines for a text-to-text model."""
    labels = questions.labels or [()] * len(questions)
    sources = _sources(get_task("squad"), questions.questions, questions.contexts)
    targets = (" ".join(answers[0].text.split()) if answers else "" for answers in labels)
    return list(zip(sources, targets, strict=True))


def _sources(task: Task, *columns: Sequence[str]) -> list[str]:
    """Builds the source lines of examples from columns of texts, as `as_texts` describes."""
    rows = zip(*(map(" ".join, map(str.split, column)) for column in columns), strict=True)
    lines = source_texts(task, tf.constant([*map("\t".join, rows)], tf.string))
    return [line.decode() for line in lines.numpy()]


def _prefixes(task: Task) -> tuple[str, str, bool]:
    """Returns the prefixes of the two texts in a source line, and whether to swap the texts.

    The code of T5 sorts the fields of GLUE by name, so that the hypothesis of MNLI precedes its
    premise. If the texts are swapped, the first prefix belongs to the second text of the task. For
    a task with one text, the second prefix is a space.
    """
    swaps_texts = task.kind == "classification" and () < task.second < task.first
    names = (" ".join(fields) for fields in (task.first, task.second))
    first, second = reversed([*names]) if swaps_texts else names
    task_prefix = "" if task.kind == "spans" else f"{task.name} "
    return f"{task_prefix}{first}: ", f" {second}: " if second else " ", swaps_texts


def source_texts(task: Task, lines: tf.Tensor) -> tf.Tensor:
    """Converts lines `(B,)`, one text or two by tab, to the source lines of `as_texts`."""
    before, between, swaps_texts = _prefixes(task)
    if swaps_texts:
        lines = tf.strings.regex_replace(lines, r"(?s)\A([^\t]*)\t(.*)\z", "\\2\t\\1")
        # The second text is now first and may contain tabs, so the last tab separates the texts.
        lines = tf.strings.regex_replace(lines, r"(?s)\A(.*)\t([^\t]*)\z", rf"\1{between}\2")
    else:
        lines = tf.strings.regex_replace(lines, "\t", between, replace_global=False)
    return in_one_line(tf.strings.join([before, lines]))


def in_one_line(texts: tf.Tensor) -> tf.Tensor:
    """Computes `" ".join(text.split())` for each of B strings, by TensorFlow operations."""
    return tf.strings.strip(tf.strings.regex_replace(texts, f"{WHITE_SPACE}+", " "))


def answer_text(task: Task, label: float) -> str:
    if task.regression:
        return f"{round(float(label) / _SCORE_STEP) * _SCORE_STEP:.1f}"
    return task.labels[int(label)]


def read_answer(task: Task, text: str) -> int | float | None:
    """Parses an answer text of a model.

    Only the ASCII letters and digits of a class name are compared, without case, because
    tokenization and detokenization may change a name such as "not_equivalent". A score is a decimal
    number such as "-3.8", in which white space is ignored.

    Returns:
        The class index, or the score in regression. `None` means that the text is not a class name
        of the task, or is not a number in regression.
    """
    if task.regression:
        number = "".join(text.split())
        return float(number) if re.fullmatch(r"-?\d+(\.\d+)?", number) else None
    class_indices = {_normalize(label): index for index, label in enumerate(task.labels)}
    return class_indices.get(_normalize(text))


def read_answers(task: Task, texts: Sequence[str], labels: np.ndarray) -> np.ndarray:
    """Parses N answer texts of a model into predictions for the metrics.

    In classification, a text that is not a class name counts as a prediction of a wrong class. If
    Matthews' correlation is a main metric, the text becomes the class -1 instead, as in T5's
    released code. With wrong classes, a model that never answers with a class name would have a
    strong negative correlation. In regression, a text that is not a number becomes the minimum
    score, or 0 if the scores have no minimum, and scores outside the range are clipped.
    """
    predictions = [read_answer(task, text) for text in texts]
    if task.regression:
        low, high = task.score_range or (-np.inf, np.inf)
        default = low if np.isfinite(low) else 0.0
        return np.clip([default if p is None else p for p in predictions], low, high)
    if "matthews" in task.metrics:
        return np.array([-1 if p is None else p for p in predictions])
    wrong = (np.asarray(labels) + 1) % task.num_classes
    return np.array([wrong[i] if p is None else p for i, p in enumerate(predictions)])


def _normalize(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
