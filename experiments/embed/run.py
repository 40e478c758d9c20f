"""Recipe and run of Sentence-BERT, and functions that open sentence encoders."""

import argparse
import dataclasses
from typing import Annotated, Literal

from annotated_types import Ge

from experiments.epochs import EpochRecipe, read_init
from experiments.run import Run
from macaron_tf.data.tasks.definitions import TASKS, Task, get_task
from macaron_tf.errors import UserError
from macaron_tf.loading import locate
from macaron_tf.models import EncoderConfig
from macaron_tf.models.tasks import SiameseEncoder, parse_concatenation
from macaron_tf.objectives import (
    CosineObjective,
    Objective,
    PairClassificationObjective,
    TripletObjective,
)
from macaron_tf.settings import INT32, Positive
from macaron_tf.starts import Start
from macaron_tf.tasks.vectors import Vectors
from macaron_tf.training.config import fine_tuning

# Task of choosing the text that is closer in meaning to the anchor; only `embed` has this task.
TRIPLETS = Task(
    "triplets",
    ("anchor",),
    ("positive", "negative"),
    labels=("positive", "negative"),
    kind="choice",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingRecipe(EpochRecipe):
    """Settings of a Sentence-BERT run.

    Attributes:
        task: name of a classification or regression task on sentence pairs, or `triplets`.
        objective: training objective, which is `softmax` for classes of sentence pairs, `cosine`
            for scores of sentence pairs, or `triplet`.
        pooling: pooling of the token vectors into a sentence vector, which is `mean`, `max` or
            `cls` (the vector of the first token).
        concatenation: features of the sentence vectors u and v that the softmax classifier reads.
            The value is a selection of `u`, `v`, `|u-v|` and `u*v`, separated by commas.
        normalize: whether to scale sentence vectors to norm 1, in training too.
        margin: margin of the triplet loss.
        max_length: maximum number of tokens in a sentence, including special tokens. Longer
            sentences are truncated.
    """

    kind = "embedding"
    command = "macaron embed"
    objective: Literal["softmax", "cosine", "triplet"]
    pooling: Literal["mean", "max", "cls"] = "mean"
    concatenation: str = "u,v,|u-v|"
    normalize: bool = False
    margin: Positive = 1.0
    max_length: Annotated[int, Ge(3), INT32] = 128  # [CLS], a token, [SEP]

    def check(self) -> None:
        expected = objective_of(self.task_definition)
        if self.objective != expected:
            raise UserError(f"the task {self.task} needs the objective {expected!r}")
        try:
            parse_concatenation(self.concatenation)
        except ValueError as error:
            raise UserError(str(error)) from error

    def network(self, config: EncoderConfig) -> SiameseEncoder:
        arguments = (self.pooling, self.normalize, self.num_classes, self.concatenation)
        return SiameseEncoder(config, *arguments, dtype=self.training.dtype_policy)

    def unread(self) -> list[str]:
        readers = {"concatenation": "softmax", "margin": "triplet"}
        unread = (name for name, objective in readers.items() if self.objective != objective)
        return [*super().unread(), *unread]

    @property
    def task_definition(self) -> Task:
        """Definition of the task."""
        return pair_task(self.task)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the validation metrics, without the loss."""
        if self.objective == "softmax":
            return ("score", *self.task_definition.metrics)
        return ("spearman", "pearson") if self.objective == "cosine" else ("accuracy",)

    @property
    def num_classes(self) -> int:
        """Number of classes of the softmax objective, or 0 for other objectives."""
        return self.task_definition.num_classes if self.objective == "softmax" else 0

    def usage(self) -> dict:
        return {
            **super().usage(),
            "max_length": self.max_length,
            "pooling": self.pooling,
            "normalize": self.normalize,
        }

    def make_objective(self, static_shapes: bool = False) -> Objective:
        if self.objective == "softmax":
            return PairClassificationObjective(self.num_classes)
        if self.objective == "cosine":
            return CosineObjective(*self.task_definition.score_range)
        return TripletObjective(self.margin)


def pair_task(name: str) -> Task:
    """Returns the task `name`, whose examples are sentence pairs or triplets."""
    if name == TRIPLETS.name:
        return TRIPLETS
    if not _is_of_pairs(get_task(name)):
        choices = ", ".join(task.name for task in TASKS.values() if _is_of_pairs(task))
        raise UserError(
            f"{name} is not a task with sentence pairs: choose one of {TRIPLETS.name}, {choices}"
        )
    return get_task(name)


def _is_of_pairs(task: Task) -> bool:
    # Excludes MultiRC, which scores all answers to a question together.
    return bool(task.second) and task.kind == "classification" and not task.grouped


def objective_of(task: Task) -> str:
    """Returns the objective for the type of labels that `task` has."""
    if task is TRIPLETS:
        return "triplet"
    return "cosine" if task.regression else "softmax"


def paper_recipe(name: str) -> EmbeddingRecipe:
    """Returns the recipe of Reimers and Gurevych 2019 (Sentence-BERT), sections 3.1 and 4.4.

    The paper uses Adam with a learning rate of 2e-5, a batch size of 16, a linear warm-up over 10%
    of the updates, mean pooling, and one epoch for classes or triplets. Three settings are not from
    the paper: STS-B takes four epochs, the learning rate decays linearly to 0 after the warm-up,
    and weight decay and epsilon are as in BERT's fine-tuning.

    Args:
        name: name of the task.
    """
    task = pair_task(name)
    objective = objective_of(task)
    best_metric = {"softmax": "score", "cosine": "spearman", "triplet": "accuracy"}[objective]
    return EmbeddingRecipe(
        model="bert_base",
        task=name,
        source=task.source,
        objective=objective,
        batch_size=16,
        epochs=4.0 if objective == "cosine" else 1.0,
        training=fine_tuning(2e-5, best_metric=best_metric),
    )


@dataclasses.dataclass(frozen=True)
class EmbeddingRun(Run):
    """A training run of a sentence encoder, finished or not."""

    recipe_class = EmbeddingRecipe


def read_start(
    location: str,
    model: str | None = None,
    vocabulary: str | None = None,
    lower_case: bool | None = None,
    trust_code: bool = False,
) -> Start:
    """Loads the encoder that `--init` names, or prepares a start from random weights.

    Args:
        location: value of `--init`. In addition to the values that `read_init` accepts, the value
            may name a sentence-transformers directory.
        model, vocabulary, lower_case, trust_code: see `read_init`.
    """
    init = read_init(location, model, vocabulary, lower_case, ("encoder",), True, trust_code)
    if init.config.summary == "last":
        raise UserError(
            f"{location} is an XLNet with [CLS] at the end of a sequence, but this command needs "
            "[CLS] at the start: give another encoder"
        )
    return init


def open_encoder(
    location: str,
    pooling: str | None = None,
    max_length: int | None = None,
    lower_case: bool | None = None,
    trust_code: bool = False,
) -> tuple[Vectors, EmbeddingRun | None]:
    """Opens a sentence encoder.

    Args:
        location: location of the encoder, as in `read_start`, but not `none`.
        pooling: type of pooling; `None` means the pooling that the encoder was trained with or, if
            this pooling is unknown, `"mean"`.
        max_length: maximum number of tokens in a sentence, including special tokens; `None` means
            the maximum length of the encoder.
        lower_case, trust_code: see `read_init`.

    Returns:
        The encoder and its run. The run is `None` if the encoder is not a run of `embed train`.
    """
    start, run = read_start(location, lower_case=lower_case, trust_code=trust_code), None
    source, config = start.source, start.config
    if isinstance(source.network, SiameseEncoder):
        located = locate(location)
        run = None if located.without_recipe else EmbeddingRun.open(located.folder, trust_code)
    if max_length is not None and config.longest is not None and config.longest < max_length:
        raise UserError(
            f"--max-length is {max_length}, but {location} has {config.longest} positions"
        )
    return Vectors.pooled(source, pooling, max_length), run


def encoder_of(options: argparse.Namespace) -> tuple[Vectors, EmbeddingRun | None]:
    """Opens the encoder that the options name, on the chosen devices; see `open_encoder`."""
    arguments = (options.encoder, options.pooling, options.max_length, options.lower_case)
    with options.devices.scope():
        return open_encoder(*arguments, options.trust_code)
