"""Recipe and run of Sentence-BERT, and loading of any encoder with pooling."""

import argparse
import dataclasses
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from experiments.epochs import EpochRecipe, read_init
from experiments.run import Run
from macaron_tf.data.tasks.definitions import TASKS, Task, get_task
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderConfig
from macaron_tf.models.tasks import SiameseEncoder, parse_concatenation
from macaron_tf.objectives import (
    CosineObjective,
    Objective,
    PairClassificationObjective,
    TripletObjective,
)
from macaron_tf.places import locate
from macaron_tf.settings import INT32, Positive
from macaron_tf.starts import Start
from macaron_tf.tasks.vectors import Vectors
from macaron_tf.training.config import fine_tuning

# The task to tell which text is nearer to the anchor; it is not a task of fine-tuning.
TRIPLETS = Task(
    "triplets",
    ("anchor",),
    ("positive", "negative"),
    labels=("positive", "negative"),
    kind="choice",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingRecipe(EpochRecipe):
    """Every setting of a run of Sentence-BERT; sentences longer than `max_length` are cut.

    Attributes:
        task: a task of two texts, see `macaron_tf.data.tasks.definitions`, or "triplets".
        objective: "softmax" over a pair's classes, "cosine" compared with its score, or "triplet".
        pooling: how a sentence's vector is made from those of its tokens.
        concatenation: terms of two vectors that the softmax reads, see `SiameseEncoder`.
        normalize: whether vectors are scaled to length 1, also for the objective.
        margin: margin of the triplet objective.
    """

    kind = "embedding"
    command = "python -m experiments.embed"
    by_argument: ClassVar = {**EpochRecipe.by_argument, "objective": "--objective"}

    objective: Literal["softmax", "cosine", "triplet"]
    pooling: Literal["mean", "max", "cls"] = "mean"
    concatenation: str = "u,v,|u-v|"
    normalize: bool = False
    margin: Positive = 1.0
    max_length: Annotated[int, Ge(3), INT32] = 128  # [CLS], a token, [SEP]

    def check(self) -> None:
        fitting = default_objective(self.described)
        if self.objective != fitting:
            raise UserError(
                f"objective is {self.objective!r}, but {self.task} needs {fitting!r}: leave "
                "--objective out"
            )
        try:
            parse_concatenation(self.concatenation)
        except ValueError as error:
            raise UserError(str(error)) from error

    def network(self, config: EncoderConfig) -> SiameseEncoder:
        own = (self.pooling, self.normalize, self.num_classes, self.concatenation)
        return SiameseEncoder(config, *own, dtype=self.training.dtype_policy)

    def unread(self) -> dict[str, str]:
        readers = {"concatenation": "softmax", "margin": "triplet"}
        others = {n: f"objective {kind!r}" for n, kind in readers.items() if self.objective != kind}
        return super().unread() | others

    @property
    def described(self) -> Task:
        """The task that `task` names."""
        return pair_task(self.task)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of a validation's metrics, without the loss."""
        if self.objective == "softmax":
            return ("score", *self.described.metrics)
        return ("spearman", "pearson") if self.objective == "cosine" else ("accuracy",)

    @property
    def num_classes(self) -> int:
        """The number of classes of the softmax; 0 for other objectives."""
        return self.described.num_classes if self.objective == "softmax" else 0

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
            return CosineObjective(*self.described.score_range)
        return TripletObjective(self.margin)


def pair_task(name: str) -> Task:
    """`TRIPLETS`, or the task `name`; raises unless it has pairs of texts with a class or score."""
    if name == TRIPLETS.name:
        return TRIPLETS
    if not _is_of_pairs(get_task(name)):
        known = ", ".join(task.name for task in TASKS.values() if _is_of_pairs(task))
        raise UserError(
            f"{name} is not about pairs of texts: give {TRIPLETS.name}, or one of {known}"
        )
    return get_task(name)


def _is_of_pairs(task: Task) -> bool:
    # Without MultiRC, whose answers are scored together by question.
    return bool(task.second) and task.kind == "classification" and not task.grouped


def default_objective(task: Task) -> str:
    """The objective that fits a task's labels."""
    if task is TRIPLETS:
        return "triplet"
    return "cosine" if task.regression else "softmax"


def paper_recipe(name: str, objective: str | None = None) -> EmbeddingRecipe:
    """The settings of Reimers and Gurevych 2019, sections 3.1 and 4.4.

    Adam at 2e-5, batches of 16, 10% linear warm-up, one epoch for classes or triplets, mean
    pooling. Not from the paper: four epochs for STS-B, a linear decay to 0 after the warm-up, and
    the weight decay and epsilon of BERT's fine-tuning.
    """
    task = pair_task(name)
    fitting = default_objective(task)
    best = {"softmax": "score", "cosine": "spearman", "triplet": "accuracy"}
    return EmbeddingRecipe(
        model="bert_base",
        task=name,
        source=task.source,
        objective=objective or fitting,
        batch_size=16,
        epochs=4.0 if fitting == "cosine" else 1.0,
        training=fine_tuning(2e-5, best_metric=best[fitting]),
    )


@dataclasses.dataclass(frozen=True)
class EmbeddingRun(Run):
    """A finished or running training of a sentence encoder."""

    recipe_class = EmbeddingRecipe


def read_start(
    given: str,
    model: str | None = None,
    vocabulary: str | None = None,
    lower_case: bool | None = None,
) -> Start:
    """Reads `--init` as `read_init` does; it may also name a sentence-transformers directory."""
    init = read_init(given, model, vocabulary, lower_case, ("encoder",), pooling=True)
    if init.config.summary == "last":
        raise UserError(
            f"{given} is an XLNet whose rows end with [CLS], but rows of sentences begin with it: "
            "give another encoder, or a run of xlnet_tiny or xlnet_base"
        )
    return init


def open_encoder(
    given: str,
    pooling: str | None = None,
    max_length: int | None = None,
    lower_case: bool | None = None,
) -> tuple[Vectors, EmbeddingRun | None]:
    """Opens a sentence encoder, and its run if it is one of `embed train`.

    Args:
        given: place of the encoder, as for `read_start`, but not `none`.
        pooling: pooling to use; None: the encoder's, or `"mean"` if it has none.
        max_length: most tokens of a sentence; None: the encoder's.
        lower_case: see `read_init`.
    """
    start, run = read_start(given, lower_case=lower_case), None
    source, config = start.source, start.config
    if isinstance(source.network, SiameseEncoder):
        location = locate(given)
        run = None if location.without_recipe else EmbeddingRun.open(location.folder)
    if max_length is not None and config.longest is not None and config.longest < max_length:
        raise UserError(
            f"--max-length is {max_length}, but {given} has {config.longest} positions: give "
            f"{config.longest} or less"
        )
    return Vectors.pooled(source, pooling, max_length), run


def encoder_of(options: argparse.Namespace) -> tuple[Vectors, EmbeddingRun | None]:
    """Opens the encoder of a command's options, on its devices; see `open_encoder`."""
    given = (options.encoder, options.pooling, options.max_length, options.lower_case)
    with options.devices.scope():
        return open_encoder(*given)
