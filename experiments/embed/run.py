"""Sentence encoders: a run of Sentence-BERT, or any other encoder whose vectors are pooled."""

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

# Which text is near the anchor; not a task of fine-tuning.
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
        objective: over a pair's classes, against its score, or of triplets.
        pooling: makes one vector of the tokens' vectors.
        concatenation: what the softmax sees of two vectors, see `SiameseEncoder`.
        normalize: whether the vectors are of length 1 before the objective sees them.
        margin: of the triplet objective.
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
                f"objective is {self.objective!r}, but {self.task} is learnt by {fitting!r}: "
                "softmax wants classes of pairs, cosine scores of pairs, triplet triplets"
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
        """The metrics of a validation, but for its loss."""
        if self.objective == "softmax":
            return ("score", *self.described.metrics)
        return ("spearman", "pearson") if self.objective == "cosine" else ("accuracy",)

    @property
    def num_classes(self) -> int:
        """Classes of the softmax; 0 for the other objectives."""
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
    """`TRIPLETS`, or a task whose examples are two texts and a class or score of the two."""
    if name == TRIPLETS.name:
        return TRIPLETS
    if not _is_of_pairs(get_task(name)):
        known = ", ".join(task.name for task in TASKS.values() if _is_of_pairs(task))
        raise UserError(
            f"{name} is not about pairs of texts: give {TRIPLETS.name}, or one of {known}"
        )
    return get_task(name)


def _is_of_pairs(task: Task) -> bool:
    # The answers of MultiRC are judged together, by question.
    return bool(task.second) and task.kind == "classification" and not task.grouped


def default_objective(task: Task) -> str:
    """The objective that a task's labels allow."""
    if task is TRIPLETS:
        return "triplet"
    return "cosine" if task.regression else "softmax"


def paper_recipe(name: str, objective: str | None = None) -> EmbeddingRecipe:
    """The settings of Reimers and Gurevych 2019, sections 3.1 and 4.4.

    Adam at 2e-5, batches of 16, 10% linear warm-up, one epoch over classes or triplets, mean
    pooling. Chosen here: four epochs over STS-B, linearly to 0 after the warm-up; weight decay and
    epsilon are BERT's fine-tuning's.
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
    """Reads `--init`, see `read_init`; it may name a sentence-transformers directory, too."""
    init = read_init(given, model, vocabulary, lower_case, ("encoder",), pooling=True)
    if init.config.summary == "last":
        raise UserError(
            f"{given} is an XLNet whose rows end with [CLS], and a sentence's begin with it here: "
            "give another encoder, or a run of xlnet_tiny or xlnet_base"
        )
    return init


def open_encoder(
    given: str,
    pooling: str | None = None,
    max_length: int | None = None,
    lower_case: bool | None = None,
) -> tuple[Vectors, EmbeddingRun | None]:
    """A sentence encoder that is ready to use, and its run, where it is one of this kind.

    Args:
        given: as for `read_start`, but for `none`.
        pooling: instead of its own; `"mean"` for one that never pooled.
        max_length: instead of its own.
        lower_case: as for `read_init`.
    """
    start, run = read_start(given, lower_case=lower_case), None
    source, config = start.source, start.config
    if isinstance(source.network, SiameseEncoder):
        location = locate(given)
        run = None if location.without_recipe else EmbeddingRun.open(location.folder)
    if max_length is not None and config.longest is not None and config.longest < max_length:
        raise UserError(
            f"--max-length {max_length}: {given} has {config.longest} positions: give as many or "
            "less"
        )
    return Vectors.pooled(source, pooling, max_length), run


def encoder_of(options: argparse.Namespace) -> tuple[Vectors, EmbeddingRun | None]:
    """`open_encoder` of a command's options, on its devices."""
    given = (options.encoder, options.pooling, options.max_length, options.lower_case)
    with options.devices.scope():
        return open_encoder(*given)
