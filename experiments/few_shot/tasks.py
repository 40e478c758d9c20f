"""The tasks that `--task` may name, as prompts to ask and to show."""

import dataclasses
import os
from collections.abc import Callable

import numpy as np

from macaron_tf.data.sources.names import Source
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.prompts import (
    CONTENT_FREE,
    TEMPLATES,
    Prompt,
    Template,
    classification_prompts,
    question_prompts,
    read_last_words,
    read_table,
)
from macaron_tf.data.tasks.questions import read_questions
from macaron_tf.data.tasks.reading import read_examples
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import accuracy, score

_POOL = 10_000  # examples that shots are drawn from: the first ones


@dataclasses.dataclass(frozen=True)
class PromptTask:
    """A task asked in words.

    Attributes:
        name: for tables.
        form: "choice", "last_word" or "free".
        asked: the prompts to evaluate.
        pool: the prompts that shots are drawn from.
        metric: name of the score.
        measure: of a choice: the score of predicted and right positions, as a fraction.
        content_free: of a choice: the queries about nothing.
    """

    name: str
    form: str
    asked: list[Prompt]
    pool: list[Prompt]
    metric: str = "accuracy"
    measure: Callable[[np.ndarray, np.ndarray], float] = accuracy
    content_free: tuple[str, ...] = ()


def read_task(
    name: str,
    data_dir: str | os.PathLike | None = None,
    download: bool = False,
    template: Template | None = None,
) -> PromptTask:
    """Reads a task's prompts.

    Args:
        name: a task of `macaron_tf.data.tasks.definitions`, `lambada:FILE` or `tsv:FILE`. Files
            with `{split}` in their names have train and validation; of others every fourth example
            is for shots.
        template: of a classification task, in place of its own.
    """
    source = Source.of(name)
    if source.kind in ("lambada", "tsv") and source.place:
        if template is not None:
            raise UserError(f"--template: {name} has no classes; it goes with a task's name")
        title, is_lambada = source.place.rsplit("/", 1)[-1], source.kind == "lambada"
        asked, pool = _parted(source, read_last_words if is_lambada else read_table)
        if is_lambada:
            return PromptTask(title, "last_word", asked, pool)
        if not asked[0].choices:
            return PromptTask(title, "free", asked, pool, "f1")
        free = tuple(f"Question: {text}\nAnswer:".strip() for text in CONTENT_FREE)
        return PromptTask(title, "choice", asked, pool, content_free=free)
    task = get_task(name)
    places = {"data_dir": data_dir, "download": download}
    splits = (task.validation_splits[0], "train")
    if task.kind == "spans":
        asked, pool = (question_prompts(read_questions(task, s, **places)) for s in splits)
        return PromptTask(task.name, "free", asked, pool[:_POOL], "f1")
    template = template or TEMPLATES.get(name)
    if template is None:
        raise UserError(
            f"the task {name!r} is not asked in words: give one of {', '.join(TEMPLATES)}, squad, "
            "lambada:FILE or tsv:FILE"
        )
    asked, pool = (
        classification_prompts(task, read_examples(task, s, **places), template) for s in splits
    )

    # Questions that share several answers are judged answer by answer here.
    metrics = tuple(metric for metric in task.metrics if metric != "em")
    flat = dataclasses.replace(task, metrics=metrics, more_metrics=())

    def measure(predictions: np.ndarray, labels: np.ndarray) -> float:
        return score(flat, predictions, labels)["score"]

    free = tuple(template.query(text, text) for text in CONTENT_FREE)
    title = " and ".join(metrics)
    return PromptTask(name, "choice", asked, pool[:_POOL], title, measure, free)


def _parted(source: Source, read: Callable) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts that are asked, and the prompts to show before them."""
    if source.has_splits:
        return read(source, "validation"), read(source, "train")
    prompts = read(source, "all")
    asked = [prompt for number, prompt in enumerate(prompts) if number % 4]
    if not asked:
        raise UserError(
            f"{source.place} holds one example, and some are shown while others are asked"
        )
    return asked, prompts[::4]
