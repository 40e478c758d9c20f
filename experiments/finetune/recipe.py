"""Every setting of a fine-tuning run."""

import dataclasses

from experiments.epochs import EpochRecipe
from experiments.finetune.kinds import Limits, SpanLimits, kind_of
from macaron_tf.data.tasks.definitions import Task, get_task
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningRecipe(EpochRecipe):
    """Every setting of a fine-tuning run.

    As in BERT's released code an epoch counts examples, where long ones may have several rows.
    Texts of a classification that are longer than `max_length` are cut; contexts and tagged
    sentences are read through windows.

    Attributes:
        task: name of a task, see `macaron_tf.data.tasks.definitions`.
        source: where its examples come from, see `read_examples`, `read_questions` and
            `read_tagged` of `macaron_tf.data`.
        init: where the weights come from, see `experiments.finetune.init.read_init`.
        head_dropout: on what is classified, the pooled vector or the positions'; spans have none.
        spans: how questions are read, see its class.
        language_weight: lambda of a causal model's own loss beside that of a classification, see
            `AuxiliaryLanguageObjective`.
    """

    kind = "finetuning"
    command = "python -m experiments.finetune"

    task: str
    source: str | None
    init: str = "none"
    head_dropout: float = 0.1
    spans: SpanLimits = SpanLimits()
    language_weight: float = 0.5

    def check(self) -> None:
        get_task(self.task)
        if not 0 <= self.head_dropout < 1:
            raise UserError(f"head_dropout is {self.head_dropout}: it must lie in [0, 1)")
        if not 0 <= self.language_weight < float("inf"):
            raise UserError(f"language_weight is {self.language_weight}: it must be 0 or more")
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
        return Limits(self.max_length, self.spans, self.model_config().causal)

    def usage(self) -> dict:
        return {**super().usage(), "trained_length": self.max_length}

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig:
        config = super().model_config(vocab_size)
        if self.described.second and config.num_segments == 1:
            raise UserError(
                f"{self.task} is about two texts: the model needs model.num_segments of 2 (or 0)"
            )
        return config
