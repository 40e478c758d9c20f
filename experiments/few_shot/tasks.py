"""Tasks of few-shot evaluation: the questions, the pool of shots, the metric and its baselines."""

import collections
import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from experiments.text_to_text.run import default_examples
from macaron_tf.data.sources.names import RECORD_KINDS, Source
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.examples import read_examples
from macaron_tf.data.tasks.prompts import (
    CONTENT_FREE,
    QUESTIONS,
    TEMPLATES,
    Prompt,
    Template,
    classification_prompts,
    question_prompts,
    read_last_words,
    read_table,
    summary_prompts,
    translation_prompts,
)
from macaron_tf.data.tasks.questions import read_questions
from macaron_tf.decoding import GenerationConfig
from macaron_tf.errors import UserError
from macaron_tf.evaluation.answers import score_answers
from macaron_tf.evaluation.glue import accuracy, score
from macaron_tf.evaluation.language import chance, majority, rouge
from macaron_tf.evaluation.translation import TranslationMetric, evaluate_translations
from macaron_tf.plug_ins import find_sources
from macaron_tf.text.words import split_sentences

_POOL = 10_000  # maximum number of training examples from which shots are drawn


def _score_answers(answers: Sequence[str], truths: Sequence[tuple[str, ...]]) -> dict:
    scores = score_answers(answers, truths)
    return {"score": scores["f1"], "exact": scores["exact"]}


def _score_summaries(answers: Sequence[str], truths: Sequence[tuple[str, ...]]) -> dict:
    scores = rouge(answers, [truth for truth, *_ in truths])
    return {"score": statistics.mean(scores.values()), **scores}


def _score_translations(answers, truths, metric: TranslationMetric | None = None) -> dict:
    scores = evaluate_translations(answers, [truth for truth, *_ in truths], metric)
    return {"score": scores.bleu / 100, "chrf": scores.chrf / 100}


@dataclasses.dataclass(frozen=True)
class FreeForm:
    """Settings for the generation, truncation and scoring of free-form answers.

    Attributes:
        metric: name of the metric, for tables.
        measure: function that scores answers. Its arguments are the answers and, for each answer, a
            tuple of correct answers. The function returns a dict, in which "score" is a fraction.
            The dict may have further metrics.
        generation: settings of text generation.
        stops: texts that end an answer; the answer is truncated before the first occurrence.
        sentences: number of sentences to keep at the beginning of an answer; `None` means all.
    """

    metric: str = "f1"
    measure: Callable[[Sequence[str], Sequence[tuple[str, ...]]], dict] = _score_answers
    generation: GenerationConfig = GenerationConfig(temperature=0.0, max_tokens=16)
    stops: tuple[str, ...] = ("\n", "Question:", "Q:")
    sentences: int | None = None

    def answers(self, texts: Sequence[str]) -> list[str]:
        for stop in self.stops:
            texts = [text.split(stop)[0] for text in texts]
        texts = [text.strip() for text in texts]
        if self.sentences is None:
            return texts
        lines = [" ".join(text.split()) for text in texts]
        return [" ".join(sentences[: self.sentences]) for sentences in split_sentences(lines)]


# Radford et al. 2019 (GPT-2), sections 3.6 and 3.7.
_FREE_FORMS = {
    "summarization": FreeForm(
        "ROUGE-1, 2, L",
        _score_summaries,
        GenerationConfig(top_k=2, max_tokens=100),
        stops=(),
        sentences=3,
    ),
    "translation": FreeForm(
        "BLEU",
        _score_translations,
        GenerationConfig(temperature=0.0, max_tokens=64),
        stops=("\n", " = "),
        sentences=1,
    ),
}


@dataclasses.dataclass(frozen=True)
class PromptTask:
    """A task in the form of prompts.

    Attributes:
        name: name of the task, for tables.
        answer_type: type of the answers: "choice", "last_word" or "free".
        questions: prompts to evaluate.
        pool: prompts from which shots are drawn.
        metric: name of the metric, for tables.
        measure: for choices, function that scores predictions. Its arguments are the indices of the
            predicted choices and of the correct choices. The function returns the score, such as a
            fraction or a correlation.
        content_free: for choices, queries without content, such as "N/A", which are used for
            calibration.
        free_form: for free-form answers, settings of generation and scoring.
        separator: line breaks between two examples, for models that were trained with line breaks.
            An empty string puts all text on one line.
    """

    name: str
    answer_type: str
    questions: list[Prompt]
    pool: list[Prompt]
    metric: str = "accuracy"
    measure: Callable[[np.ndarray, np.ndarray], float] = accuracy
    content_free: tuple[str, ...] = ()
    free_form: FreeForm = FreeForm()
    separator: str = ""


def read_task(
    name: str,
    tfds: Tfds | None = None,
    template: Template | None = None,
    style: str = "plain",
) -> PromptTask:
    """Reads the prompts of a task.

    If the examples have splits, the training split is the pool of shots, and the validation split
    has the questions. For a file without `{split}` in its name, every fourth example is in the pool
    of shots.

    Args:
        name: name of a classification or question-answering task in
            `macaron_tf.data.tasks.definitions`, or `lambada:FILE`, `tsv:FILE` (or another table, as
            `jsonl:`, `parquet:` or `datasets:`), `summarization`, `summarization:FROM-TO:SOURCE` or
            `translation:FROM-TO:SOURCE`. SOURCE is a source of text pairs.
        tfds: access to TensorFlow Datasets.
        template: prompt template that replaces the default template of a classification task;
            `None` means the default template.
        style: style of questions and translations, a key of
            `macaron_tf.data.tasks.prompts.QUESTIONS`.

    Raises:
        UserError: the task is unknown, `template` is set for a task without classes, or the
            examples cannot be read.
    """
    source, separator = Source.of(name), {"gpt2": "\n", "gpt3": "\n\n"}.get(style, "")
    has_table = source.kind in ("lambada", "tsv", *RECORD_KINDS) and source.location
    if source.kind in _FREE_FORMS or has_table:
        if template is not None:
            raise UserError(
                f"--template applies only to classification tasks, but {name} is not a "
                "classification task: leave --template and --words out"
            )
        if source.kind in _FREE_FORMS:
            return _read_pair_task(source, tfds, style, separator or "\n")
        title, is_lambada = source.location.rsplit("/", 1)[-1], source.kind == "lambada"
        table = functools.partial(read_table, style=style)
        questions, pool = _questions_and_pool(source, read_last_words if is_lambada else table)
        if is_lambada:
            return PromptTask(title, "last_word", questions, pool)
        if not questions[0].choices:
            return PromptTask(title, "free", questions, pool, "f1", separator=separator)
        queries = tuple(QUESTIONS[style].format(text).strip() for text in CONTENT_FREE)
        return PromptTask(
            title, "choice", questions, pool, content_free=queries, separator=separator
        )
    task = get_task(name)
    splits = (task.validation_splits[0], "train")
    if task.kind == "spans":
        if template is not None:
            raise UserError(
                f"--template applies only to classification tasks, but {name} is not a "
                "classification task: leave --template and --words out"
            )
        questions, pool = (
            question_prompts(read_questions(task, split, tfds), style) for split in splits
        )
        return PromptTask(task.name, "free", questions, pool[:_POOL], "f1", separator=separator)
    template = template or TEMPLATES.get(name)
    if template is None:
        raise UserError(
            f"no prompt template exists for the task {name!r}: choose one of "
            f"{', '.join(TEMPLATES)}, squad, summarization, translation:FROM-TO:SOURCE, "
            "lambada:FILE, tsv:FILE, jsonl:FILE, parquet:FILE or datasets:DIR"
        )
    questions, pool = (
        classification_prompts(task, read_examples(task, split, tfds), template) for split in splits
    )

    # Excludes exact match, because this metric needs all answers to a question at once.
    metrics = tuple(metric for metric in task.metrics if metric != "em")
    flat_task = dataclasses.replace(task, metrics=metrics, more_metrics=())

    def measure(predictions: np.ndarray, labels: np.ndarray) -> float:
        return score(flat_task, predictions, labels)["score"]

    queries = tuple(template.query(text, text) for text in CONTENT_FREE)
    metric_names = " and ".join(metrics)
    return PromptTask(name, "choice", questions, pool[:_POOL], metric_names, measure, queries)


def _read_pair_task(source: Source, tfds: Tfds | None, style: str, separator: str) -> PromptTask:
    """Reads a summarization or translation task from text pairs.

    The name `summarization` alone means the default examples of this task.

    Args:
        source: parsed name of the task, of the form `KIND:FROM-TO:SOURCE`.
        tfds: access to TensorFlow Datasets.
        style: style of translation prompts.
        separator: line breaks between two examples.
    """
    field_names, _, source_name = source.location.partition(":")
    fields = tuple(field_names.split("-"))
    if str(source) == "summarization:":
        source_name, fields = default_examples(source.kind)
    if len(fields) != 2 or not source_name:
        raise UserError(
            f"--task {source} does not have the form {source.kind}:FROM-TO:SOURCE: give two "
            "languages or fields and a source, as in translation:en-fr:tfds:multi30k/fr-en"
        )

    find_sources(source_name)  # the user wrote the name of the task

    def read(pair_source: Source, split: str) -> list[Prompt]:
        pairs = read_pairs(str(pair_source), split, *fields, tfds)
        if source.kind == "summarization":
            return summary_prompts(pairs)
        return translation_prompts(pairs, fields[1], style)

    questions, pool = _questions_and_pool(Source.of(source_name), read)
    free_form = _FREE_FORMS[source.kind]
    if source.kind == "translation":
        references = [question.answers[0] for question in questions]
        metric = TranslationMetric(fields[1]).for_references(references)
        measure = functools.partial(free_form.measure, metric=metric)
        free_form = dataclasses.replace(free_form, measure=measure)
    title = source.kind if source.kind == "summarization" else field_names
    return PromptTask(
        title,
        "free",
        questions,
        pool[:_POOL],
        free_form.metric,
        free_form=free_form,
        separator=separator,
    )


def _questions_and_pool(source: Source, read: Callable) -> tuple[list[Prompt], list[Prompt]]:
    """Reads the questions to evaluate, and the examples from which shots are drawn.

    If the source has splits, the questions are the validation split and the examples are the
    training split. Otherwise, every fourth prompt is an example, and the other prompts are
    questions.

    Args:
        source: source of the examples.
        read: function that returns the prompts of a split. Its arguments are the source and the
            name of the split.

    Raises:
        UserError: there are no questions or no examples, or their numbers of choices differ.
    """
    if source.has_splits:
        questions, pool = read(source, "validation"), read(source, "train")
    else:
        prompts = read(source, "all")
        questions, pool = [prompts[n] for n in range(len(prompts)) if n % 4], prompts[::4]
    if not questions or not pool:
        raise UserError(
            f"few-shot prompts need at least 1 question and 1 example, but {source} provides only "
            f"{len(questions)} and {len(pool)}: give more records whose input and answer contain "
            "text"
        )
    if len(questions[0].choices) != len(pool[0].choices):
        raise UserError(
            f"{source} has {len(questions[0].choices)} choices in the validation split, but "
            f"{len(pool[0].choices)} in the training split: give both splits the same choice "
            "columns"
        )
    return questions, pool


def limit_questions(task: PromptTask, max_questions: int) -> PromptTask:
    """Returns the task with at most `max_questions` questions.

    The selection of questions depends neither on the model nor on the seed of the shots.
    """
    if len(task.questions) <= max_questions:
        return task
    chosen = np.sort(np.random.default_rng(0).permutation(len(task.questions))[:max_questions])
    return dataclasses.replace(task, questions=[task.questions[index] for index in chosen])


def baselines(task: PromptTask) -> dict[str, float]:
    """Returns the scores of random guessing and of always giving the pool's most frequent answer.

    The result is a dict with the keys "chance" and "majority". For tasks without choices, the
    chance level is 0.
    """
    if task.answer_type == "choice":
        labels, pool_labels = (
            np.array([prompt.label for prompt in prompts])
            for prompts in (task.questions, task.pool)
        )
        return {
            "chance": chance(task.measure, labels, len(task.questions[0].choices)),
            "majority": float(majority(task.measure, labels, pool_labels)),
        }
    [(answer, _)] = collections.Counter(prompt.answers[0] for prompt in task.pool).most_common(1)
    truths = [prompt.answers for prompt in task.questions]
    if task.answer_type == "last_word":
        return {"chance": 0.0, "majority": float(np.mean([t == (answer,) for t in truths]))}
    metrics = task.free_form.measure([answer] * len(truths), truths)
    return {"chance": 0.0, "majority": metrics["score"]}


def draw_shots(task: PromptTask, count: int, seed: int) -> list[Prompt]:
    """Draws `count` shots from a task's pool, or all shots if the pool is smaller.

    For a given seed, a larger `count` appends shots to the list for a smaller `count`. All
    questions have the same shots for a given seed, as in Zhao et al. 2021, so that the spread over
    seeds shows the influence of the shots. Brown et al. 2020 draw new shots for each question.
    """
    order = np.random.default_rng(seed).permutation(len(task.pool))
    return [task.pool[index] for index in order[:count]]
