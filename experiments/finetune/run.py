"""Recipe and run of fine-tuning, and `PRESETS`, which contain the fine-tuning settings of papers.

`macaron` follows Lu et al. 2019, appendix B.3, and the released code. The paper searches over batch
sizes of 16 and 32, 3 to 5 epochs, and peak learning rates of 5e-5 and 3e-5. (The code has the rate
5e-5, but the text of the paper says 5e-3.) The optimizer is Adam with epsilon 1e-6, weight decay
0.01, 10% warm-up and linear decay to 0. A validation per epoch selects the best checkpoint on the
development set. Adam's betas and the task head are as in BERT.

`bert` follows Devlin et al. 2018. Question answering takes 2 epochs at 3e-5, as in the released
code. (The paper has 3 epochs at 5e-5.) The batch size is 32, or 48 for SQuAD 2.0 (section 4.3).
Rows have 384 tokens, and windows start every 128 tokens. Other tasks take 3 epochs at 5e-5 in
batches of 32, which are values from the grid in appendix A.3. All other settings are as in
`macaron`.

`gpt` follows Radford et al. 2018, section 4.1. Fine-tuning takes 3 epochs at 6.25e-5 in batches of
32, with warm-up over 0.2% of the updates and linear decay to 0. The auxiliary language-modeling
loss is weighted by 0.5, and the dropout rate before the classifier is 0.1. Adam has the settings of
`macaron`.

`elmo` trains an LSTM on top of a frozen ELMo for 5 epochs, by Adam with linear decay from 1e-3 to
0. Question answering reads windows of 400 words. Peters et al. 2018 describe the networks of their
tasks, but give few training settings.

`spanbert` follows Joshi et al. 2020 and the commands in the released code. Question answering takes
4 epochs at 2e-5 in batches of 32. Rows have 512 tokens, and windows start every 128 tokens. Other
tasks have the settings of `bert` with a learning rate of 2e-5.

`swish_rnn` follows Lei et al. 2022, appendix B. Batches have 32 examples, and Adam has no weight
decay. After 1,000 warm-up updates, the learning rate is constant. The preset has the first of the
paper's rates, which are 1e-5, 5e-6, 3e-6 and 2e-6. A validation follows every 1,000 updates, and
table 4 gives the maximum number of updates. The paper reports the mean of 3 runs. Adam's betas are
as in the pre-training of this paper.
"""

import argparse
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras

from experiments import registry
from experiments.epochs import EpochRecipe
from experiments.recipe import override
from experiments.run import Run
from macaron_tf.data.tasks.definitions import Task, get_task
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.errors import UserError, nearest
from macaron_tf.models import (
    ElmoConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    WordEncoderConfig,
)
from macaron_tf.objectives import Objective
from macaron_tf.plug_ins import is_import_path
from macaron_tf.settings import Dropout, NonNegative
from macaron_tf.tasks import LabelledTask, Limits, SpanLimits, labelled
from macaron_tf.tasks.labelled import embeds_languages
from macaron_tf.training.checkpoints import read_manifest
from macaron_tf.training.config import fine_tuning

RESULT = "result.json"

# Update counts in table 4 of Lei et al. 2022. Large sets that the table lacks have the update count
# of a set of similar size. All other sets have `_SWISH_RNN_MIN_STEPS` updates.
_SWISH_RNN_STEPS = {
    "boolq": 50_000,
    "cola": 50_000,
    "mnli": 200_000,
    "multirc": 50_000,
    "qnli": 100_000,
    "qqp": 150_000,
    "sst2": 80_000,
    "stsb": 30_000,
    **dict.fromkeys(("snli", "xnli"), 200_000),
    **dict.fromkeys(("race", "swag", "hellaswag", "squad", "squad2"), 100_000),
}
_SWISH_RNN_MIN_STEPS = 20_000  # update count of mrpc and rte in the table


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningRecipe(EpochRecipe):
    """All settings of a fine-tuning run.

    An epoch counts examples, even if a long example is split into several rows, as in BERT's
    released code. In classification and multiple choice, texts longer than `max_length` are
    truncated. In question answering and tagging, long contexts and sentences are read in
    overlapping windows.

    Attributes:
        head_dropout: dropout rate of the head's input, which is the pooled vector or the vectors of
            all positions. Question-answering heads have no dropout.
        spans: lengths of questions, answers and window steps in extractive question answering.
        table: settings of the user's own table, such as its columns and classes, for a task that
            reads such a table.
        language: language of the texts in classification, for a model with several languages;
            `None` means the model's first language.
        languages: the model's languages, in the order of its language embeddings.
        language_weight: lambda, the weight of the auxiliary language-modeling loss when a causal
            model is fine-tuned for classification or multiple choice; see
            `AuxiliaryLanguageObjective`.
        words: settings of the network on top of ELMo's vectors.
    """

    kind = "finetuning"
    command = "macaron finetune"
    configs = (EncoderConfig, EncoderDecoderConfig, ElmoConfig)
    by_argument: ClassVar[dict] = EpochRecipe.by_argument | dict.fromkeys(
        ("languages", "words.elmo", "words.max_characters"), "--init"
    )

    head_dropout: Dropout = 0.1
    spans: SpanLimits = SpanLimits()
    table: TableSettings = TableSettings()
    language: str | None = None
    languages: tuple[str, ...] = ()
    language_weight: NonNegative = 0.5
    words: WordEncoderConfig = WordEncoderConfig()

    def check(self) -> None:
        self.table.check_task(get_task(self.task, own=True))
        min_length = labelled(self.task_definition).min_length(self.spans)
        if self.max_length < min_length:
            raise UserError(
                f"max_length is {self.max_length}, but {self.task} needs at least {min_length}"
            )
        if self.language and self.task_definition.kind != "classification":
            raise UserError(
                f"language={self.language!r} applies only to classification tasks, not to "
                f"{self.task}"
            )
        Limits(self.max_length, language=self.language, languages=self.languages)

    @functools.cached_property
    def task_definition(self) -> Task:
        """Definition of the task, with the columns and classes of `table`."""
        return self.table.described(get_task(self.task, own=True))

    def usage(self) -> dict:
        return {
            **super().usage(),
            "labels": self.task_definition.labels,
            "languages": self.languages,
            "language": self.language,
            "labelled": labelled(self.task_definition, self.limits).description(),
        }

    @property
    def limits(self) -> Limits:
        """Length and layout of the rows that the model reads."""
        config = self.model_config()
        language_arguments = self.language, self.languages, embeds_languages(config)
        return Limits(self.max_length, self.spans, config.causal, *language_arguments)

    def unread(self) -> list[str]:
        kind, config = self.task_definition.kind, self.model_config()
        read = {
            "spans.": kind == "spans",
            "words.": isinstance(config, ElmoConfig),
            "language_weight": config.causal and kind in ("classification", "choice"),
        }
        return [*super().unread(), *(path for path in read if not read[path])]

    def make_objective(self, static_shapes: bool = False) -> Objective:
        return labelled(self.task_definition).training_objective(
            self.model_config(), self.language_weight
        )

    def model_config(
        self, vocab_size: int | None = None
    ) -> EncoderConfig | EncoderDecoderConfig | ElmoConfig:
        config = super().model_config(vocab_size)
        if isinstance(config, ElmoConfig) and self.task_definition.kind == "choice":
            raise UserError(
                f"{self.task} has choices, which ELMo does not support: give another --init"
            )
        return config


def _base_recipe(task: Task, learning_rate: float, spans=None, **settings) -> FinetuningRecipe:
    """Makes a recipe with the settings that the presets share.

    Args:
        task: task to fine-tune on.
        learning_rate: peak learning rate.
        spans: recipe settings that apply only to question answering.
        settings: recipe settings that apply to all tasks.
    """
    if task.kind == "spans":
        settings |= spans or {}
    return FinetuningRecipe(
        model="bert_base",
        task=task.name,
        source=task.source,
        training=fine_tuning(learning_rate, best_metric="score"),
        **settings,
    )


def _bert(task: Task) -> FinetuningRecipe:
    if task.kind != "spans":
        return _base_recipe(task, 5e-5)
    batch_size = 48 if task.unanswerable else 32
    return _base_recipe(task, 3e-5, epochs=2.0, batch_size=batch_size, max_length=384)


def _elmo(task: Task) -> FinetuningRecipe:
    settings = dict(spans=dict(max_length=400), epochs=5.0, warmup_fraction=0.0)
    return _base_recipe(task, 1e-3, **settings).changed(
        training=dict(clip_norm=5.0, weight_decay=0.0), words=dict(elmo_norm=True)
    )


def _swish_rnn(task: Task) -> FinetuningRecipe:
    recipe = _base_recipe(
        task, 1e-5, epochs=None, warmup_fraction=None, validate_epochs=None, max_length=512
    )
    training = dict(
        max_steps=_SWISH_RNN_STEPS.get(task.name, _SWISH_RNN_MIN_STEPS),
        schedule="constant",
        warmup_steps=1_000,
        beta_2=0.98,
        weight_decay=0.0,
        validate_every=1_000,
    )
    return recipe.changed(training=training)


PRESETS: dict[str, Callable[[Task], FinetuningRecipe]] = {
    # Contexts of questions are longer than sentences, so rows have BERT's length, 384.
    "macaron": lambda task: _base_recipe(task, 5e-5, dict(max_length=384)),
    "bert": _bert,
    "gpt": lambda task: _base_recipe(task, 6.25e-5, warmup_fraction=0.002),
    "elmo": _elmo,
    "spanbert": lambda task: _base_recipe(task, 2e-5, dict(epochs=4.0, max_length=512)),
    "swish_rnn": _swish_rnn,
}

# Metrics that Lei et al. 2022 probably used for CoLA and MultiRC in table 1, which does not name
# them. CoLA: BERT's score is 82.0, while larger models have Matthews coefficients of 60.6 to 66.3,
# so the metric is accuracy. MultiRC: BERT's score is 69.5, while RoBERTa's mean of F1a and EM on
# SuperGLUE's leaderboard is 68, so the metric is F1a, or perhaps the accuracy of single answers.
TABLE_METRICS = {"swish_rnn": {"cola": "accuracy", "multirc": "f1a"}}


def preset(name: str, task: Task) -> FinetuningRecipe:
    """Makes the recipe of a preset for a task.

    Args:
        name: a key of `PRESETS`, or the location of a user's function that maps a task to a recipe.
        task: task to fine-tune on.

    Raises:
        UserError: there is no such preset, or the user's function fails or returns no
            `FinetuningRecipe`.
    """
    if name not in PRESETS and not is_import_path(name):
        suggestion = nearest(name, PRESETS)
        names = ", ".join(PRESETS)
        raise UserError(f"no preset is called {name!r}: choose one of {names}{suggestion}")
    return registry.make_recipe(name, FinetuningRecipe, PRESETS.get(name), task)


def run_settings(options: argparse.Namespace) -> None:
    """Runs the command `settings TASK [WORD ...]`: prints the settings of a preset's recipe."""
    recipe = override(preset(options.preset, get_task(options.task, own=True)), options.set)
    registry.print_settings(recipe, options.words)


def by_split(measured: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """Merges the metrics of several development sets into one dict.

    The result maps the name of a metric to its value. Metrics of the first split keep their names.
    For other splits, the name of the split becomes a prefix, as in
    "validation_mismatched_accuracy".
    """
    first = next(iter(measured))
    return {
        name if split == first else f"{split}_{name}": value
        for split, metrics in measured.items()
        for name, value in metrics.items()
    }


def measure(
    task: Task, outputs: Mapping[str, Any], examples: Mapping[str, Any]
) -> dict[str, float]:
    """Computes the metrics of a model on several splits, and merges the metrics by `by_split`.

    Args:
        task: task that defines the metrics.
        outputs: dict mapping a split to the model's outputs.
        examples: dict mapping a split to its examples.
    """
    labelled_task = labelled(task)
    return by_split(
        {split: labelled_task.measure(outputs[split], examples[split]) for split in outputs}
    )


@dataclasses.dataclass(frozen=True)
class FinetuningRun(Run):
    """A fine-tuning run, finished or not."""

    recipe_class = FinetuningRecipe

    @property
    def task(self) -> Task:
        """Task on which the run fine-tunes a model."""
        return self.recipe.task_definition

    def make_network(self) -> keras.Model:
        recipe = self.recipe
        config = recipe.model_config(self.vocabulary.size)
        if isinstance(config, ElmoConfig):
            characters = config.max_characters
            config = dataclasses.replace(recipe.words, elmo=config, max_characters=characters)
        policy = recipe.training.dtype_policy
        return labelled(self.task).make_network(config, recipe.head_dropout, policy)

    def write(self, network: keras.Model, fingerprint: str, **counts: int) -> None:
        (self.path / RESULT).unlink(missing_ok=True)
        super().write(network, fingerprint, **counts)

    def load_labelled_task(self, checkpoint: os.PathLike | str | None = None) -> LabelledTask:
        """Loads a checkpoint, and returns a `LabelledTask` that makes predictions with its network.

        Args:
            checkpoint: path or name of the checkpoint; `None` means the default of
                `find_checkpoint`.
        """
        checkpoint = self.checkpoint(checkpoint)
        metrics = read_manifest(checkpoint).get("metrics") or {}
        arguments = self.load_network(checkpoint), self.vocabulary, metrics
        return labelled(self.task, self.recipe.limits, *arguments)
