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
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from experiments import registry
from experiments.epochs import EpochRecipe, RowOutputs, fine_tuning
from experiments.finetune.kinds import Limits, SpanLimits, kind_of
from experiments.recipe import override
from experiments.run import Run
from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.definitions import OWN_TASKS, Task, get_task
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.errors import UserError, check_whole, nearest
from macaron_tf.io import paths as storage
from macaron_tf.models import (
    CausalClassifier,
    ElmoConfig,
    EncoderClassifier,
    EncoderConfig,
    EncoderDecoderConfig,
    EncoderTagger,
    WordEncoderConfig,
)
from macaron_tf.models.pretrained import Pretrained
from macaron_tf.objectives import Objective
from macaron_tf.plug_ins import is_place
from macaron_tf.pretrained import load, locate
from macaron_tf.settings import Dropout, NonNegative
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.words import CharacterWords
from macaron_tf.training.checkpoints import read_manifest

RESULT = "result.json"
CLASSIFIERS = (EncoderClassifier, CausalClassifier)
_MAX_LENGTH = 128  # of a classifier whose rows in training are not known
_INPUTS = ("token_ids", "segment_ids")
# Fills up the outputs of short rows: no position of a span, no tag.
_PADDING = -1e9

# Table 4 of Lei et al. 2022.
_SWISH_RNN_STEPS = {
    "boolq": 50_000,
    "cola": 50_000,
    "mnli": 200_000,
    "mrpc": 20_000,
    "multirc": 50_000,
    "qnli": 100_000,
    "qqp": 150_000,
    "rte": 20_000,
    "sst2": 80_000,
    "stsb": 30_000,
    # Not in the table: as many as its sets of that size have.
    **dict.fromkeys(OWN_TASKS, 20_000),
    **dict.fromkeys(("snli", "xnli"), 200_000),
    "wnli": 20_000,
    "conll2003": 20_000,
    "story_cloze": 20_000,
    **dict.fromkeys(("race", "swag", "hellaswag"), 100_000),
    "copa": 20_000,
    "squad": 100_000,
    "squad2": 100_000,
}


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
        least = kind_of(self.described).least_length(self.spans)
        if self.max_length < least:
            raise UserError(
                f"max_length is {self.max_length}: a row of {self.task} needs {least} or more"
            )
        if self.language and self.described.kind != "classification":
            raise UserError(
                f"language={self.language!r} is of classifications, and {self.task} is none: it "
                "reads every text in the model's first language; leave language out"
            )
        if self.language and self.language not in self.languages:
            known = f"one of {', '.join(self.languages)}" if self.languages else "none is named"
            raise UserError(
                f"language={self.language!r} is none of the model's: {known}; start from an XLM "
                "that has read it"
            )

    @property
    def described(self) -> Task:
        """The task that `task` names, with the columns and classes of `table`."""
        return self.table.described(get_task(self.task, own=True))

    def usage(self) -> dict:
        own = {"labels": self.described.labels, "languages": self.languages}
        own["language"] = self.language
        return {**super().usage(), **own}

    @property
    def limits(self) -> Limits:
        """Limits of the rows that the model reads."""
        config, number = self.model_config(), 0
        if self.language and knows_languages(config):
            number = self.languages.index(self.language)
        return Limits(self.max_length, self.spans, config.causal, self.language, number)

    def make_objective(self, static_shapes: bool = False) -> Objective:
        return kind_of(self.described).learnt(self.model_config(), self.language_weight)

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


def knows_languages(config: EncoderConfig | EncoderDecoderConfig) -> bool:
    """Whether a model has embeddings of languages."""
    return isinstance(config, EncoderConfig) and config.num_languages > 0


def _epochs(task: Task, learning_rate: float, spans=None, **settings) -> FinetuningRecipe:
    """A recipe in epochs; `spans` are further settings of questions."""
    if task.kind == "spans":
        settings |= spans or {}
    return FinetuningRecipe(
        model="bert_base",
        task=task.name,
        source=task.source,
        training=fine_tuning(learning_rate, "score"),
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
        max_steps=_SWISH_RNN_STEPS[task.name],
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


@dataclasses.dataclass(eq=False)
class Predictor:
    """Outputs of a fine-tuned network, text by text or of tokenized examples; see `RowOutputs`.

    Attributes:
        tuned: metrics of the validation of these weights, see `TaskKind.outputs`.
    """

    network: keras.Model
    vocabulary: PieceVocabulary
    recipe: FinetuningRecipe
    tuned: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.kind = kind_of(self.recipe.described)
        words = self.vocabulary if isinstance(self.vocabulary, CharacterWords) else None
        self._token_shape = (words.max_characters,) if words else ()
        self._names = (*_INPUTS, *("language_ids",) * knows_languages(self.network.config))
        shapes = self.kind.row_shape, self._token_shape
        self._outputs = RowOutputs(self.network, self._names, *shapes)

    def logits(self, data: ExampleBatches) -> np.ndarray:
        """The network's outputs `(N, ...)` for N tokenized rows, at the longest row's length."""
        rows = (len(data), *self.kind.row_shape, data.lengths[-1])
        ids = dict.fromkeys(self._names, keras.KerasTensor(rows, "int32"))
        ids["token_ids"] = keras.KerasTensor((*rows, *self._token_shape), "int32")
        shape = self.network.compute_output_spec(ids).shape
        batches = data.evaluation_dataset().as_numpy_iterator()
        filled = ({"language_ids": np.zeros_like(one["token_ids"]), **one} for one in batches)
        inputs = ((batch["index"], tuple(map(batch.get, self._names))) for batch in filled)
        return self._outputs.fill(np.full(shape, _PADDING, np.float32), inputs)

    def of_examples(self, examples: Any, language: str | None = None) -> Any:
        """The kind's outputs of a task's examples, whose labels are not used.

        Args:
            language: of the texts; None = that of the training texts.
        """
        recipe = self.recipe.changed(language=language) if language else self.recipe
        encoded = self.kind.encoded(self.vocabulary, examples, recipe.limits)
        data = ExampleBatches(encoded, self.recipe.batch_size)
        return self.outputs(data, examples, self.logits(data))

    def outputs(self, data: ExampleBatches, examples: Any, logits: np.ndarray) -> Any:
        """The kind's outputs of examples, from the logits of their rows."""
        return self.kind.outputs(logits, data.encoded, examples, self.recipe.limits, self.tuned)

    def of_texts(self, *columns: Sequence[str]) -> Any:
        """The kind's outputs of texts without labels, see `TaskKind.of_texts`."""
        for column in columns:
            check_whole(column)
        return self.of_examples(self.kind.of_texts(*columns))


def open_predictor(place: str, checkpoint: str | None = None) -> Predictor:
    """The predictor of a run, or of a classifier or tagger that was saved without a recipe.

    The place is one of `macaron_tf.load`, the checkpoint a run's.
    """
    location = locate(place)
    if not location.without_recipe:
        return FinetuningRun.open(location.folder).predictor(checkpoint)
    found = load(place)
    return Predictor(found.network, found.vocabulary, recipe_of(place, found))


def recipe_of(place: str, found: Pretrained) -> FinetuningRecipe:
    """The task, classes and limits of a classifier, regression or tagger that no run trained."""
    if not isinstance(found.network, (*CLASSIFIERS, EncoderTagger)):
        raise UserError(
            f"{place} is a {type(found.network).__name__}, which answers no task: give a run of "
            f"`finetune train`, such as of one with --init {place}"
        )
    if found.vocabulary is None:
        raise UserError(f"{place} has no vocabulary: save the classifier with one")
    outputs = found.network.head.num_classes
    if len(found.labels) != (outputs if outputs > 1 else 0):
        raise UserError(
            f"{place} is a classifier of {outputs} classes, of which {len(found.labels)} have a "
            "name: save it with macaron_tf.load's `labels`, or export its .keras file by "
            "`python -m export.keras_model` with --labels"
        )
    longest = min(found.config.longest or _MAX_LENGTH, _MAX_LENGTH)
    task = "tag" if isinstance(found.network, EncoderTagger) else "classify"
    return FinetuningRecipe(
        model=found.model,
        model_options=found.model_options,
        task=task if found.labels else "regress",
        source=None,
        max_length=found.max_length or found.trained_length or longest,
        table=TableSettings(text=("text",), classes=tuple(found.labels)),
        language=found.language,
        languages=found.languages,
        training=fine_tuning(5e-5, "score"),
    )


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
    kind = kind_of(task)
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
        return kind_of(self.task).network(config, recipe.head_dropout, policy)

    def write(self, network: keras.Model, fingerprint: str, **counts: int) -> None:
        (self.path / RESULT).unlink(missing_ok=True)
        super().write(network, fingerprint, **counts)

    def predictor(self, checkpoint: os.PathLike | str | None = None) -> Predictor:
        """Texts to outputs with a checkpoint's weights, see `load_network`."""
        checkpoint = self.checkpoint(checkpoint)
        network = self.load_network(checkpoint)
        return Predictor(network, self.vocabulary, self.recipe, self.tuned(checkpoint))

    @staticmethod
    def tuned(checkpoint: os.PathLike) -> dict[str, float]:
        """Metrics of the validation of a checkpoint's weights; {} where there was none."""
        return read_manifest(checkpoint).get("metrics") or {}

    def result(self) -> FinetuningResult | None:
        """The end of the run; None where it has not come."""
        try:
            return FinetuningResult(**storage.read_json(self.path / RESULT))
        except (UserError, TypeError):
            return None
