"""Sentence-BERT: recipe, data, and the function that opens a sentence encoder."""

import dataclasses
from typing import Annotated, ClassVar, Literal

import numpy as np
import tensorflow as tf

from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import Task, get_task
from macaron_tf.data.tasks.encoding import encode_sets
from macaron_tf.data.tasks.examples import Examples, read_triplets
from macaron_tf.errors import UserError
from macaron_tf.evaluation.similarity import similarity_metrics, triplet_accuracy
from macaron_tf.models import EncoderConfig
from macaron_tf.models.tasks import SiameseEncoder, parse_concatenation
from macaron_tf.objectives import (
    CosineObjective,
    Objective,
    PairClassificationObjective,
    TripletObjective,
)
from macaron_tf.runs.finetuning import EpochRecipe, ExampleData, warn_start
from macaron_tf.runs.recipe import as_user_errors
from macaron_tf.runs.run import Inputs, Plan, Run
from macaron_tf.runs.starts import Start, read_start
from macaron_tf.settings import Positive, ReadIf, Settings
from macaron_tf.tasks import labelled
from macaron_tf.tasks.embedding import SentenceEmbedding, SentenceSettings, warn_cut
from macaron_tf.training import FitModel

# Task of choosing the text that is closer in meaning to the anchor; only `embed` has this task.
TRIPLETS = Task(
    "triplets",
    ("anchor",),
    ("positive", "negative"),
    labels=("positive", "negative"),
    kind="choice",
)


@dataclasses.dataclass(frozen=True)
class EmbeddingTask(Settings):
    """Settings of sentence vectors, and of the task that they are trained on.

    Attributes:
        name: name of a classification or regression task on sentence pairs, or `triplets`.
        pooling: pooling of the token vectors into a sentence vector, which is `mean`, `max` or
            `cls` (the vector of the first token).
        concatenation: features of the sentence vectors u and v that the softmax classifier reads.
            The value is a selection of `u`, `v`, `|u-v|` and `u*v`, separated by commas.
        normalize: whether to scale sentence vectors to norm 1, in training too.
        margin: margin of the triplet loss.
    """

    section: ClassVar[str] = "task"

    name: str
    pooling: Literal["mean", "max", "cls"] = "mean"
    concatenation: Annotated[str, ReadIf(lambda recipe: recipe.objective == "softmax")] = (
        "u,v,|u-v|"
    )
    normalize: bool = False
    margin: Annotated[Positive, ReadIf(lambda recipe: recipe.objective == "triplet")] = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingRecipe(EpochRecipe):
    """Settings of a Sentence-BERT run.

    A sentence is a row, and is truncated to `data.max_length` tokens.
    """

    kind = "embedding"

    task: EmbeddingTask
    data: ExampleData

    def check(self) -> None:
        with as_user_errors("sentence vectors"):
            parse_concatenation(self.task.concatenation)

    def network(self, config: EncoderConfig) -> SiameseEncoder:
        task = self.task
        arguments = (task.pooling, task.normalize, self.num_classes, task.concatenation)
        return SiameseEncoder(config, *arguments, dtype=self.training.dtype_policy)

    @property
    def task_definition(self) -> Task:
        return pair_task(self.task.name)

    @property
    def objective(self) -> str:
        """Training objective: `triplet`, `cosine` for scores of pairs or `softmax` for classes."""
        if self.task_definition is TRIPLETS:
            return "triplet"
        return "cosine" if self.task_definition.regression else "softmax"

    @property
    def num_classes(self) -> int:
        """Number of classes of the softmax objective, or 0 for other objectives."""
        return self.task_definition.num_classes if self.objective == "softmax" else 0

    def task_settings(self) -> SentenceSettings:
        return SentenceSettings(self.task.pooling, self.task.normalize, self.data.max_length)

    def make_objective(self, static_shapes: bool = False) -> Objective:
        if self.objective == "softmax":
            return PairClassificationObjective(self.num_classes)
        if self.objective == "cosine":
            return CosineObjective(*self.task_definition.score_range)
        return TripletObjective(self.task.margin)

    def read_model(self, inputs: Inputs) -> Start:
        return read_encoder(self.init, inputs.lower_case, inputs.trust_code)

    def started(self, start: Start) -> "EmbeddingRecipe":
        """Returns the recipe with the pooling, normalization and length of the encoder `start`."""
        recipe, pretrained = super().started(start), start.source
        if not pretrained:
            return recipe
        settings = pretrained.settings
        if not isinstance(settings, SentenceSettings):
            return recipe.changed(task=dict(normalize=False))
        return recipe.changed(
            task=settings.options("pooling", "normalize"),
            data=dict(max_length=settings.max_length or recipe.data.max_length),
        )

    def plan(self, run: Run, start: Start, inputs: Inputs) -> Plan:
        task, vocabulary = self.task_definition, start.vocabulary
        start.check(self.model_config(vocabulary.size))
        names = {"softmax": ("score", *task.metrics), "cosine": ("spearman", "pearson")}
        self.check_metric((*names.get(self.objective, ("accuracy",)), "loss"))
        examples, held_out = (
            read_sets(task, split, self.data.source, inputs.tfds)
            for split in ("train", task.validation_splits[0])
        )
        recipe = self.resolved(len(examples))
        warn_start(start, recipe)
        run = dataclasses.replace(run, recipe=recipe, vocabulary=vocabulary)
        train_data, validation_data = (
            encode_sets(vocabulary, sets, recipe.data.max_length) for sets in (examples, held_out)
        )
        for sets in (train_data, validation_data):
            warn_cut(sets.rows, recipe.data.max_length)
        objective = recipe.make_objective()

        def validation(network: SiameseEncoder):
            encoder = SentenceEmbedding(network, vocabulary, recipe.data.max_length)

            def validate(model: FitModel, step: int) -> dict[str, float]:
                vectors, labels = encoder.encode_sets(validation_data), validation_data.labels
                targets = None if labels is None else tf.constant(labels)
                loss = objective.loss(network, tf.constant(vectors), targets)  # (N,)
                metrics = measure(task, network, vectors, labels)
                return {"loss": float(tf.reduce_mean(loss)), **metrics}

            return validate

        commands = "evaluate {run}{data}", "predict {run} --input FILE --output vectors.npy"
        commands += (f"export {{run}} served/{run.path.name}",)
        arguments = run, train_data, validation, start, inputs.devices
        return recipe.plan_of_examples(*arguments, next=commands)


def pair_task(name: str) -> Task:
    """Returns the task `name`, whose examples are sentence pairs or triplets."""
    task = TRIPLETS if name == TRIPLETS.name else get_task(name)
    # Excludes MultiRC, which scores all answers to a question together.
    if task is not TRIPLETS and (not task.second or task.kind != "classification" or task.grouped):
        raise UserError(f"{name} is not a task with sentence pairs: `macaron tasks` lists tasks")
    return task


def read_sets(
    task: Task, split: str, source: str | None = None, tfds: Tfds | None = None
) -> Examples:
    """Reads the examples of a task with two texts per example, or of `TRIPLETS`."""
    if task is not TRIPLETS:
        return labelled(task).read(split, tfds, source)
    if not source:
        raise UserError(f"the task {task.name} has no default source: set data.source=tsv:FILE")
    return read_triplets(source, split)


def measure(
    task: Task, network: SiameseEncoder, vectors: np.ndarray, labels: np.ndarray | None
) -> dict[str, float]:
    """Computes the metrics of sentence vectors on a task.

    The metrics are `spearman` and `pearson` for a regression task, `accuracy` for triplets, and the
    metrics of `task` for a classification task. The correlations and the triplet accuracy are NaN
    if a vector is not finite.

    Args:
        network: the encoder, whose classifier is used for a classification task.
        vectors: `(N, S, D)`, vectors of N examples with S sentences each.
        labels: `(N,)`, the scores or class indices; `None` for triplets.
    """
    if task is TRIPLETS:
        return {"accuracy": triplet_accuracy(*np.moveaxis(vectors, 1, 0))}  # (N, S, D) -> (S, N, D)
    if task.regression:
        return similarity_metrics(vectors[:, 0], vectors[:, 1], labels)
    logits = network.pair_logits(tf.constant(vectors[:, 0]), tf.constant(vectors[:, 1]))  # (N, C)
    return labelled(task).measure(tf.cast(logits, tf.float32).numpy(), Examples((), labels))


def read_encoder(location: str, lower_case: bool | None = None, trust_code: bool = False) -> Start:
    """Loads an encoder by `read_start`, also from a sentence-transformers folder."""
    init = read_start(location, ("encoder",), lower_case, trust_code)
    if init.config.summary == "last":
        raise UserError(f"{location} is an XLNet with [CLS] at the end: give another encoder")
    return init
