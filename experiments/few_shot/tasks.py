"""Tasks of few-shot evaluation: the prompts, the metric and its baselines.

In this package, shots are the solved examples in a prompt, and K is the number of shots.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.examples import Examples, read_examples
from macaron_tf.errors import UserError
from macaron_tf.evaluation.glue import score
from macaron_tf.evaluation.language import chance, majority

_POOL = 10_000  # maximum number of training examples from which shots are drawn


class Prompt(NamedTuple):
    """A prompt for one example, which a language model continues with the answer.

    Attributes:
        query: prompt text before the answer, without a space at the end.
        label: index of the answer in the task's choices.
    """

    query: str
    answer: str
    label: int


@dataclasses.dataclass(frozen=True)
class PromptTask:
    """A task in the form of prompts.

    Attributes:
        choices: the answer word of each class.
        measure: function that scores the predicted classes. Its arguments are the indices of the
            predicted choices and of the correct choices.
    """

    name: str
    questions: list[Prompt]
    pool: list[Prompt]
    choices: tuple[str, ...]
    metric: str
    measure: Callable[[np.ndarray, np.ndarray], float]


class Template(NamedTuple):
    """A prompt template for a classification task.

    Attributes:
        text: format string with the fields {first} and {second} for the texts of an example.
        words: answer word of each class, beginning with class 0.
    """

    text: str
    words: tuple[str, ...]


_YES = ("yes", "no")
_THREE = Template(
    "{first}\nQuestion: {second} True, false or neither?\nAnswer:", ("true", "neither", "false")
)
TEMPLATES = {
    "cola": Template("Sentence: {first}\nIs the sentence good English?", _YES[::-1]),
    "sst2": Template("Review: {first}\nSentiment:", ("negative", "positive")),
    "mrpc": Template("First: {first}\nSecond: {second}\nDo both say the same?", _YES[::-1]),
    "qqp": Template("First: {first}\nSecond: {second}\nDo both ask the same?", _YES[::-1]),
    **dict.fromkeys(("mnli", "snli", "xnli"), _THREE),
    "qnli": Template("{second}\nDoes this answer the question: {first}\nAnswer:", _YES),
    "rte": Template("{first}\nQuestion: {second} True or false?\nAnswer:", ("true", "false")),
    "wnli": Template("{first}\nQuestion: {second} True or false?\nAnswer:", ("false", "true")),
    "cb": _THREE._replace(words=("true", "false", "neither")),
    "wic": Template("{first}\n{second}\nDoes the first word mean the same in both?", _YES[::-1]),
    "wsc": Template("{first}\nDo these mean the same: {second}?", _YES[::-1]),
    "boolq": Template("{first}\nQuestion: {second}?\nAnswer:", _YES[::-1]),
    "multirc": Template("{first}\nQuestion and answer: {second}\nIs it right?", _YES[::-1]),
}


def read_task(name: str, tfds: Tfds, max_questions: int) -> PromptTask:
    """Reads the prompts of a classification task.

    The validation split has the questions, and the training split is the pool of shots. The
    selection of `max_questions` questions depends neither on the model nor on the seed of the
    shots.
    """
    task = get_task(name)
    if name not in TEMPLATES:
        mend = f"choose one of {', '.join(TEMPLATES)}"
        raise UserError(f"no prompt template exists for the task {name!r}: {mend}")
    questions, pool = (
        classification_prompts(read_examples(task, split, tfds), TEMPLATES[name])
        for split in (task.validation_splits[0], "train")
    )
    if len(questions) > max_questions:
        chosen = np.sort(np.random.default_rng(0).permutation(len(questions))[:max_questions])
        questions = [questions[index] for index in chosen]
    # Excludes exact match, because this metric needs all answers to a question at once.
    metrics = tuple(metric for metric in task.metrics if metric != "em")
    flat_task = dataclasses.replace(task, metrics=metrics, more_metrics=())

    def measure(predictions: np.ndarray, labels: np.ndarray) -> float:
        return score(flat_task, predictions, labels)["score"]

    words = TEMPLATES[name].words
    return PromptTask(name, questions, pool[:_POOL], words, " and ".join(metrics), measure)


def classification_prompts(examples: Examples, template: Template) -> list[Prompt]:
    second = examples.second or [""] * len(examples)
    return [
        Prompt(template.text.format(first=a, second=b).rstrip(), template.words[label], int(label))
        for a, b, label in zip(examples.first, second, examples.labels, strict=True)
    ]


def baselines(task: PromptTask) -> dict[str, float]:
    """Returns the scores "chance" and, always with the most frequent answer, "majority"."""
    labels, pool_labels = (
        np.array([prompt.label for prompt in prompts]) for prompts in (task.questions, task.pool)
    )
    return {
        "chance": chance(task.measure, labels, len(task.choices)),
        "majority": float(majority(task.measure, labels, pool_labels)),
    }


def draw_shots(task: PromptTask, count: int, seed: int) -> list[Prompt]:
    """Draws `count` shots from a task's pool, or all shots if the pool is smaller.

    For a given seed, a larger `count` appends shots to the list for a smaller `count`. All
    questions have the same shots for a given seed, as in Zhao et al. 2021, so that the spread over
    seeds shows the influence of the shots. Brown et al. 2020 draw new shots for each question.
    """
    order = np.random.default_rng(seed).permutation(len(task.pool))
    return [task.pool[index] for index in order[:count]]
