"""Every setting of a fine-tuning run."""

import dataclasses

from experiments.finetuning.kinds import Limits, SpanLimits, kind_of
from experiments.recipe import Recipe
from macaron_tf.data.tasks import Task, get_task
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderConfig, catalog


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningRecipe(Recipe):
    """Every setting of a fine-tuning run.

    What is given in epochs or fractions follows from the number of training examples; a run's
    recipe.json holds the updates they came to as well, in `training`. Setting one of
    `training.max_steps`, `training.warmup_steps` and `training.validate_every` by hand turns its
    counterpart off.

    Attributes: those of `Recipe`, and
        task: name of a task, see `macaron_tf.data.tasks`.
        source: where its examples come from, see `read_examples`, `read_questions` and
            `read_tagged` of `macaron_tf.data`.
        init: where the weights come from, see `experiments.finetuning.init.read_init`.
        batch_size: examples of a micro-batch.
        epochs: passes over the training set; None = `training.max_steps` says. As in BERT's
            released code it counts examples, where long ones may have several rows.
        warmup_fraction: part of the updates that is warm-up; None = `training.warmup_steps` says.
        validate_epochs: passes between validations; None = `training.validate_every` says.
        max_length: greatest length of a row, special ids included. Longer texts of a
            classification are cut; contexts and tagged sentences are read through windows.
        head_dropout: on what is classified, the pooled vector or the positions'; spans have none.
        spans: how questions are read, see its class.
    """

    kind = "finetuning"
    command = "python -m experiments.finetune"

    task: str
    source: str
    init: str = "none"
    batch_size: int = 32
    epochs: float | None = 3.0
    warmup_fraction: float | None = 0.1
    validate_epochs: float | None = 1.0
    max_length: int = 128
    head_dropout: float = 0.1
    spans: SpanLimits = SpanLimits()

    def __post_init__(self):
        get_task(self.task)
        if self.batch_size < 1:
            raise UserError(f"batch_size is {self.batch_size}: it must be 1 or more")
        for name in ("epochs", "validate_epochs"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e6:
                raise UserError(f"{name} is {value}: it must be above 0, or None")
        if self.warmup_fraction is not None and not 0 <= self.warmup_fraction < 1:
            raise UserError(
                f"warmup_fraction is {self.warmup_fraction}: it must lie in [0, 1), or be None"
            )
        if not 0 <= self.head_dropout < 1:
            raise UserError(f"head_dropout is {self.head_dropout}: it must lie in [0, 1)")
        least = kind_of(self.described).least_length(self.spans)
        if self.max_length < least:
            raise UserError(
                f"max_length is {self.max_length}: a row of {self.task} needs {least} or more"
            )

    @property
    def described(self) -> Task:
        """The task that `task` names."""
        return get_task(self.task)

    @property
    def limits(self) -> Limits:
        """What of a text reaches the model."""
        return Limits(self.max_length, self.spans)

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig:
        config = super().model_config(vocab_size)
        if not isinstance(config, EncoderConfig):
            known = ", ".join(catalog.names(EncoderConfig))
            raise UserError(f"model: {self.model} is no encoder; there are {known}")
        if config.positions == "learned" and config.max_length < self.max_length:
            raise UserError(
                f"max_length is {self.max_length}, but the model has {config.max_length} "
                f"positions: set max_length={config.max_length} or less"
            )
        if self.described.second and config.num_segments == 1:
            raise UserError(
                f"{self.task} is about two texts: the model needs model.num_segments of 2 (or 0)"
            )
        return config

    def follow(self, path: str) -> "FinetuningRecipe":
        """A number of updates that is set by hand is not computed any more."""
        computed = {
            "training.max_steps": "epochs",
            "training.warmup_steps": "warmup_fraction",
            "training.validate_every": "validate_epochs",
        }
        return dataclasses.replace(self, **{computed[path]: None}) if path in computed else self

    def resolved(self, examples: int) -> "FinetuningRecipe":
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
