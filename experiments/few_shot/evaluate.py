"""Few-shot evaluation of language models, and the report with a table and figures.

In this module, shots are the solved examples in a prompt, and K is the number of shots.
"""

import argparse
import collections
import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.generate.writing import find_kind, open_model
from experiments.run import write_json
from experiments.studies import grouped, mean_curves, mean_of, table, values
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
from macaron_tf.decoding import GenerationConfig, TextGenerator, fill_context
from macaron_tf.errors import UserError
from macaron_tf.evaluation.answers import score_answers
from macaron_tf.evaluation.glue import accuracy, score
from macaron_tf.evaluation.language import calibrated, chance, majority, rouge
from macaron_tf.evaluation.translation import TranslationMetric, evaluate_translations
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import track
from macaron_tf.pretrained import Pretrained
from macaron_tf.text.normalization import as_prompt
from macaron_tf.text.words import split_sentences

JSON, MARKDOWN, FIGURE, SIZES = "few_shot.json", "few_shot.md", "few_shot.png", "sizes.png"
_BASELINES = ("chance", "majority")
_POOL = 10_000  # maximum number of training examples from which shots are drawn
Ids = list[int]


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


def run(options: argparse.Namespace) -> None:
    """Runs the command `few_shot`: evaluates models, and prints and writes the report."""
    template = None
    if options.template or options.words:
        if not (options.template and options.words and len(options.task) == 1):
            raise UserError(
                "--template and --words work only together and with a single task: give both flags "
                "and one --task"
            )
        template = Template(options.template.replace("\\n", "\n"), tuple(options.words))
    tasks = [
        limit_questions(
            read_task(name, options.tfds, template, options.prompts), options.max_examples
        )
        for name in options.task
    ]
    names = [task.name for task in tasks]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UserError(
            f"two values of --task have the same name, {repeated!r}, in the table: evaluate these "
            "tasks in separate commands"
        )
    settings = {"normalization": options.normalization, "calibrate": options.calibrate}
    defaults = {name: getattr(Asker, name) for name in settings}
    if settings != defaults and all(task.answer_type != "choice" for task in tasks):
        raise UserError(
            "--normalization and --calibrate apply only to multiple-choice and classification "
            "tasks, but --task names no such task: leave both flags out"
        )
    for path in options.runs:  # raises for unsuitable models before any evaluation
        find_kind(path, causal=True)
    prompt_settings = {} if options.prompts == "plain" else {"prompts": options.prompts}
    task_records = {
        task.name: {
            "metric": task.metric,
            "form": task.answer_type,
            "examples": len(task.questions),
            **baselines(task),
        }
        for task in tasks
    }
    record = {"settings": {**settings, **prompt_settings}, "baselines": task_records, "runs": []}
    out = storage.as_path(options.out)
    with storage.clear_errors(f"--out {out} cannot be created", "choose another folder"):
        storage.make_folders(out)
    for path in options.runs:
        pretrained = open_model(path, causal=True)
        if pretrained.name in {
            run["model"] for run in record["runs"]
        }:  # another checkpoint or folder
            pretrained = dataclasses.replace(pretrained, name=str(path))
        record["runs"] += evaluate(pretrained, tasks, options.shots, options.seeds, **settings)
    text = markdown(record)
    print(text, end="", flush=True)
    write_json(out / JSON, record)
    storage.write_atomic(out / MARKDOWN, text.encode())
    mean_curves(_panels(record, "shots", "model"), out / FIGURE, "number of examples, K", "score")
    if len({run["parameters"] for run in record["runs"]}) > 1:
        panels = _panels(record, "parameters", "shots", "K = ")
        mean_curves(panels, out / SIZES, "parameters", "score", log_x=True)
    print(f"written: {out}/{MARKDOWN}, {out}/{JSON}, {out}/{FIGURE}")


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


@dataclasses.dataclass(eq=False)
class Asker:
    """Evaluator of a model on tasks in the form of prompts.

    Attributes:
        pretrained: the model.
        normalization: normalization of the score of a choice. With "sum", the score is the
            log-likelihood of the choice. With "token", the log-likelihood is divided by the number
            of tokens, so that short choices have no advantage (Brown et al. 2020, section 2.4).
        calibrate: whether to calibrate the scores of choices; see
            `macaron_tf.evaluation.language.calibrated`.
    """

    pretrained: Pretrained
    normalization: str = "token"
    calibrate: bool = False

    def __post_init__(self):
        self.scorer = self.pretrained.task.scorer(self.pretrained.task.window)

    @functools.cached_property
    def generator(self) -> TextGenerator:
        return self.pretrained.task.generator

    def ask(self, task: PromptTask, shots: Sequence[Prompt]) -> dict[str, Any]:
        """Evaluates the model on a task.

        Args:
            task: the task.
            shots: examples to put before each question, in order. Examples that do not fit in the
                row are skipped.

        Returns:
            A dict of metrics. "score" is the main metric, such as a fraction of correct answers.
            "shown" is the mean number of examples before a question. "cut" is the fraction of
            questions whose beginning was truncated. Other keys depend on the task, such as
            "perplexity" for last-word prediction.
        """
        # The training text of this package's own models has no line breaks.
        keep_line_breaks = bool(task.separator) and self.pretrained.trained_length is None
        separator = task.separator if keep_line_breaks else ""
        examples = self._encode(
            [f"{shot.query} {shot.answers[0]}{separator}" for shot in shots],
            keep_line_breaks=keep_line_breaks,
        )
        queries = [_query(prompt, zero_shot=not shots) for prompt in task.questions]
        queries = self._encode(queries, not shots, keep_line_breaks)
        choices, answer_lengths = [], [self._free_config(task).max_tokens] * len(queries)
        if task.answer_type != "free":
            choices = [self._encode(prompt.choices or prompt.answers) for prompt in task.questions]
            answer_lengths = [max(map(len, options)) for options in choices]
        filled = [
            fill_context(examples, query, self._max_prompt_tokens(answer_length))
            for query, answer_length in zip(queries, answer_lengths, strict=True)
        ]
        contexts = [context.ids for context in filled]
        if task.answer_type == "free":
            metrics = self._free_form_metrics(task, contexts)
        elif task.answer_type == "last_word":
            metrics = self._last_word_metrics(contexts, choices)
        else:
            metrics = self._choice_metrics(task, contexts, choices, examples, keep_line_breaks)
        return {
            **metrics,
            "shown": float(np.mean([context.shown for context in filled])),
            "cut": float(np.mean([context.cut for context in filled])),
        }

    def _max_prompt_tokens(self, answer_length: int) -> int:
        """Returns the maximum number of tokens in a prompt that an answer follows.

        Args:
            answer_length: number of tokens in the answer.
        """
        return max(self.pretrained.task.window - 1 - answer_length, 1)

    def _encode(
        self, texts: Sequence[str], at_row_start: bool = False, keep_line_breaks: bool = False
    ) -> list[Ids]:
        """Tokenizes texts, and returns the ids of each text.

        Args:
            texts: texts of a prompt or an answer.
            at_row_start: whether the texts are at the beginning of a row. Otherwise, a space is put
                before each text.
            keep_line_breaks: whether to keep line breaks and add no spaces.
        """
        if not keep_line_breaks:
            texts = [
                as_prompt(text) if at_row_start else f" {as_prompt(text).lstrip()}"
                for text in texts
            ]
        return self.pretrained.vocabulary.encode_lines(texts)

    def _choice_metrics(
        self,
        task: PromptTask,
        contexts: list[Ids],
        choices: list[list[Ids]],
        examples: list[Ids],
        keep_line_breaks: bool,
    ) -> dict[str, Any]:
        scores = self._choice_scores(contexts, choices)  # (N, C)
        if self.calibrate:
            # Calibrates by the scores of the same choices after content-free queries.
            queries = self._encode(task.content_free, not examples, keep_line_breaks)
            empty_scores: dict[str, np.ndarray] = {}
            for row, options in enumerate(choices):
                if (key := repr(options)) not in empty_scores:
                    max_tokens = self._max_prompt_tokens(max(map(len, options)))
                    empty = [fill_context(examples, query, max_tokens).ids for query in queries]
                    empty_scores[key] = self._choice_scores(empty, [options] * len(empty))
                scores[row] = calibrated(scores[row : row + 1], empty_scores[key])[0]
        labels = np.array([prompt.label for prompt in task.questions])
        return {"score": float(task.measure(scores.argmax(axis=1), labels))}

    def _choice_scores(self, contexts: list[Ids], choices: list[list[Ids]]) -> np.ndarray:
        """Returns the scores of C choices after each of N contexts, `(N, C)`."""
        pairs = zip(contexts, choices, strict=True)
        scores = self.scorer.score([(ids, option) for ids, options in pairs for option in options])
        shape = (len(contexts), len(choices[0]))
        tokens = scores.lengths if self.normalization == "token" else 1
        return (scores.log_probs / tokens).reshape(shape)

    def _last_word_metrics(self, contexts: list[Ids], words: list[list[Ids]]) -> dict[str, Any]:
        scores = self.scorer.score(
            [(ids, word) for ids, [word] in zip(contexts, words, strict=True)]
        )
        perplexity = math.exp(min(-float(scores.log_probs.mean()), 700.0))
        return {"score": float(scores.greedy.mean()), "perplexity": perplexity}

    def _free_config(self, task: PromptTask) -> GenerationConfig:
        """Returns the task's generation settings, with `max_tokens` limited to half a row.

        The other half of the row is left for the question.
        """
        config = task.free_form.generation
        max_tokens = min(config.max_tokens, max(self.pretrained.task.window // 2, 1))
        return dataclasses.replace(config, max_tokens=max_tokens)

    def _free_form_metrics(self, task: PromptTask, contexts: list[Ids]) -> dict[str, Any]:
        generator, free_form = self.generator, task.free_form
        rows = [[*generator.prefix, *ids] for ids in contexts]
        completions = generator.continue_rows(rows, self._free_config(task))
        answers = free_form.answers([completion.text for [completion] in completions])
        return free_form.measure(answers, [prompt.answers for prompt in task.questions])


def _query(prompt: Prompt, zero_shot: bool) -> str:
    bare = zero_shot and prompt.bare_query is not None
    return prompt.bare_query if bare else prompt.query


def evaluate(
    pretrained: Pretrained, tasks: list[PromptTask], shots: list[int], seeds: list[int], **settings
) -> list[dict]:
    """Evaluates a model on every combination of task, number of shots and seed.

    Args:
        pretrained: the model.
        tasks: the tasks.
        shots: numbers of shots K to evaluate.
        seeds: random seeds for drawing the shots. K = 0 is evaluated once, without a seed.
        settings: fields of `Asker`.

    Returns:
        A list with a dict for each task, K and seed. The dict has the output of `Asker.ask` and the
        keys "model", "parameters", "task", "shots" and "seed". The seed is `None` if K = 0.
    """
    asker = Asker(pretrained, **settings)
    model = {"model": pretrained.name, "parameters": pretrained.network.count_params()}
    plan = [(task, k, seed) for task in tasks for k in shots for seed in (seeds if k else [None])]
    records = []
    chunks = ((1, item) for item in plan)
    for task, k, seed in track(chunks, len(plan), f"evaluating {pretrained.name}", "evaluations"):
        try:
            metrics = asker.ask(task, draw_shots(task, k, seed) if k else [])
        except UserError as error:
            raise UserError(f"--task {task.name}: {error}") from error
        records.append({**model, "task": task.name, "shots": k, "seed": seed, **metrics})
    return records


def _panels(
    record: dict[str, Any], x: str, name: str, prefix: str = ""
) -> dict[str, dict[str, dict[float, list[float]]]]:
    """Returns the curves of a figure with one panel for each task.

    A panel shows the scores over `x`, and horizontal lines for the chance level and the majority
    class.

    Args:
        record: contents of few_shot.json.
        x: key of the values on the x axis, in the dict of a run.
        name: key of the names of the curves, in the dict of a run.
        prefix: text before the name of each curve.
    """
    points = sorted({run[x] for run in record["runs"]})
    panels = {}
    for task, runs in grouped(record["runs"], "task").items():
        panels[task] = {
            f"{prefix}{value}": {
                x_value: values(group, "score") for x_value, group in grouped(curve_runs, x).items()
            }
            for value, curve_runs in grouped(runs, name).items()
        }
        for baseline in _BASELINES:
            panels[task][baseline] = {
                x_value: [record["baselines"][task][baseline]] for x_value in points
            }
    return panels


def markdown(record: dict[str, Any]) -> str:
    """Formats few_shot.md, which has a table of the scores for every task, model and K."""
    settings, rows = record["settings"], []
    for task, baseline in record["baselines"].items():
        task_runs = [run for run in record["runs"] if run["task"] == task]
        baseline_cells = [f"{100 * baseline[name]:.1f}" for name in _BASELINES]
        for model, runs in grouped(task_runs, "model").items():
            for shots, group in grouped(runs, "shots").items():
                score = mean_of(group, "score", 1, 100)
                if perplexity := values(group, "perplexity"):
                    score += f" (perplexity {statistics.mean(perplexity):,.0f})"
                cells = [task, baseline["metric"], f"{baseline['examples']:,}", model, str(shots)]
                shown, cut = (statistics.mean(values(group, name)) for name in ("shown", "cut"))
                rows.append([*cells, f"{shown:.1f}", f"{100 * cut:.0f}%", score, *baseline_cells])
    head = ["task", "metric", "questions", "model", "K", "shown", "cut", "score", *_BASELINES]
    calibrated = ", calibrated by content-free queries" if settings["calibrate"] else ""
    choice_note = f" Choices by log-likelihood ({settings['normalization']}{calibrated})."
    if all(task["form"] != "choice" for task in record["baselines"].values()):
        choice_note = ""
    lines = [
        "# Zero- and few-shot scores",
        "",
        "Scores in percent, mean ± standard deviation over seeds of the examples." + choice_note,
        "`shown` is the mean number of examples per query that fit into a row. `cut` is the share",
        "of queries that were truncated. A score near chance or majority shows no ability.",
        "",
        *table(head, rows),
    ]
    return "\n".join(lines) + "\n"
