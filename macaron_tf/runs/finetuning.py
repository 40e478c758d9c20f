"""Fine-tuning on labelled examples: data (`TaskData`), recipe (`FinetuningRecipe`) and `fit`."""

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from macaron_tf.data.batches import EncodedExamples
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import Task, get_task
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.distribution import Workers
from macaron_tf.engines.graph import columns_of
from macaron_tf.errors import UserError
from macaron_tf.io import paths
from macaron_tf.models import ElmoConfig, EncoderConfig, EncoderDecoderConfig, WordEncoderConfig
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.objectives import Objective
from macaron_tf.runs.epochs import EpochRecipe, example_batches, warn_start
from macaron_tf.runs.recipe import as_user_errors
from macaron_tf.runs.run import RESULT, Inputs, Plan, Run, metrics_line, write_json
from macaron_tf.runs.starts import Start, start_of
from macaron_tf.runs.trainer import Trainer, warn_truncated
from macaron_tf.settings import Dropout, Natural, NonNegative
from macaron_tf.tasks import LabelledSettings, LabelledTask, Limits, SpanLimits, labelled
from macaron_tf.tasks.labelled import embeds_languages
from macaron_tf.tasks.sets import SetOutputs
from macaron_tf.text import MosesPairVocabulary, PieceVocabulary
from macaron_tf.training import FitModel, TrainingResult
from macaron_tf.training.checkpoints import CheckpointDirectory, read_manifest
from macaron_tf.training.config import fine_tuning
from macaron_tf.training.locations import RECIPE
from macaron_tf.training.lora import add_low_rank_updates

TRAIN = "train"
_KINDS = ("encoder", "reader")  # models that can get the head of a task, see `starts.KINDS`
_FILES = "examples"  # folder of the examples in the folder of a run
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
            advice = "max_length, if the weights were trained on longer rows,"
            warn_truncated(encoded[TRAIN].rows.lengths, limits.max_length, advice)
        return encoded


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
        lora_rank: rank of trained updates of the projections to attention heads, while the
            pre-trained weights stay as they are (LoRA); 0 means that all weights are trained. See
            `add_low_rank_updates`.
    """

    kind = "finetuning"
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
    lora_rank: Natural = 0

    def check(self) -> None:
        self.table.check_task(get_task(self.task, own=True))
        min_length = labelled(self.task_definition).min_length(self.spans)
        if self.max_length < min_length:
            found = f"max_length is {self.max_length}"
            raise UserError(f"{found}, but {self.task} needs at least {min_length}")
        if self.language and "language" not in labelled(self.task_definition).takes:
            found = f"language={self.language!r} applies only to classification tasks"
            raise UserError(f"{found}, not {self.task}")
        Limits(self.max_length, language=self.language, languages=self.languages)

    @functools.cached_property
    def task_definition(self) -> Task:
        """Definition of the task, with the columns and classes of `table`."""
        return self.table.described(get_task(self.task, own=True))

    def task_settings(self) -> LabelledSettings:
        return LabelledSettings(task=self.task_definition, limits=self.limits)

    def card(self) -> dict:
        return {**super().card(), "languages": self.languages}

    @property
    def limits(self) -> Limits:
        """Length and layout of the rows that the model reads."""
        config, languages = self.model_config(), (self.language, self.languages)
        layout = config.causal, *languages, embeds_languages(config)
        return Limits(self.max_length, self.spans, *layout)

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
            raise UserError(f"{self.task} has choices, which ELMo does not support: give another")
        return config

    def started(self, start: Start) -> "FinetuningRecipe":
        return super().started(start).changed(languages=start.languages)

    def sized_config(self, vocabulary: PieceVocabulary) -> Any:
        config = super().sized_config(vocabulary)
        if not isinstance(config, ElmoConfig):
            return config
        characters = config.max_characters
        return dataclasses.replace(self.words, elmo=config, max_characters=characters)

    def network(self, config: Any) -> keras.Model:
        policy = self.training.dtype_policy
        return labelled(self.task_definition).make_network(config, self.head_dropout, policy)

    def adapt(self, network: keras.Model) -> None:
        """Adds the low-rank updates, if any, to the pre-trained part of a network."""
        if self.lora_rank:
            with as_user_errors("lora_rank"):
                add_low_rank_updates(network.encoder or network.encoder_decoder, self.lora_rank)

    def plan(self, run: Run, start: Start, inputs: Inputs) -> Plan:
        task = get_task(self.task, own=True)
        start.check(self.model_config(start.vocabulary.size))
        self.check_metric(("score", *task.metrics, *task.more_metrics, "loss"))
        data = TaskData(task, self.source, inputs.tfds, self.table)
        if task.own:
            print(f"{self.source}: {data.task.summary()}", file=sys.stderr)
        # The recipe that the run saves has the columns, the classes and the update counts.
        recipe = self.changed(table=data.table).resolved(len(data.splits[TRAIN]))
        recipe.check_metric(("score", *data.task.metrics, *data.task.more_metrics, "loss"))
        mend = "; to classify texts in {} give --set language=CODE"
        warn_start(start, recipe, recipe.language, mend)
        vocabulary = start.vocabulary
        # Raises for a run of other settings before tokenization, which takes minutes.
        run = dataclasses.replace(run, recipe=recipe, vocabulary=vocabulary)
        run.check_continues()
        encoded = data.encoded(vocabulary, recipe.limits)
        level, strategy = data.chance_level(), inputs.devices

        def validation(network: keras.Model):
            """Makes a function that returns the loss of the first development set, and metrics."""
            task = labelled(data.task, recipe.limits, network, vocabulary)
            outputs_of = SetOutputs(task, recipe.batch_size)
            sets = {
                split: example_batches(encoded[split], recipe.batch_size, strategy)
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

        def ended(result: TrainingResult | None) -> tuple[str, Sequence[str]]:
            record = result_of(run.path, result)
            if Workers(strategy).chief:
                write_json(run.path / RESULT, record)
            metrics = record["metrics"]
            best = "best validation scores at step {step:,}: " + metrics_line(metrics)
            if not metrics or metrics["score"] > level + CHANCE_MARGIN:
                return best, commands
            best += (
                f"\nat chance level: the same answer to every example has the score {level:.4f}; "
                "train another run with more epochs or training.max_steps, another "
                "training.learning_rate, more examples or other weights (--init)"
            )
            return best, []

        commands = ["evaluate {run}{data}", "predict {run} --input FILE"]
        if task.submissions:
            commands.append("submit {run} OUT{data}")
        if not isinstance(vocabulary, MosesPairVocabulary):
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


def result_of(path: epath.Path, trained: TrainingResult | None) -> dict[str, Any]:
    """Returns the contents of result.json in the folder `path` of a run.

    The keys are `reason` (why the run ended, such as "max_steps"), `step` (number of updates),
    `best_step`, `best_score` and `metrics` (of the best checkpoint; `None` or empty if there is
    none, for example because all scores were NaN) and `seconds`. If training diverged, `trained` is
    `None`, and so are `step` and `seconds`.
    """
    directory = CheckpointDirectory(path)
    best = directory.best() or {}
    return {
        "reason": trained.reason if trained else "diverged",
        "step": trained and trained.step,
        "best_step": best.get("step"),
        "best_score": best.get("score"),
        "metrics": read_manifest(directory.of_step(best["step"]))["metrics"] if best else {},
        "seconds": trained and round(trained.elapsed_seconds, 1),
    }


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
        training, validation: texts and labels; see `Pretrained.fit`. Without validation examples, a
            tenth of the training examples is held out.
        task: task on the user's own table; `None` means the task of the labels' type.
        settings: further settings of `FinetuningRecipe`.
    """
    texts, labels = [*training[0]], [*training[1]]
    task = task or _task_of(texts, labels)
    sets = {"train": _records(task, texts, labels)}
    pattern = "train"
    if validation is not None:
        pattern, sets["validation"] = "{split}", _records(task, *map(list, validation))
    start = start_of(model.card.checkpoint or model.card.title, model, _KINDS)
    longest = model.config.longest
    max_length = settings.pop("max_length", FinetuningRecipe.max_length)
    recipe = FinetuningRecipe(
        model=model.card.model,
        init=start.given,
        task=task,
        source=f"jsonl:{folder / _FILES / pattern}.jsonl",
        max_length=min(max_length, longest or max_length),
        training=fine_tuning(learning_rate, seed=seed, best_metric="score"),
        **settings,
    )
    for name, records in sets.items():
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        file, content = folder / _FILES / f"{name}.jsonl", "\n".join([*lines, ""]).encode()
        if (folder / RECIPE).exists() and not (file.exists() and paths.read_bytes(file) == content):
            raise UserError(f"{folder} is a run on other examples: choose another folder")
        paths.write_atomic(file, content)
    Trainer(recipe, folder, start=start).run()


def _task_of(texts: list[Any], labels: list[Any]) -> str:
    if labels and all(isinstance(label, float | np.floating) for label in labels):
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
        convert = {"regress": float, "multilabel": lambda names: sorted(map(str, names))}
        values = [*map(convert.get(task, str), labels)]
    return [{**row, "label": value} for row, value in zip(columns, values, strict=True)]
