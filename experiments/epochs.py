"""Recipes of encoders that are trained on examples, so many times each."""

import dataclasses
import typing
from typing import Annotated

from annotated_types import Gt, Lt

from experiments.recipe import MAY_CHANGE, Recipe
from macaron_tf.models import EncoderConfig
from macaron_tf.settings import Count, Dropout


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecipe(Recipe):
    """A recipe of an encoder that counts in passes over its training set.

    What is given in epochs or fractions follows from the number of training examples; a run's
    recipe.json holds the updates they came to as well, in `training`. Setting one of
    `training.max_steps`, `training.warmup_steps` and `training.validate_every` by hand turns its
    counterpart off.

    Attributes:
        batch_size: examples of a micro-batch.
        epochs: passes over the training set; None = `training.max_steps` says.
        warmup_fraction: part of the updates that is warm-up; None = `training.warmup_steps` says.
        validate_epochs: passes between validations; None = `training.validate_every` says.
        max_length: greatest length of a row, special ids included.
    """

    # Settings that may differ in a run that goes on: what they come to in updates is compared.
    may_change: typing.ClassVar[tuple[str, ...]] = (
        *MAY_CHANGE,
        "epochs",
        "warmup_fraction",
        "validate_epochs",
    )

    batch_size: Count = 32
    epochs: Annotated[float, Gt(0), Lt(1e6)] | None = 3.0
    warmup_fraction: Dropout | None = 0.1
    validate_epochs: Annotated[float, Gt(0), Lt(1e6)] | None = 1.0
    max_length: Count = 128

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig:
        config = super().model_config(vocab_size)
        self.expect_model(config, EncoderConfig, "is no encoder")
        self.expect_positions(config, "max_length", self.max_length)
        return config

    def follow(self, path: str) -> "EpochRecipe":
        """A number of updates that is set by hand is not computed any more."""
        computed = {
            "training.max_steps": "epochs",
            "training.warmup_steps": "warmup_fraction",
            "training.validate_every": "validate_epochs",
        }
        return dataclasses.replace(self, **{computed[path]: None}) if path in computed else self

    def resolved(self, examples: int) -> "EpochRecipe":
        """The recipe with its numbers of updates for a training set.

        Args:
            examples: of the training set.
        """
        training = self.training
        updates = -(-examples // self.batch_size) / training.accumulation_steps  # of an epoch
        changes = {"max_steps": training.max_steps}
        if self.epochs is not None:
            changes["max_steps"] = max(round(self.epochs * updates), 1)
        last = changes["max_steps"]
        if self.warmup_fraction is not None:
            changes["warmup_steps"] = min(round(self.warmup_fraction * last), last - 1)
        if self.validate_epochs is not None:
            changes["validate_every"] = min(max(round(self.validate_epochs * updates), 1), last)
        return dataclasses.replace(self, training=dataclasses.replace(training, **changes))
