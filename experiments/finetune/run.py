"""A fine-tuning run: its settings, the papers' by name (`PRESETS`), its outputs and metrics.

macaron: Lu et al. 2019, appendix B.3, and its released code: batches of 16 or 32, 3 to 5 epochs,
learning rate 5e-5 (code; the paper's text prints 5e-3) or 3e-5, 10% warm-up, then linearly to 0,
Adam with epsilon 1e-6, weight decay 0.01, the best on the development set kept. Betas and head are
BERT's. Judged once an epoch.

bert: Devlin et al. 2018, otherwise as macaron. Questions: 2 epochs at 3e-5 (its released code; the
paper: 3 epochs at 5e-5), batches of 32, of SQuAD 2.0 48 (section 4.3), rows of 384, a window every
128 tokens. All others: 3 epochs at 5e-5 in batches of 32, of appendix A.3's grid.

gpt: Radford et al. 2018, section 4.1: 3 epochs at 6.25e-5 in batches of 32, warmed up over 0.2% of
the updates, then linearly to 0, lambda 0.5, a dropout of 0.1 before the classifier. Adam is its
pre-training's.

elmo: 5 epochs of Adam from 1e-3, linearly to 0, for the LSTM over a frozen ELMo (Peters et al.
2018 say no more of most of theirs than the network); contexts in windows of 400 words.

spanbert: Joshi et al. 2020, its released code's commands: questions 4 epochs at 2e-5 in batches of
32, rows of 512, a window every 128 tokens. All others as bert, with 2e-5.

swish_rnn: Lei et al. 2022, appendix B: batches of 32, Adam without weight decay, 1,000 updates of
warm-up, then a constant learning rate out of {1e-5, 5e-6, 3e-6, 2e-6}, judged every 1,000 updates,
at most the updates of its table 4; 3 runs, their mean reported. Betas are its pre-training's.
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

# Updates of table 4 of Lei et al. 2022; of larger sets that are not in it, as many as its sets of
# that size have. All others take `_SWISH_RNN_LEAST`.
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

    As in BERT's released code an epoch counts examples, where long ones may have several rows.
    Texts of a classification that are longer than `max_length` are cut; contexts and tagged
    sentences are read through windows.

    Attributes:
        head_dropout: on the head's input, the pooled vector or the positions'; spans have none.
        spans: limits of questions and contexts.
        table: columns and classes of the tasks on a table of one's own.
        language: of the training texts of a classification, for a model of several languages;
            None = the model's first.
        languages: of the model, in the order of their embeddings.
        language_weight: lambda of a causal model's own loss beside that of a classification, see
            `AuxiliaryLanguageObjective`.
        words: the layers over an ELMo's vectors.
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
                f"max_length is {self.max_length}: a row of {self.task} needs {least} or more"
            )
        if self.language and self.described.kind != "classification":
            raise UserError(
                f"language={self.language!r} is of classifications, and {self.task} is none: it "
                "reads every text in the model's first language; leave language out"
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
            raise UserError(f"{self.task} asks for choices: ELMo has classes, spans and tags")
        segments = config.num_segments if isinstance(config, EncoderConfig) else 0
        if self.described.second and segments == 1:
            raise UserError(
                f"{self.task} is about two texts: the model needs model.num_segments of 2 (or 0)"
            )
        return config


def _epochs(task: Task, learning_rate: float, spans=None, **settings) -> FinetuningRecipe:
    """A recipe in epochs; `spans` are further settings of questions."""
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
    # Paragraphs are longer than sentences: rows as BERT's.
    "macaron": lambda task: _epochs(task, 5e-5, dict(max_length=384)),
    "bert": _bert,
    "gpt": lambda task: _epochs(task, 6.25e-5, warmup_fraction=0.002),
    "elmo": _elmo,
    "spanbert": lambda task: _epochs(task, 2e-5, dict(epochs=4.0, max_length=512)),
    "swish_rnn": _swish_rnn,
}

# Metrics of a paper's table that says "CoLA" and "MultiRC" alone. Lei et al. 2022, table 1: BERT
# has 82.0 for CoLA, where the Matthews coefficients of larger models beside it are 60.6 to 66.3,
# and 69.5 for MultiRC, where RoBERTa's mean of F1a and EM is 68 (SuperGLUE's leaderboard). Whether
# that is F1a or the accuracy of single answers the number does not say.
TABLE_METRICS = {"swish_rnn": {"cola": "accuracy", "multirc": "f1a"}}


def preset(name: str, task: Task) -> FinetuningRecipe:
    """A paper's recipe for a task, by its name among `PRESETS`, or a function of the user's."""
    if name not in PRESETS and not is_place(name):
        near = nearest(name, PRESETS)
        raise UserError(f"no preset is called {name!r}; there are {', '.join(PRESETS)}{near}")
    return registry.made(name, FinetuningRecipe, PRESETS.get(name), task)


def run_settings(options: argparse.Namespace) -> None:
    """The command `settings TASK [WORD ...]`."""
    recipe = override(preset(options.preset, get_task(options.task, own=True)), options.set)
    registry.print_settings(recipe, options.words)


@dataclasses.dataclass(frozen=True)
class FinetuningResult:
    """The end of a run; RUN/result.json.

    Attributes:
        reason: `"max_steps"`, `"max_minutes"`, `"early_stopping"` or `"diverged"`.
        step: updates done; None where the run diverged.
        best_step, best_score: of the best validation; None where none had a finite score.
        metrics: of that validation.
        seconds: wall-clock time; None where the run diverged.
    """

    reason: str
    step: int | None
    best_step: int | None
    best_score: float | None
    metrics: dict[str, float]
    seconds: float | None


def by_split(measured: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """Metrics of development sets: the first one's by their names, others' behind the split's."""
    first = next(iter(measured))
    return {
        name if split == first else f"{split}_{name}": value
        for split, metrics in measured.items()
        for name, value in metrics.items()
    }


def measure(
    task: Task, outputs: Mapping[str, Any], examples: Mapping[str, Any]
) -> dict[str, float]:
    """Metrics of outputs, both arguments by split, as `by_split` names them."""
    kind = labelled(task)
    return by_split({split: kind.measure(outputs[split], examples[split]) for split in outputs})


@dataclasses.dataclass(frozen=True)
class FinetuningRun(Run):
    """A finished or running fine-tuning."""

    recipe_class = FinetuningRecipe

    @property
    def task(self) -> Task:
        """The task that it was trained for."""
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
        """The task with a checkpoint's weights, see `load_network`."""
        checkpoint = self.checkpoint(checkpoint)
        tuned = read_manifest(checkpoint).get("metrics") or {}
        given = self.load_network(checkpoint), self.vocabulary, tuned
        return labelled(self.task, self.recipe.limits, *given)

    def result(self) -> FinetuningResult | None:
        """The end of the run; None where it has not come."""
        try:
            return FinetuningResult(**storage.read_json(self.path / RESULT))
        except (UserError, TypeError):
            return None
