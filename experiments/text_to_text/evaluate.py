"""The commands `evaluate`, which scores a text-to-text run, and `predict`, which answers lines."""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from experiments.lines import answer_json, answer_lines, refuse_flags_with_json
from experiments.run import checkpoint_location, write_scores
from experiments.text_to_text.run import TextRecipe, TextRun, answers_of, line_translator
from experiments.train_run import generated
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.examples import read_examples
from macaron_tf.data.tasks.questions import Answer, read_questions
from macaron_tf.data.tasks.text_tasks import (
    PREFIXES,
    answer_text,
    as_texts,
    questions_as_texts,
    read_answer,
    read_answers,
)
from macaron_tf.decoding import BeamSearchConfig
from macaron_tf.errors import LineError, UserError
from macaron_tf.evaluation import glue
from macaron_tf.evaluation.answers import score_answers
from macaron_tf.evaluation.language import rouge
from macaron_tf.evaluation.translation import TranslationMetric, evaluate_translations
from macaron_tf.loading import load
from macaron_tf.tasks.generation import frame_lines
from macaron_tf.text.base import PieceVocabulary


@dataclasses.dataclass(frozen=True)
class TextPairs:
    """Examples in one split of a task, as pairs of a source text and a target text.

    Attributes:
        task: name of the task.
        split: name of the split.
        pairs: pairs of a source line and a target line.
        labels: labels of the examples, or correct answers to the questions; `None` for
            summarization and translation, whose targets are texts.
        groups: group index of each example; `None` if the metrics do not group examples. See
            `Examples`.
        language: in translation, code of the target language.
    """

    task: str
    split: str
    pairs: list[tuple[str, str]]
    labels: np.ndarray | list[tuple[Answer, ...]] | None = None
    groups: np.ndarray | None = None
    language: str = ""

    @classmethod
    def read(
        cls, recipe: TextRecipe, name: str, split: str, tfds: Tfds | None = None
    ) -> "TextPairs":
        """Reads one split of a task.

        Args:
            recipe: recipe that lists the task.
            name: name of the task.
            split: name of the split. "validation" means the first validation split of the task.
            tfds: access to TensorFlow Datasets.

        Raises:
            UserError: the split cannot be read, or has no labels, like the test splits of GLUE.
        """
        source, fields = recipe.examples_of(name)
        if prefix := PREFIXES.get(name):
            pairs = read_pairs(source, split, *fields, tfds)
            # Joins the lines of each text, because an e-mail has several lines.
            lines = ([" ".join(text.split()) for text in pair] for pair in pairs)
            texts = [(prefix + text, answer) for text, answer in lines]
            return cls(name, split, texts, language=fields[1])
        task = get_task(name)
        if split == "validation":
            split = task.validation_splits[0]
        has_spans = task.kind == "spans"
        examples = (read_questions if has_spans else read_examples)(task, split, tfds, source)
        if examples.labels is None:
            raise UserError(f"the split {split!r} of {source} has no labels: give another split")
        if has_spans:
            return cls(name, split, questions_as_texts(examples), examples.labels)
        return cls(name, split, as_texts(task, examples), examples.labels, examples.groups)

    def first(self, count: int | None) -> "TextPairs":
        """Returns a copy of this object with only the first `count` examples.

        If `count` is `None`, the copy has all examples.
        """
        labels, groups = (
            None if values is None else values[:count] for values in (self.labels, self.groups)
        )
        return TextPairs(self.task, self.split, self.pairs[:count], labels, groups, self.language)

    @functools.cached_property
    def metric(self) -> TranslationMetric:
        """BLEU settings, with the tokenizer for the language of the references."""
        return TranslationMetric(self.language).for_references([target for _, target in self.pairs])

    def score(self, answers: Sequence[str]) -> dict[str, float]:
        """Computes the metrics of the task.

        Args:
            answers: generated answers, one for each pair.

        Returns:
            Dict mapping metric name to value. The value of "score" is the main metric or, for GLUE
            and SuperGLUE, the mean of the task's metrics.
        """
        targets = [target for _, target in self.pairs]
        if self.task == "summarization":
            metrics = rouge(answers, targets)
            return {**metrics, "score": metrics["rougeL"]}
        if self.task == "translation":
            scores = evaluate_translations(answers, targets, self.metric)
            return {"bleu": scores.bleu, "chrf": scores.chrf, "score": scores.bleu}
        task = get_task(self.task)
        if task.kind == "spans":
            truths = [[answer.text for answer in correct] for correct in self.labels or ()]
            metrics = score_answers(answers, truths)
            return {**metrics, "score": metrics["f1"]}
        return glue.score(task, read_answers(task, answers, self.labels), self.labels, self.groups)


def check_answers(name: str, vocabulary: PieceVocabulary, max_tokens: int | None = None) -> None:
    """Raises a `UserError` if the model cannot generate the answers of a task.

    This happens if the vocabulary cannot represent an answer, or if `max_tokens` is too small. The
    function does not check tasks whose answers are free text or spans.

    Args:
        name: name of the task.
        vocabulary: vocabulary of the model.
        max_tokens: maximum number of tokens in an answer, excluding EOS; `None` means no limit.
    """
    if name in PREFIXES or (task := get_task(name)).kind == "spans":
        return
    labels = range(task.num_classes) if task.labels else (3.8,)
    answers = [answer_text(task, label) for label in labels]
    rows = [row[:max_tokens] for row in vocabulary.encode_lines(answers)]
    decoded = vocabulary.decode_lines(rows)
    for label, answer, text in zip(labels, answers, decoded, strict=True):
        if read_answer(task, text) != label:
            raise UserError(
                f"the model cannot generate the answer {answer!r} of {name}, because its tokens "
                f"decode to {text!r}: raise max_target, or start from another vocabulary"
            )


def evaluate(options: argparse.Namespace) -> None:
    """Runs the command `evaluate`: answers a split, and prints and saves the scores."""
    opened = TextRun.open(options.run, options.trust_code)
    recipe = opened.recipe.with_source(options.source)
    examples = [TextPairs.read(recipe, name, options.split, options.tfds) for name in recipe.tasks]
    checkpoint = opened.checkpoint(options.checkpoint)
    with options.devices.scope():
        translator = opened.line_translator(opened.load_network(checkpoint))
    for pairs in examples:
        answers = generated(translator, [source for source, _ in pairs.pairs], "answering")
        scores = pairs.score(answers)
        for name, value in scores.items():
            title = name if len(recipe.tasks) == 1 else f"{pairs.task}_{name}"
            print(f"{title:24} {value:.4f}")
        record = {
            "run": str(opened.path),
            "checkpoint": checkpoint.name,
            "task": pairs.task,
            "source": recipe.examples_of(pairs.task)[0],
            "split": pairs.split,
            "examples": len(answers),
            **scores,
            "answers": answers,
            "targets": [target for _, target in pairs.pairs],
        }
        subject, identity = f"{pairs.task}-{record['source']}-{pairs.split}", [pairs.pairs]
        settings, what = f"{checkpoint.name}-", "scores and answers"
        write_scores(None, opened.path, what, subject, settings, identity, record)


def predict(options: argparse.Namespace) -> None:
    """Runs the command `predict`: prints the answer to each line of a file or of stdin."""
    if options.json:
        mend = "leave one of them out, because --json uses the task that the run was trained for"
        refuse_flags_with_json(mend, task=options.task)
    with options.devices.scope():
        location = checkpoint_location(options.run, options.checkpoint)
        model = load(location, trust_code=options.trust_code)
    answers = answers_of(model, options.run, options.task)
    if options.json:
        answer_json(options.input, options.output, model.predict)
        return
    decoding = BeamSearchConfig(**model.recipe.get("decoding", {}))
    translator = line_translator(model.network, model.vocabulary, answers, decoding)
    task = options.task or answers["task"]
    is_pair = task not in PREFIXES and "+" not in task and bool(get_task(task).second)

    def answer(lines: list[str], first: int) -> str:
        without_tab = [n for n, line in enumerate(lines, first) if is_pair and "\t" not in line]
        if without_tab:
            raise LineError(
                f"line {without_tab[0]} has no tab: separate the two texts of {task} by a tab"
            )
        sources = frame_lines(task, tf.constant(lines)).numpy()
        outputs = translator.translate([source.decode() for source in sources], first)
        for warning in outputs.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        return "".join(f"{line}\n" for line in outputs.best)

    answer_lines(options.input, options.output, answer)
