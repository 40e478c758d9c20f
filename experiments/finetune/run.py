"""Recipe and run of fine-tuning, and `PRESETS`, the settings of papers.

macaron: Lu et al. 2019, appendix B.3, and its released code. Batches of 16 or 32, 3 to 5 epochs,
learning rate 5e-5 (code; the paper's text prints 5e-3) or 3e-5, 10% warm-up, then linearly to 0,
Adam with epsilon 1e-6, weight decay 0.01; the best checkpoint on the development set is kept. Betas
and head are those of BERT. Validation once per epoch.

bert: Devlin et al. 2018, otherwise as macaron. Questions: 2 epochs at 3e-5 (released code; the
paper has 3 epochs at 5e-5), batches of 32, or 48 for SQuAD 2.0 (section 4.3), rows of 384, a window
every 128 tokens. Other tasks: 3 epochs at 5e-5 in batches of 32, from the grid of appendix A.3.

gpt: Radford et al. 2018, section 4.1. 3 epochs at 6.25e-5 in batches of 32, warm-up over 0.2% of
the updates, then linearly to 0, lambda 0.5, dropout of 0.1 before the classifier. Adam has the
settings of pre-training.

elmo: 5 epochs of Adam from 1e-3, linearly to 0, for the LSTM over a frozen ELMo, because Peters et
al. 2018 describe little more than the networks of their tasks; contexts in windows of 400 words.

spanbert: Joshi et al. 2020, the commands of its released code. Questions: 4 epochs at 2e-5 in
batches of 32, rows of 512, a window every 128 tokens. Other tasks as bert, with 2e-5.

swish_rnn: Lei et al. 2022, appendix B. Batches of 32, Adam without weight decay, 1,000 updates of
warm-up, then a constant learning rate from {1e-5, 5e-6, 3e-6, 2e-6}, validation every 1,000
updates, at most the updates of its table 4; the mean of 3 runs is reported. Betas are those of its
pre-training.
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
from macaron_tf.io import paths as storage
from macaron_tf.models import (
    ElmoConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    WordEncoderConfig,
)
from macaron_tf.objectives import Objective
from macaron_tf.plug_ins import is_place
from macaron_tf.settings import Dropout, NonNegative
from macaron_tf.tasks import LabelledTask, Limits, SpanLimits, labelled
from macaron_tf.tasks.labelled import embeds_languages
from macaron_tf.training.checkpoints import read_manifest
from macaron_tf.training.config import fine_tuning

RESULT = "result.json"

# Updates in table 4 of Lei et al. 2022. Larger sets that it lacks get the updates of sets of their
# size, all others `_SWISH_RNN_LEAST`.
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
_SWISH_RNN_LEAST = 20_000  # of mrpc and rte


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningRecipe(EpochRecipe):
    """Every setting of a fine-tuning run.

    As in BERT's released code, an epoch counts examples, even though long ones may have several
    rows. Texts to classify that are longer than `max_length` are cut; contexts of questions and
    sentences to tag are read in overlapping windows.

    Attributes:
        head_dropout: dropout rate of the head's input, which is the pooled vector or those of all
            positions. Heads of questions have no dropout.
        spans: limits of questions and contexts.
        table: columns and classes for tasks on your own table.
        language: language of texts to classify, if the model has several; None: the model's first.
        languages: the model's languages in the order of their embeddings.
        language_weight: lambda, weight of the language model loss that is added when a causal model
            learns to classify, see `AuxiliaryLanguageObjective`.
        words: settings of the layers over ELMo's vectors.
    """

    kind = "finetuning"
    command = "python -m experiments.finetune"
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
        least = labelled(self.described).least_length(self.spans)
        if self.max_length < least:
            raise UserError(
                f"max_length is {self.max_length}, but a row of {self.task} needs {least} tokens: "
                "raise it"
            )
        if self.language and self.described.kind != "classification":
            raise UserError(
                f"language={self.language!r} is for classification only, and {self.task}, which is "
                "none, reads texts in the model's first language: leave language out"
            )
        Limits(self.max_length, language=self.language, languages=self.languages)

    @functools.cached_property
    def described(self) -> Task:
        """The task that `task` names, with the columns and classes of `table`."""
        return self.table.described(get_task(self.task, own=True))

    def usage(self) -> dict:
        return {
            **super().usage(),
            "labels": self.described.labels,
            "languages": self.languages,
            "language": self.language,
            "labelled": labelled(self.described, self.limits).description(),
        }

    @property
    def limits(self) -> Limits:
        """Limits of the rows that the model reads."""
        config = self.model_config()
        given = self.language, self.languages, embeds_languages(config)
        return Limits(self.max_length, self.spans, config.causal, *given)

    def unread(self) -> dict[str, str]:
        task, config = self.described, self.model_config()
        found = super().unread()
        if task.kind != "spans":
            found["spans."] = "a task of questions"
        if not isinstance(config, ElmoConfig):
            found["words."] = "a model over an ELMo's vectors"
        if not (config.causal and task.kind in ("classification", "choice")):
            found["language_weight"] = "a causal classifier"
        return found

    def make_objective(self, static_shapes: bool = False) -> Objective:
        return labelled(self.described).learnt(self.model_config(), self.language_weight)

    def model_config(
        self, vocab_size: int | None = None
    ) -> EncoderConfig | EncoderDecoderConfig | ElmoConfig:
        config = super().model_config(vocab_size)
        if isinstance(config, ElmoConfig) and self.described.kind == "choice":
            raise UserError(
                f"{self.task} is multiple choice, which ELMo does not support: give --init another "
                "model"
            )
        segments = config.num_segments if isinstance(config, EncoderConfig) else 0
        if self.described.second and segments == 1:
            raise UserError(
                f"{self.task} has two texts, but the model one segment: set model.num_segments=2 "
                "or 0"
            )
        return config


def _epochs(task: Task, learning_rate: float, spans=None, **settings) -> FinetuningRecipe:
    """Makes a recipe with lengths in epochs; `spans` are additional settings for questions."""
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
        return _epochs(task, 5e-5)
    rows = 48 if task.unanswerable else 32
    return _epochs(task, 3e-5, epochs=2.0, batch_size=rows, max_length=384)


def _elmo(task: Task) -> FinetuningRecipe:
    settings = dict(spans=dict(max_length=400), epochs=5.0, warmup_fraction=0.0)
    return _epochs(task, 1e-3, **settings).changed(
        training=dict(clip_norm=5.0, weight_decay=0.0), words=dict(elmo_norm=True)
    )


def _swish_rnn(task: Task) -> FinetuningRecipe:
    recipe = _epochs(
        task, 1e-5, epochs=None, warmup_fraction=None, validate_epochs=None, max_length=512
    )
    training = dict(
        max_steps=_SWISH_RNN_STEPS.get(task.name, _SWISH_RNN_LEAST),
        schedule="constant",
        warmup_steps=1_000,
        beta_2=0.98,
        weight_decay=0.0,
        validate_every=1_000,
    )
    return recipe.changed(training=training)


PRESETS: dict[str, Callable[[Task], FinetuningRecipe]] = {
    # Contexts of questions are longer than sentences, so their rows are as long as BERT's.
    "macaron": lambda task: _epochs(task, 5e-5, dict(max_length=384)),
    "bert": _bert,
    "gpt": lambda task: _epochs(task, 6.25e-5, warmup_fraction=0.002),
    "elmo": _elmo,
    "spanbert": lambda task: _epochs(task, 2e-5, dict(epochs=4.0, max_length=512)),
    "swish_rnn": _swish_rnn,
}

# Metrics that Lei et al. 2022, table 1, must have used for CoLA and MultiRC, without naming them.
# BERT has 82.0 for CoLA, while the Matthews coefficients of larger models are 60.6 to 66.3; so it
# is accuracy. BERT has 69.5 for MultiRC, while RoBERTa's mean of F1a and EM is 68 (SuperGLUE's
# leaderboard); so it is F1a, or maybe the accuracy of single answers.
TABLE_METRICS = {"swish_rnn": {"cola": "accuracy", "multirc": "f1a"}}


def preset(name: str, task: Task) -> FinetuningRecipe:
    """Makes the recipe for a task, by the name of one of `PRESETS` or by a user's function."""
    if name not in PRESETS and not is_place(name):
        near = nearest(name, PRESETS)
        raise UserError(f"no preset is called {name!r}; there are {', '.join(PRESETS)}{near}")
    return registry.made(name, FinetuningRecipe, PRESETS.get(name), task)


def run_settings(options: argparse.Namespace) -> None:
    """The command `settings TASK [WORD ...]`: prints the settings of a preset's recipe."""
    recipe = override(preset(options.preset, get_task(options.task, own=True)), options.set)
    registry.print_settings(recipe, options.words)


@dataclasses.dataclass(frozen=True)
class FinetuningResult:
    """The result of a run, which is saved as RUN/result.json.

    Attributes:
        reason: why the run ended: `"max_steps"`, `"max_minutes"`, `"early_stopping"` or
            `"diverged"`.
        step: number of updates; None if the run diverged.
        best_step, best_score: step and score of the best validation; None if no score was finite.
        metrics: metrics of the best validation.
        seconds: wall-clock time; None if the run diverged.
    """

    reason: str
    step: int | None
    best_step: int | None
    best_score: float | None
    metrics: dict[str, float]
    seconds: float | None


def by_split(measured: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """Joins the metrics of development sets; names get the split as prefix, except the first's."""
    first = next(iter(measured))
    return {
        name if split == first else f"{split}_{name}": value
        for split, metrics in measured.items()
        for name, value in metrics.items()
    }


def measure(
    task: Task, outputs: Mapping[str, Any], examples: Mapping[str, Any]
) -> dict[str, float]:
    """The metrics of outputs, named as by `by_split`; both dicts have the splits as keys."""
    kind = labelled(task)
    return by_split({split: kind.measure(outputs[split], examples[split]) for split in outputs})


@dataclasses.dataclass(frozen=True)
class FinetuningRun(Run):
    """A finished or running fine-tuning."""

    recipe_class = FinetuningRecipe

    @property
    def task(self) -> Task:
        """The task that the run was trained for."""
        return self.recipe.described

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

    def answering(self, checkpoint: os.PathLike | str | None = None) -> LabelledTask:
        """The task with the network of a checkpoint, ready to answer, see `load_network`."""
        checkpoint = self.checkpoint(checkpoint)
        tuned = read_manifest(checkpoint).get("metrics") or {}
        given = self.load_network(checkpoint), self.vocabulary, tuned
        return labelled(self.task, self.recipe.limits, *given)

    def result(self) -> FinetuningResult | None:
        """The result of the run; None if it has not ended."""
        try:
            return FinetuningResult(**storage.read_json(self.path / RESULT))
        except (UserError, TypeError):
            return None
