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
from experiments.text_to_text.run import own_examples
from macaron_tf.data.sources.names import RECORDS, Source
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
_KNOWN = ("chance", "majority")
_POOL = 10_000  # maximum number of training examples from which shots are drawn
Ids = list[int]


def _score_answers(answers: Sequence[str], truths: Sequence[tuple[str, ...]]) -> dict:
    found = score_answers(answers, truths)
    return {"score": found["f1"], "exact": found["exact"]}


def _score_summaries(answers: Sequence[str], truths: Sequence[tuple[str, ...]]) -> dict:
    found = rouge(answers, [truth for truth, *_ in truths])
    return {"score": statistics.mean(found.values()), **found}


def _score_translations(answers, truths, metric: TranslationMetric | None = None) -> dict:
    found = evaluate_translations(answers, [truth for truth, *_ in truths], metric)
    return {"score": found.bleu / 100, "chrf": found.chrf / 100}


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
        return [" ".join(found[: self.sentences]) for found in split_sentences(lines)]


# Radford et al. 2019 (GPT-2), sections 3.6 and 3.7.
_FORMS = {
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
        form: type of the answers: "choice", "last_word" or "free".
        asked: prompts to evaluate.
        pool: prompts from which shots are drawn.
        metric: name of the metric, for tables.
        measure: for choices, function that scores predictions. Its arguments are the indices of the
            predicted choices and of the correct choices. The function returns a fraction.
        content_free: for choices, queries without content, such as "N/A", which are used for
            calibration.
        free: for free-form answers, settings of generation and scoring.
        between: line breaks between two examples, for models that were trained with line breaks. An
            empty string puts all text on one line.
    """

    name: str
    form: str
    asked: list[Prompt]
    pool: list[Prompt]
    metric: str = "accuracy"
    measure: Callable[[np.ndarray, np.ndarray], float] = accuracy
    content_free: tuple[str, ...] = ()
    free: FreeForm = FreeForm()
    between: str = ""


def read_task(
    name: str,
    tfds: Tfds | None = None,
    template: Template | None = None,
    style: str = "plain",
) -> PromptTask:
    """Reads the prompts of a task.

    If the name of a file contains `{split}`, shots are drawn from the split "train" and questions
    from the split "validation". Otherwise, every fourth example is reserved for shots.

    Args:
        name: name of a classification or question-answering task in
            `macaron_tf.data.tasks.definitions`, or `lambada:FILE`, `tsv:FILE`, `summarization`,
            `summarization:FROM-TO:SOURCE` or `translation:FROM-TO:SOURCE`. SOURCE is a source of
            text pairs.
        tfds: access to TensorFlow Datasets.
        template: prompt template that replaces the default template of a classification task.
        style: style of questions and translations, a key of
            `macaron_tf.data.tasks.prompts.QUESTIONS`.
    """
    source, between = Source.of(name), {"gpt2": "\n", "gpt3": "\n\n"}.get(style, "")
    if source.kind in _FORMS or (source.kind in ("lambada", "tsv", *RECORDS) and source.location):
        if template is not None:
            raise UserError(
                f"--template applies only to classification tasks, but {name} is not a "
                "classification task: leave --template and --words out"
            )
        if source.kind in _FORMS:
            return _read_pairs(source, tfds, style, between or "\n")
        title, is_lambada = source.location.rsplit("/", 1)[-1], source.kind == "lambada"
        table = functools.partial(read_table, style=style)
        asked, pool = _parted(source, read_last_words if is_lambada else table)
        if is_lambada:
            return PromptTask(title, "last_word", asked, pool)
        if not asked[0].choices:
            return PromptTask(title, "free", asked, pool, "f1", between=between)
        free = tuple(QUESTIONS[style].format(text).strip() for text in CONTENT_FREE)
        return PromptTask(title, "choice", asked, pool, content_free=free, between=between)
    task = get_task(name)
    splits = (task.validation_splits[0], "train")
    if task.kind == "spans":
        if template is not None:
            raise UserError(
                f"--template applies only to classification tasks, but {name} is not a "
                "classification task: leave --template and --words out"
            )
        asked, pool = (question_prompts(read_questions(task, s, tfds), style) for s in splits)
        return PromptTask(task.name, "free", asked, pool[:_POOL], "f1", between=between)
    template = template or TEMPLATES.get(name)
    if template is None:
        raise UserError(
            f"no prompt template exists for the task {name!r}: choose one of "
            f"{', '.join(TEMPLATES)}, squad, summarization, translation:FROM-TO:SOURCE, "
            "lambada:FILE, tsv:FILE, jsonl:FILE, parquet:FILE or datasets:DIR"
        )
    asked, pool = (
        classification_prompts(task, read_examples(task, s, tfds), template) for s in splits
    )

    # Excludes exact match, because this metric needs all answers to a question at once.
    metrics = tuple(metric for metric in task.metrics if metric != "em")
    flat = dataclasses.replace(task, metrics=metrics, more_metrics=())

    def measure(predictions: np.ndarray, labels: np.ndarray) -> float:
        return score(flat, predictions, labels)["score"]

    free = tuple(template.query(text, text) for text in CONTENT_FREE)
    title = " and ".join(metrics)
    return PromptTask(name, "choice", asked, pool[:_POOL], title, measure, free)


def _read_pairs(source: Source, tfds: Tfds | None, style: str, between: str) -> PromptTask:
    """Reads a summarization or translation task from text pairs.

    Args:
        source: parsed name of the task, of the form `KIND:FROM-TO:SOURCE`.
        tfds: access to TensorFlow Datasets.
        style: style of translation prompts.
        between: line breaks between two examples.
    """
    names, _, place = source.location.partition(":")
    fields = tuple(names.split("-"))
    if str(source) == "summarization:":
        place, fields = own_examples(source.kind)
    if len(fields) != 2 or not place:
        raise UserError(
            f"--task {source} does not have the form {source.kind}:FROM-TO:SOURCE: give two "
            "languages or fields and a source, as in translation:en-fr:tfds:multi30k/fr-en"
        )

    def read(given: Source, split: str) -> list[Prompt]:
        pairs = read_pairs(str(given), split, *fields, tfds)
        if source.kind == "summarization":
            return summary_prompts(pairs)
        return translation_prompts(pairs, fields[1], style)

    asked, pool = _parted(Source.of(place), read)
    form = _FORMS[source.kind]
    if source.kind == "translation":
        metric = TranslationMetric(fields[1]).for_references([one.answers[0] for one in asked])
        form = dataclasses.replace(form, measure=functools.partial(form.measure, metric=metric))
    title = source.kind if source.kind == "summarization" else names
    return PromptTask(title, "free", asked, pool[:_POOL], form.metric, free=form, between=between)


def _parted(source: Source, read: Callable) -> tuple[list[Prompt], list[Prompt]]:
    """Reads the questions to evaluate, and the examples from which shots are drawn.

    If the source has splits, the questions are the validation split and the examples are the
    training split. Otherwise, every fourth prompt is an example.

    Args:
        source: source of the examples.
        read: function that returns the prompts of a split. Its arguments are the source and the
            name of the split.
    """
    if source.has_splits:
        asked, pool = read(source, "validation"), read(source, "train")
    else:
        prompts = read(source, "all")
        asked, pool = [prompts[n] for n in range(len(prompts)) if n % 4], prompts[::4]
    if not asked or not pool:
        raise UserError(
            f"few-shot prompts need at least 1 question and 1 example, but {source} provides only "
            f"{len(asked)} and {len(pool)}: give more records whose input and answer contain text"
        )
    if len(asked[0].choices) != len(pool[0].choices):
        raise UserError(
            f"{source} has {len(asked[0].choices)} choices in the validation split, but "
            f"{len(pool[0].choices)} in the training split: give both splits the same choice "
            "columns"
        )
    return asked, pool


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
        limited(read_task(name, options.tfds, template, options.prompts), options.max_examples)
        for name in options.task
    ]
    names = [task.name for task in tasks]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(
            f"two values of --task have the same name, {twice!r}, in the table: evaluate these "
            "tasks in separate commands"
        )
    settings = {"normalization": options.normalization, "calibrate": options.calibrate}
    usual = {name: getattr(Asker, name) for name in settings}
    if settings != usual and all(task.form != "choice" for task in tasks):
        raise UserError(
            "--normalization and --calibrate apply only to multiple-choice and classification "
            "tasks, but --task names no such task: leave both flags out"
        )
    for path in options.runs:  # raises for unsuitable models before any evaluation
        find_kind(path, causal=True)
    style = {} if options.prompts == "plain" else {"prompts": options.prompts}
    known = {
        task.name: {
            "metric": task.metric,
            "form": task.form,
            "examples": len(task.asked),
            **baselines(task),
        }
        for task in tasks
    }
    record = {"settings": {**settings, **style}, "baselines": known, "runs": []}
    out = storage.as_path(options.out)
    with storage.clear_errors(f"--out {out} cannot be created", "choose another folder"):
        storage.make_folders(out)
    for path in options.runs:
        opened = open_model(path, causal=True)
        if opened.name in {run["model"] for run in record["runs"]}:  # another checkpoint or folder
            opened = dataclasses.replace(opened, name=str(path))
        record["runs"] += evaluate(opened, tasks, options.shots, options.seeds, **settings)
    text = markdown(record)
    print(text, end="", flush=True)
    write_json(out / JSON, record)
    storage.write_aside(out / MARKDOWN, text.encode())
    mean_curves(_panels(record, "shots", "model"), out / FIGURE, "number of examples, K", "score")
    if len({run["parameters"] for run in record["runs"]}) > 1:
        panels = _panels(record, "parameters", "shots", "K = ")
        mean_curves(panels, out / SIZES, "parameters", "score", log_x=True)
    print(f"written: {out}/{MARKDOWN}, {out}/{JSON}, {out}/{FIGURE}")


def limited(task: PromptTask, most: int) -> PromptTask:
    """Returns the task with at most `most` questions.

    The selection of questions depends neither on the model nor on the seed of the shots.
    """
    if len(task.asked) <= most:
        return task
    chosen = np.sort(np.random.default_rng(0).permutation(len(task.asked))[:most])
    return dataclasses.replace(task, asked=[task.asked[place] for place in chosen])


def baselines(task: PromptTask) -> dict[str, float]:
    """Returns the scores of random guessing and of always predicting the most frequent answer.

    The result is a dict with the keys "chance" and "majority". The scores are fractions.
    """
    if task.form == "choice":
        labels, known = (np.array([one.label for one in part]) for part in (task.asked, task.pool))
        return {
            "chance": chance(task.measure, labels, len(task.asked[0].choices)),
            "majority": float(majority(task.measure, labels, known)),
        }
    [(answer, _)] = collections.Counter(one.answers[0] for one in task.pool).most_common(1)
    truths = [prompt.answers for prompt in task.asked]
    if task.form == "last_word":
        return {"chance": 0.0, "majority": float(np.mean([t == (answer,) for t in truths]))}
    return {"chance": 0.0, "majority": task.free.measure([answer] * len(truths), truths)["score"]}


def draw_shots(task: PromptTask, count: int, seed: int) -> list[Prompt]:
    """Draws `count` shots from a task's pool.

    For a given seed, a larger `count` appends shots to the list for a smaller `count`. All
    questions have the same shots for a given seed, as in Zhao et al. 2021, so that the spread over
    seeds shows the influence of the shots. Brown et al. 2020 draw new shots for each question.
    """
    order = np.random.default_rng(seed).permutation(len(task.pool))
    return [task.pool[place] for place in order[:count]]


@dataclasses.dataclass(eq=False)
class Asker:
    """Evaluator of a model on tasks in the form of prompts.

    Attributes:
        opened: the model.
        normalization: normalization of the score of a choice. With "sum", the score is the
            log-likelihood of the choice. With "token", the log-likelihood is divided by the number
            of tokens, so that short choices have no advantage (Brown et al. 2020, section 2.4).
        calibrate: whether to calibrate the scores of choices; see
            `macaron_tf.evaluation.language.calibrated`.
    """

    opened: Pretrained
    normalization: str = "token"
    calibrate: bool = False

    def __post_init__(self):
        self.scorer = self.opened.task.scorer(self.opened.task.window)

    @functools.cached_property
    def generator(self) -> TextGenerator:
        return self.opened.task.generator

    def ask(self, task: PromptTask, shots: Sequence[Prompt]) -> dict[str, Any]:
        """Evaluates the model on a task.

        Args:
            task: the task.
            shots: examples to put before each question, in order. Examples that do not fit in the
                row are skipped.

        Returns:
            A dict of metrics. "score" is a fraction, "shown" is the mean number of examples before
            a question, and "cut" is the fraction of questions whose beginning was truncated. Other
            keys depend on the task, such as "perplexity" for last-word prediction.
        """
        # The training text of this package's own models has no line breaks.
        lines = bool(task.between) and self.opened.trained_length is None
        examples = self._ids(
            [f"{shot.query} {shot.answers[0]}{task.between * lines}" for shot in shots], lines=lines
        )
        queries = self._ids(
            [_query(prompt, zero_shot=not shots) for prompt in task.asked], not shots, lines
        )
        choices, longest = [], [self._free_config(task).max_tokens] * len(queries)
        if task.form != "free":
            choices = [self._ids(prompt.choices or prompt.answers) for prompt in task.asked]
            longest = [max(map(len, options)) for options in choices]
        filled = [
            fill_context(examples, query, self._room(most))
            for query, most in zip(queries, longest, strict=True)
        ]
        contexts = [context.ids for context in filled]
        if task.form == "free":
            found = self._free(task, contexts)
        elif task.form == "last_word":
            found = self._last_words(contexts, choices)
        else:
            found = self._choices(task, contexts, choices, examples, lines)
        return {
            **found,
            "shown": float(np.mean([context.shown for context in filled])),
            "cut": float(np.mean([context.cut for context in filled])),
        }

    def _room(self, answer: int) -> int:
        """Returns the maximum number of prompt tokens before an answer of `answer` tokens."""
        return max(self.opened.task.window - 1 - answer, 1)

    def _ids(self, texts: Sequence[str], first: bool = False, lines: bool = False) -> list[Ids]:
        """Tokenizes texts, and returns the ids of each text.

        Args:
            texts: texts of a prompt or an answer.
            first: whether the texts are at the beginning of a row. Otherwise, a space is put before
                each text.
            lines: whether to keep line breaks and add no spaces.
        """
        if not lines:
            texts = [as_prompt(text) if first else f" {as_prompt(text).lstrip()}" for text in texts]
        return self.opened.vocabulary.encode_lines(texts)

    def _choices(
        self,
        task: PromptTask,
        contexts: list[Ids],
        choices: list[list[Ids]],
        examples: list[Ids],
        lines: bool,
    ) -> dict[str, Any]:
        scores = self._choice_scores(contexts, choices)  # (N, C)
        if self.calibrate:
            # Calibrates by the scores of the same choices after content-free queries.
            queries = self._ids(task.content_free, not examples, lines)
            of_sets: dict[str, np.ndarray] = {}
            for row, options in enumerate(choices):
                if (name := repr(options)) not in of_sets:
                    room = self._room(max(map(len, options)))
                    empty = [fill_context(examples, query, room).ids for query in queries]
                    of_sets[name] = self._choice_scores(empty, [options] * len(empty))
                scores[row] = calibrated(scores[row : row + 1], of_sets[name])[0]
        labels = np.array([prompt.label for prompt in task.asked])
        return {"score": float(task.measure(scores.argmax(axis=1), labels))}

    def _choice_scores(self, contexts: list[Ids], choices: list[list[Ids]]) -> np.ndarray:
        """Returns the scores of C choices after each of N contexts, `(N, C)`."""
        pairs = zip(contexts, choices, strict=True)
        found = self.scorer.score([(ids, option) for ids, options in pairs for option in options])
        shape = (len(contexts), len(choices[0]))
        tokens = found.lengths if self.normalization == "token" else 1
        return (found.log_probs / tokens).reshape(shape)

    def _last_words(self, contexts: list[Ids], words: list[list[Ids]]) -> dict[str, Any]:
        found = self.scorer.score(
            [(ids, word) for ids, [word] in zip(contexts, words, strict=True)]
        )
        perplexity = math.exp(min(-float(found.log_probs.mean()), 700.0))
        return {"score": float(found.greedy.mean()), "perplexity": perplexity}

    def _free_config(self, task: PromptTask) -> GenerationConfig:
        """Returns the task's generation settings, with `max_tokens` limited to half a row.

        The other half of the row is left for the question.
        """
        config = task.free.generation
        most = min(config.max_tokens, max(self.opened.task.window // 2, 1))
        return dataclasses.replace(config, max_tokens=most)

    def _free(self, task: PromptTask, contexts: list[Ids]) -> dict[str, Any]:
        generator, form = self.generator, task.free
        rows = [[*generator.prefix, *ids] for ids in contexts]
        found = generator.continue_rows(rows, self._free_config(task))
        answers = form.answers([one.text for [one] in found])
        return form.measure(answers, [prompt.answers for prompt in task.asked])


def _query(prompt: Prompt, zero_shot: bool) -> str:
    bare = zero_shot and prompt.bare_query is not None
    return prompt.bare_query if bare else prompt.query


def evaluate(
    opened: Pretrained, tasks: list[PromptTask], shots: list[int], seeds: list[int], **settings
) -> list[dict]:
    """Evaluates a model on all tasks, numbers of shots and seeds.

    Args:
        opened: the model.
        tasks: the tasks.
        shots: numbers of shots K to evaluate.
        seeds: random seeds for drawing the shots. K = 0 is evaluated once, without a seed.
        settings: fields of `Asker`.

    Returns:
        A list with a dict for each task, K and seed. The dict has the output of `Asker.ask` and the
        keys "model", "parameters", "task", "shots" and "seed". The seed is `None` if K = 0.
    """
    asker = Asker(opened, **settings)
    model = {"model": opened.name, "parameters": opened.network.count_params()}
    plan = [(task, k, seed) for task in tasks for k in shots for seed in (seeds if k else [None])]
    records = []
    chunks = ((1, one) for one in plan)
    for task, k, seed in track(chunks, len(plan), f"evaluating {opened.name}", "evaluations"):
        try:
            found = asker.ask(task, draw_shots(task, k, seed) if k else [])
        except UserError as error:
            raise UserError(f"--task {task.name}: {error}") from error
        records.append({**model, "task": task.name, "shots": k, "seed": seed, **found})
    return records


def _panels(
    record: dict[str, Any], x: str, name: str, before: str = ""
) -> dict[str, dict[str, dict[float, list[float]]]]:
    """Returns the curves of a figure with one panel for each task.

    A panel shows the scores over `x`, and horizontal lines for the chance level and the majority
    class.

    Args:
        record: contents of few_shot.json.
        x: key of the values on the x axis, in the dict of a run.
        name: key of the names of the curves, in the dict of a run.
        before: text before the name of each curve.
    """
    points = sorted({run[x] for run in record["runs"]})
    panels = {}
    for task, runs in grouped(record["runs"], "task").items():
        panels[task] = {
            f"{before}{value}": {at: values(each, "score") for at, each in grouped(mine, x).items()}
            for value, mine in grouped(runs, name).items()
        }
        for known in _KNOWN:
            panels[task][known] = {at: [record["baselines"][task][known]] for at in points}
    return panels


def markdown(record: dict[str, Any]) -> str:
    """Formats few_shot.md, which has a table of the scores for every task, model and K."""
    settings, rows = record["settings"], []
    for task, baseline in record["baselines"].items():
        mine = [run for run in record["runs"] if run["task"] == task]
        known = [f"{100 * baseline[name]:.1f}" for name in _KNOWN]
        for model, runs in grouped(mine, "model").items():
            for shots, group in grouped(runs, "shots").items():
                score = mean_of(group, "score", 1, 100)
                if perplexity := values(group, "perplexity"):
                    score += f" (perplexity {statistics.mean(perplexity):,.0f})"
                asked = [task, baseline["metric"], f"{baseline['examples']:,}", model, str(shots)]
                shown, cut = (statistics.mean(values(group, name)) for name in ("shown", "cut"))
                rows.append([*asked, f"{shown:.1f}", f"{100 * cut:.0f}%", score, *known])
    head = ["task", "metric", "questions", "model", "K", "shown", "cut", "score", *_KNOWN]
    calibrated = ", calibrated by content-free queries" if settings["calibrate"] else ""
    chosen = f" Choices by log-likelihood ({settings['normalization']}{calibrated})."
    if all(task["form"] != "choice" for task in record["baselines"].values()):
        chosen = ""
    lines = [
        "# Zero- and few-shot scores",
        "",
        "Scores in percent, mean ± standard deviation over seeds of the examples." + chosen,
        "`shown` is the mean number of examples per query that fit into a row. `cut` is the share",
        "of queries that were truncated. A score near chance or majority shows no ability.",
        "",
        *table(head, rows),
    ]
    return "\n".join(lines) + "\n"
