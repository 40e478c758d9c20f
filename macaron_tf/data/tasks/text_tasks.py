"""Tasks as text: T5's prefixes, and answers that are words."""

import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.tasks.definitions import Task, get_task
from macaron_tf.data.tasks.encoding import WHITE_SPACE
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.data.tasks.questions import Questions

# Tasks of pairs of texts, and what stands before the first.
PREFIXES = {"summarization": "summarize: ", "translation": "translate: "}
_STEP = 0.2  # of a score: STS-B becomes a choice among 26 words


def as_texts(task: Task, examples: Examples) -> list[tuple[str, str]]:
    """Examples as (source, target) lines; without labels the target is empty.

    The source names the task and its fields, "mrpc sentence1: ... sentence2: ..."; the target is
    the class's name, or a score to the nearest 0.2, such as "3.8".

    References: Raffel et al. 2020 (T5), section 2.4 and appendix D.
    """
    seconds = examples.second or [None] * len(examples)
    labels = [None] * len(examples) if examples.labels is None else examples.labels
    return [
        (source_text(task, first, second), "" if label is None else answer_text(task, label))
        for first, second, label in zip(examples.first, seconds, labels, strict=True)
    ]


def questions_as_texts(questions: Questions) -> list[tuple[str, str]]:
    """Questions as (source, target) lines, "question: ... context: ..." and the first answer."""
    labels = questions.labels or [()] * len(questions)
    rows = zip(questions.questions, questions.contexts, labels, strict=True)
    squad = get_task("squad")
    return [
        (source_text(squad, asked, text), " ".join(answers[0].text.split()) if answers else "")
        for asked, text, answers in rows
    ]


def _names(task: Task) -> tuple[str, str, bool]:
    """The words before the two texts of a task, and whether these change places.

    In a task of one text a tab is white space.

    The paper's code sorts the fields of GLUE: MNLI's hypothesis stands before its premise.
    """
    turned = task.kind == "classification" and () < task.second < task.first
    names = (" ".join(fields) for fields in (task.first, task.second))
    first, second = reversed([*names]) if turned else names
    begin = "" if task.kind == "spans" else f"{task.name} "
    return f"{begin}{first}: ", f" {second}: " if second else " ", turned


def source_text(task: Task, first: str, second: str | None) -> str:
    """One text of a task, or two, under their names, in one line."""
    before, between, turned = _names(task)
    texts = [first] if second is None else [first, second]
    joined = between.join(reversed(texts) if turned else texts)
    return " ".join(f"{before}{joined}".split())


def source_texts(task: Task, lines: tf.Tensor) -> tf.Tensor:
    """`source_text` in-graph, of lines `(B,)`: a text each, or two with a tab between."""
    before, between, turned = _names(task)
    if turned:
        lines = tf.strings.regex_replace(lines, r"(?s)\A([^\t]*)\t(.*)\z", "\\2\t\\1")
        # A tab within the second text, which stands first now, is white space.
        lines = tf.strings.regex_replace(lines, r"(?s)\A(.*)\t([^\t]*)\z", rf"\1{between}\2")
    else:
        lines = tf.strings.regex_replace(lines, "\t", between, replace_global=False)
    return in_one_line(tf.strings.join([before, lines]))


def in_one_line(texts: tf.Tensor) -> tf.Tensor:
    """`" ".join(text.split())` in-graph, `(B,)` strings to `(B,)` strings."""
    return tf.strings.strip(tf.strings.regex_replace(texts, f"{WHITE_SPACE}+", " "))


def answer_text(task: Task, label: float) -> str:
    if task.regression:
        return f"{round(float(label) / _STEP) * _STEP:.1f}"
    return task.labels[int(label)]


def read_answer(task: Task, text: str) -> int | float | None:
    """The class or score that a text names; None where it names none.

    Spaces, case and punctuation do not count: a vocabulary may not give back "not_equivalent" as it
    was.
    """
    if task.regression:
        number = "".join(text.split())
        return float(number) if re.fullmatch(r"-?\d+(\.\d+)?", number) else None
    known = {_plain(label): number for number, label in enumerate(task.labels)}
    return known.get(_plain(text))


def read_answers(task: Task, texts: Sequence[str], labels: np.ndarray) -> np.ndarray:
    """The classes or scores `(N,)` that texts name, for metrics.

    A text that names no class counts as a wrong class; of Matthews' correlation as a class of its
    own, -1, as in T5's released code, for a wrong one would say as much as a right one. A text that
    is no number counts as the least score.
    """
    found = [read_answer(task, text) for text in texts]
    if task.regression:
        low, high = task.score_range or (-np.inf, np.inf)
        least = low if np.isfinite(low) else 0.0
        return np.clip([least if one is None else one for one in found], low, high)
    if "matthews" in task.metrics:
        return np.array([-1 if one is None else one for one in found])
    wrong = (np.asarray(labels) + 1) % task.num_classes
    return np.array([wrong[i] if one is None else one for i, one in enumerate(found)])


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
