"""Fine-tuning on labelled examples: data (`TaskData`), recipe (`FinetuningRecipe`) and `fit`."""

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.data.batches import EncodedExamples, ExampleBatches
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import Task, get_task
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.distribution import is_tpu
from macaron_tf.engines.graph import columns_of
from macaron_tf.errors import UserError, nearest, warn
from macaron_tf.hub.tokenizers.reading import refuse_lower_case
from macaron_tf.io import paths
from macaron_tf.models import (
    ElmoConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    WordEncoderConfig,
    catalog,
)
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.objectives import AuxiliaryLanguageObjective, Objective
from macaron_tf.runs.recipe import MAY_CHANGE, Recipe, as_user_errors
from macaron_tf.runs.run import Inputs, Plan, Run, metrics_line
from macaron_tf.runs.starts import Start, read_start, start_of
from macaron_tf.runs.trainer import Trainer, warn_truncated
from macaron_tf.settings import Count, Dropout, NonNegative, ReadIf, Settings, hints_of
from macaron_tf.tasks import LabelledSettings, LabelledTask, Limits, SpanLimits, labelled
from macaron_tf.tasks.labelled import embeds_languages
from macaron_tf.tasks.sets import SetOutputs
from macaron_tf.text import PieceVocabulary, load_encoder_vocabulary
from macaron_tf.training import FitModel
from macaron_tf.training.checkpoints import CheckpointDirectory, read_manifest
from macaron_tf.training.config import EpochTraining, fine_tuning
from macaron_tf.training.locations import RECIPE
from macaron_tf.training.lora import add_low_rank_updates
from macaron_tf.training.session import Validate

TRAIN = "train"
_KINDS = ("encoder", "reader")  # models that can get the head of a task, see `starts.KINDS`
_FILES = "examples"  # folder of the examples in the folder of a run
NOTHING = "random weights"
# Numbers of updates, and the settings in epochs that determine them.
_COUNTS = {"max_steps": "epochs", "warmup_steps": "warmup_fraction"}
_COUNTS |= {"validate_every": "validate_epochs"}
CHANCE_MARGIN = 0.02  # a score that is better by no more than this is at chance level


class TaskData:
    """The training and development sets of a task, which are read only once.

    Attributes:
        table: settings of the user's own table, including columns and classes that were found in
            the data.
        task: the task with the columns and classes of `table`.
        labelled_task: object that encodes and scores examples of the task's type; see
            `macaron_tf.tasks.labelled`.
        splits: dict mapping "train" and the name of each development set to labelled examples.
    """

    def __init__(
        self,
        task: Task,
        source: str | None = None,
        tfds: Tfds | None = None,
        table: TableSettings | None = None,
    ):
        self.table = (table or TableSettings()).filled(task, source, tfds)
        self.task = self.table.described(task)
        self.labelled_task = labelled(self.task)
        self.splits = self.labelled_task.read_splits(
            (TRAIN, *task.validation_splits), tfds, source, self.table
        )

    @property
    def validation(self) -> dict[str, Any]:
        """The development sets, as a dict mapping split to examples."""
        return {split: examples for split, examples in self.splits.items() if split != TRAIN}

    def chance_level(self) -> float:
        """Returns the best score, on the first development set, of one answer to every example."""
        task, examples = self.labelled_task, next(iter(self.validation.values()))
        constants = task.constants(self.splits[TRAIN], examples)
        return max(task.score(constant, examples)["score"] for constant in constants)

    def encoded(self, vocabulary: PieceVocabulary, limits: Limits) -> dict[str, EncodedExamples]:
        """Returns each split's tokenized examples. Warns on stderr if texts may be truncated."""
        encoded = {
            split: self.labelled_task.encoded(vocabulary, examples, limits)
            for split, examples in self.splits.items()
        }
        if self.labelled_task.truncates:
            advice = "data.max_length, if the weights were trained on longer rows,"
            warn_truncated(encoded[TRAIN].rows.lengths, limits.max_length, advice)
        return encoded


@dataclasses.dataclass(frozen=True)
class ExampleData(Settings):
    """Settings of labelled examples and their batches.

    Attributes:
        source: source of the examples; see `macaron_tf.data.tasks.examples`. `None` means that
            neither the user nor the task names a source.
        batch_size: number of examples in a micro-batch or, if long texts are read in windows,
            number of windows.
        max_length: maximum number of tokens in a row, including special tokens.
    """

    section: ClassVar[str] = "data"

    source: str | None = None
    batch_size: Count = 32
    max_length: Count = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecipe(Recipe):
    """Recipe of an encoder, with the training length in epochs.

    Attributes:
        task: settings of the task. Its `name` is among those of
            `macaron_tf.data.tasks.definitions`.
    """

    # These settings may differ when a run is resumed, because the update counts that they
    # determine are compared instead.
    may_change = (
        *MAY_CHANGE,
        *(f"training.{name}" for name in _COUNTS.values()),
    )
    from_data = (*(f"training.{name}" for name in _COUNTS), "data.table.")
    training_flags = ("vocabulary", "lower_case")
    derived = ("task.name",)
    implied: ClassVar = {
        f"training.{count}": (f"training.{passes}", "None") for count, passes in _COUNTS.items()
    }
    start_settings = ("init", "model")
    lengths = ("data.max_length",)

    task: Any
    training: EpochTraining
    data: ExampleData

    def card(self) -> dict:
        return {**super().card(), "trained_length": self.data.max_length}

    def resolved(self, num_examples: int) -> "EpochRecipe":
        """Returns the recipe with update counts for a training set of `num_examples` examples."""
        training = self.training
        batches = -(-num_examples // self.data.batch_size)
        updates_per_epoch, max_steps = batches / training.accumulation_steps, training.max_steps
        if training.epochs is not None:
            max_steps = max(round(training.epochs * updates_per_epoch), 1)
        changes = {"max_steps": max_steps}
        if (fraction := training.warmup_fraction) is not None:
            changes["warmup_steps"] = min(round(fraction * max_steps), max_steps - 1)
        if (epochs := training.validate_epochs) is not None:
            changes["validate_every"] = min(max(round(epochs * updates_per_epoch), 1), max_steps)
        return self.changed(training=changes)

    def adapt(self, network: keras.Model) -> None:
        """Adds the low-rank updates, if any, to the pre-trained part of a network."""
        if rank := self.training.lora_rank:
            with as_user_errors("training.lora_rank"):
                add_low_rank_updates(network.encoder or network.encoder_decoder, rank)

    def read_start(self, inputs: Inputs, earlier: Run | None) -> Start:
        vocabulary, lower_case = inputs.vocabulary, inputs.lower_case
        if vocabulary and (self.init or earlier):
            raise UserError("the model already has a vocabulary: leave --vocabulary out")
        if self.init:
            return self.read_model(inputs)
        if earlier:
            return Start(NOTHING, earlier.vocabulary)
        if not vocabulary:
            advice = "or random weights by --set model=NAME and the --vocabulary of a corpus"
            raise UserError(f"--init is missing: give a model, such as hugging-face:DIR, {advice}")
        refuse_lower_case(lower_case, f"--vocabulary {vocabulary}")
        if self.model in catalog.names(ElmoConfig):
            raise UserError(f"model={self.model} needs pre-trained weights: give --init RUN")
        return Start(NOTHING, load_encoder_vocabulary(vocabulary))

    def read_model(self, inputs: Inputs) -> Start:
        """Loads the model of `init`."""
        return read_start(self.init, lower_case=inputs.lower_case, trust_code=inputs.trust_code)

    def plan_of_examples(
        self,
        run: Run,
        examples: EncodedExamples,
        validation: Callable[[keras.Model], Validate],
        start: Start,
        strategy: tf.distribute.Strategy,
        **fields,
    ) -> Plan:
        """Plans the training on tokenized examples; `fields` are further fields of the plan."""
        batches = example_batches(examples, self.data.batch_size, strategy)
        print(f"{self.task.name}: {batches.summary()}", flush=True)
        return Plan(
            run=run,
            batches=functools.partial(batches.dataset, self.training.seed),
            validation=validation,
            fingerprint=batches.fingerprint(),
            counts={"examples": len(batches)},
            initialize=start.copy_to,
            note=f", from {start.given}",
            **fields,
        )


def warn_start(
    init: Start, recipe: EpochRecipe, language: str | None = None, mend: str = ""
) -> None:
    """Warns on stderr about unset languages, and about rows that are longer than in pre-training.

    Args:
        language: language of the texts; `None` means the first language of the model, and causes a
            warning if the model has several languages.
        mend: format string for the end of the warning about languages. The field `{}` is replaced
            by the model's other languages.
    """
    if len(init.languages) > 1 and not language:
        first, *other_languages = init.languages
        warn(
            f"the model reads all texts as {first}, the first language of {init.given}"
            + mend.format(", ".join(other_languages))
        )
    if init.trained_length is not None and recipe.data.max_length > init.trained_length:
        warn(
            f"data.max_length is {recipe.data.max_length}, but {init.given} was trained on rows of "
            f"at most {init.trained_length} tokens: set data.max_length={init.trained_length}, or "
            "expect worse results on longer rows"
        )


def example_batches(
    encoded: EncodedExamples, batch_size: int, strategy: tf.distribute.Strategy
) -> ExampleBatches:
    """Makes batches whose rows are padded to one of at most 4 lengths.

    Several lengths keep the padding short. With a `TPUStrategy`, all batches have the same length,
    because the model is compiled for each length.
    """
    return ExampleBatches(encoded, batch_size, shapes=1 if is_tpu(strategy) else 4)


@dataclasses.dataclass(frozen=True)
class FinetuningTask(Settings):
    """Settings of a task on labelled examples, and of the head that it adds to an encoder.

    Attributes:
        name: name of the task; `macaron_tf.data.tasks.definitions` lists the tasks.
        head_dropout: dropout rate of the head's input, which is the pooled vector or the vectors of
            all positions. Question-answering heads have no dropout.
        language_weight: lambda, the weight of the auxiliary language-modeling loss when a causal
            model is fine-tuned for classification or multiple choice; see
            `AuxiliaryLanguageObjective`.
        words: settings of the network on top of ELMo's vectors.
    """

    section: ClassVar[str] = "task"

    name: str
    head_dropout: Dropout = 0.1
    language_weight: Annotated[NonNegative, ReadIf(lambda recipe: recipe.has_auxiliary_loss)] = 0.5
    words: Annotated[
        WordEncoderConfig, ReadIf(lambda recipe: isinstance(recipe.model_config(), ElmoConfig))
    ] = WordEncoderConfig()


@dataclasses.dataclass(frozen=True)
class LabelledData(ExampleData):
    """Settings of the examples of a task, also in the user's own table.

    Attributes:
        spans: lengths of questions, answers and window steps in extractive question answering.
        table: settings of the user's own table, such as its columns and classes, for a task that
            reads such a table.
        language: language of the texts in classification, for a model with several languages;
            `None` means the model's first language.
        languages: the model's languages, in the order of its language embeddings.
    """

    spans: Annotated[SpanLimits, ReadIf(lambda recipe: recipe.task_definition.kind == "spans")] = (
        SpanLimits()
    )
    table: TableSettings = TableSettings()
    language: Annotated[
        str | None,
        ReadIf(lambda recipe: "language" in labelled(recipe.task_definition).takes),
    ] = None
    languages: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningRecipe(EpochRecipe):
    """All settings of a fine-tuning run.

    An epoch counts examples, even if a long example is split into several rows, as in BERT's
    released code. In classification and multiple choice, texts longer than `data.max_length`
    are truncated. In question answering and tagging, long contexts and sentences are read in
    overlapping windows.
    """

    kind = "finetuning"
    evaluation_settings = ("data.language",)
    configs = (EncoderConfig, EncoderDecoderConfig, ElmoConfig)
    derived = ("task.name", "data.languages", "task.words.elmo", "task.words.max_characters")

    task: FinetuningTask
    data: LabelledData

    def check(self) -> None:
        data = self.data
        Limits(data.max_length, language=data.language, languages=data.languages)

    @functools.cached_property
    def task_definition(self) -> Task:
        """Definition of the task, with the columns and classes of `data.table`."""
        return self.data.table.described(get_task(self.task.name, own=True))

    def task_settings(self) -> LabelledSettings:
        return LabelledSettings(task=self.task_definition, limits=self.limits)

    def card(self) -> dict:
        return {**super().card(), "languages": self.data.languages}

    @property
    def limits(self) -> Limits:
        """Length and layout of the rows that the model reads."""
        config, data = self.model_config(), self.data
        layout = config.causal, data.language, data.languages, embeds_languages(config)
        return Limits(data.max_length, data.spans, *layout)

    @property
    def has_auxiliary_loss(self) -> bool:
        """Whether a language-modeling loss is added, as in GPT."""
        return self.model_config().causal and self.task_definition.kind in (
            "classification",
            "choice",
        )

    def make_objective(self, static_shapes: bool = False) -> Objective:
        definition = self.task_definition
        if self.has_auxiliary_loss:
            return AuxiliaryLanguageObjective(definition.num_classes, self.task.language_weight)
        return labelled(definition).objective

    def model_config(
        self, vocab_size: int | None = None
    ) -> EncoderConfig | EncoderDecoderConfig | ElmoConfig:
        config = super().model_config(vocab_size)
        if isinstance(config, ElmoConfig) and self.task_definition.kind == "choice":
            raise UserError(f"{self.task.name} has choices, which ELMo does not support")
        return config

    def started(self, start: Start) -> "FinetuningRecipe":
        return super().started(start).changed(data=dict(languages=start.languages))

    def sized_config(self, vocabulary: PieceVocabulary) -> Any:
        config = super().sized_config(vocabulary)
        if not isinstance(config, ElmoConfig):
            return config
        characters = config.max_characters
        return dataclasses.replace(self.task.words, elmo=config, max_characters=characters)

    def network(self, config: Any) -> keras.Model:
        policy = self.training.dtype_policy
        return labelled(self.task_definition).make_network(config, self.task.head_dropout, policy)

    def plan(self, run: Run, start: Start, inputs: Inputs) -> Plan:
        task = get_task(self.task.name, own=True)
        start.check(self.model_config(start.vocabulary.size))
        data = TaskData(task, self.data.source, inputs.tfds, self.data.table)
        if task.own:
            print(f"{self.data.source}: {data.task.summary()}", file=sys.stderr)
        # The recipe that the run saves has the columns, the classes and the update counts.
        recipe = self.changed(data=dict(table=data.table)).resolved(len(data.splits[TRAIN]))
        recipe.check_metric(("score", *data.task.metrics, *data.task.more_metrics, "loss"))
        mend = "; to classify texts in {} give --set data.language=CODE"
        warn_start(start, recipe, recipe.data.language, mend)
        vocabulary = start.vocabulary
        run = dataclasses.replace(run, recipe=recipe, vocabulary=vocabulary)
        encoded = data.encoded(vocabulary, recipe.limits)
        level, strategy = data.chance_level(), inputs.devices

        def validation(network: keras.Model):
            """Makes a function that returns the loss of the first development set, and metrics."""
            task = labelled(data.task, recipe.limits, network, vocabulary)
            outputs_of = SetOutputs(task, recipe.data.batch_size)
            sets = {
                split: example_batches(encoded[split], recipe.data.batch_size, strategy)
                for split in data.validation
            }

            def validate(model: FitModel, step: int) -> dict[str, float]:
                logits = {split: outputs_of.logits(rows) for split, rows in sets.items()}
                measured = {}
                for split, rows in sets.items():
                    outputs = task.outputs(logits[split], rows.encoded, data.splits[split])
                    measured[split] = task.measure(outputs, data.splits[split])
                first, rows = next(iter(sets.items()))
                batch = {
                    "token_ids": tf.ones((len(rows), 1), tf.int32),
                    "label": tf.constant(rows.labels(np.arange(len(rows)), rows.lengths[-1])),
                    "weight": tf.ones(len(rows)),
                }
                sums = task.objective.sums(tf.constant(logits[first]), batch, training=False)
                loss = float(sums["loss_sum"] / sums["weight"])
                return {"loss": loss, **by_split(measured)}

            return validate

        def ended() -> tuple[str, Sequence[str]]:
            metrics = best_metrics(run.path)
            best = "best validation scores at step {step:,}: " + metrics_line(metrics)
            if not metrics or metrics["score"] > level + CHANCE_MARGIN:
                return best, commands
            best += (
                f"\nat chance level: the same answer to every example has the score {level:.4f}, "
                f"and a score must be above {level + CHANCE_MARGIN:.4f} to count as learned; train "
                "another run with more training.epochs, another "
                "training.learning_rate, more examples or other weights (--init)"
            )
            return best, []

        commands = ["evaluate {run}{data}", "predict {run} --input FILE"]
        commands.append(f"export {{run}} served/{run.path.name}")
        return recipe.plan_of_examples(
            run,
            encoded[TRAIN],
            validation,
            start,
            strategy,
            ended=ended,
        )


def by_split(measured: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """Merges the metrics of several development sets into one dict, from metric to value.

    Metrics of the first split keep their names. For other splits, the name of the split becomes a
    prefix, as in "validation_mismatched_accuracy".
    """
    first = next(iter(measured))
    return {
        name if split == first else f"{split}_{name}": value
        for split, metrics in measured.items()
        for name, value in metrics.items()
    }


def load_labelled_task(run: Run, checkpoint: os.PathLike | str | None = None) -> LabelledTask:
    """Loads a checkpoint, by default that of `Run.checkpoint`, to make predictions."""
    checkpoint = run.checkpoint(checkpoint)
    metrics = read_manifest(checkpoint).get("metrics") or {}
    arguments = run.load_network(checkpoint), run.vocabulary, metrics
    return labelled(run.recipe.task_definition, run.recipe.limits, *arguments)


def best_metrics(path: epath.Path) -> dict[str, float]:
    """Returns the validation metrics of a run's best checkpoint.

    The dict is empty if there is none, for example because all scores were NaN.
    """
    directory = CheckpointDirectory(path)
    best = directory.best()
    return read_manifest(directory.of_step(best["step"]))["metrics"] if best else {}


def fit_examples(
    model: ModelParts,
    folder: epath.Path,
    training: tuple[Iterable[Any], Iterable[Any]],
    validation: tuple[Iterable[Any], Iterable[Any]] | None,
    task: str | None,
    learning_rate: float,
    seed: int,
    **settings: Any,
) -> None:
    """Fine-tunes a model on texts and labels, or resumes the run in `folder`.

    The examples are saved in FOLDER/examples, so that `macaron evaluate` finds them.

    Args:
        training, validation: texts and labels; see `Model.fit`. Without validation examples, a
            tenth of the training examples is held out.
        task: task on the user's own table; `None` means the task of the labels' type.
        settings: further settings of `FinetuningTask`, `LabelledData` or `EpochTraining`.
    """
    classes = {"task": FinetuningTask, "data": LabelledData, "training": EpochTraining}
    sections = {name: section for section, cls in classes.items() for name in hints_of(cls)}
    given: dict[str, dict[str, Any]] = {section: {} for section in classes}
    for name, value in sorted(settings.items()):
        if name not in sections:
            near = nearest(name, (*sections, "validation", "folder"))
            raise UserError(f"fit has no argument {name!r}{near}: see help(model.fit)")
        given[sections[name]][name] = value
    texts, labels = [*training[0]], [*training[1]]
    task = task or _task_of(texts, labels)
    sets = {"train": _records(task, texts, labels)}
    pattern = "train"
    if validation is not None:
        pattern, sets["validation"] = "{split}", _records(task, *map(list, validation))
    start = start_of(model.card.checkpoint or model.card.title, model, _KINDS)
    data = {"max_length": LabelledData.max_length, **given["data"]}
    data["max_length"] = min(data["max_length"], model.config.longest or data["max_length"])
    recipe = FinetuningRecipe(
        model=model.card.model,
        init=start.given,
        task=FinetuningTask(task, **given["task"]),
        data=LabelledData(f"jsonl:{folder / _FILES / pattern}.jsonl", **data),
        training=fine_tuning(learning_rate, seed=seed, best_metric="score", **given["training"]),
    )
    for name, records in sets.items():
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        file, content = folder / _FILES / f"{name}.jsonl", "\n".join([*lines, ""]).encode()
        if (folder / RECIPE).exists() and not (file.exists() and paths.read_bytes(file) == content):
            raise UserError(f"{folder} is a run on other examples: choose another folder")
        paths.write_atomic(file, content)
    trainer = Trainer(recipe, folder, start=start)
    result = trainer.run()
    if result.best_step is not None:  # it may be at chance level
        print(trainer.best.format(metric="score", score=result.best_score, step=result.best_step))


def _task_of(texts: list[Any], labels: list[Any]) -> str:
    if any(isinstance(label, float | np.floating) for label in labels):
        return "regress"
    if not any(isinstance(label, list | tuple | set | np.ndarray) for label in labels):
        return "classify"
    # Each word has a tag; a text, or a pair of texts, has any number of labels.
    return "tag" if isinstance(texts[0], list | np.ndarray) else "multilabel"


def _records(task: str, texts: list[Any], labels: list[Any]) -> list[dict[str, Any]]:
    """Returns records whose columns have the names that `TableSettings` looks for."""
    if not texts or len(texts) != len(labels):
        raise UserError(f"{len(texts)} texts have {len(labels)} labels: give each text a label")
    if task == "tag":
        columns = [{"tokens": [*words]} for words in texts]
        values: list[Any] = [[*map(str, tags)] for tags in labels]
    elif task == "choose":
        columns, values = texts, [*map(str, labels)]
    else:
        names = ("text", "text_b") if isinstance(texts[0], tuple | list) else ("text",)
        rows = zip(*columns_of(names, [texts])[0], strict=True)
        columns = [dict(zip(names, row, strict=True)) for row in rows]
        for number, label in enumerate(labels) if task == "regress" else ():
            if not isinstance(label, int | float | np.number):
                raise UserError(f"label {number} is {label!r}: give a number to each text")
        convert = {"regress": float, "multilabel": lambda names: sorted(map(str, names))}
        values = [*map(convert.get(task, str), labels)]
    return [{**row, "label": value} for row, value in zip(columns, values, strict=True)]
