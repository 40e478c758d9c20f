"""Recipe and run of a TCN or recurrent model on a task of Bai et al. 2018."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Annotated

import tensorflow as tf
from annotated_types import Ge

from macaron_tf.errors import UserError
from macaron_tf.models import TemporalConfig, TemporalModel
from macaron_tf.objectives import SequenceObjective
from macaron_tf.runs.recipe import MAY_CHANGE, Recipe, as_user_errors, override
from macaron_tf.runs.run import Inputs, Plan, Run
from macaron_tf.runs.sequences.data import TaskData
from macaron_tf.runs.sequences.tasks import TASKS
from macaron_tf.runs.trainer import evaluate_model
from macaron_tf.settings import INT32, Count, OneOf
from macaron_tf.training import TrainedModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceRecipe(Recipe):
    """Settings of a task, which define the TCN and the training of all compared models.

    Attributes:
        task: name of the task; a key of `TASKS`.
        batch_size: number of sequences in a micro-batch.
        recurrent: settings in which the recurrent models differ from the TCN, in the form of
            `--set`.
        sources: sources of the training documents of `wikitext` and `lambada`, which must fit in
            memory; see `macaron_tf.data.sources.readers.documents`.
        vocabulary_size: maximum number of words in the vocabulary of `wikitext` and `lambada`,
            including <UNK>, <S> and </S>.
        data: a .mat file with music for `jsb` and `nottingham`; a folder with train.txt, valid.txt
            and test.txt for `ptb_words` and `ptb_characters`, or with dev.txt and test.txt for
            `lambada`, which may be compressed (.txt.gz). The other tasks read no file.
        held_out: interval between held-out documents in `wikitext`. With 50, the first document and
            every 50th document after it are used for validation. `lambada` trains on all documents.
    """

    kind = "sequence"
    may_change = (*MAY_CHANGE, "data")

    task: Annotated[str, OneOf(tuple(TASKS))]
    batch_size: Count = 32
    recurrent: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    data: str | None = None
    vocabulary_size: Annotated[int, Ge(4), INT32] = 10_000
    held_out: Annotated[int, Ge(2), INT32] = 50

    def unread(self) -> list[str]:
        reads_documents = self.task in ("wikitext", "lambada")
        unread = [] if reads_documents else ["sources", "vocabulary_size", "held_out"]
        return [*super().unread(), *unread]

    def check(self) -> None:
        if self.data and not TASKS[self.task].takes_data:
            raise UserError(f"data={self.data} has no effect in {self.task}: leave data out")

    def model_config(self, vocab_size: int | None = None) -> TemporalConfig:
        config = self.catalog_config(**dict(self.model_options))
        self.expect_model(config, TemporalConfig)
        if vocab_size and config.vocab_size:
            config = dataclasses.replace(config, vocab_size=vocab_size, output_dim=vocab_size)
        return config

    def make_objective(self, static_shapes: bool = False) -> SequenceObjective:
        return SequenceObjective(TASKS[self.task].loss, skip_padding=not static_shapes)

    def of_mixer(
        self, mixer: str, settings: Iterable[str] = (), vocab_size: int | None = None
    ) -> "SequenceRecipe":
        """Returns the recipe for a model type: `"tcn"`, `"lstm"`, `"gru"` or `"rnn"`.

        The widths of a recurrent model are chosen so that its parameter count is close to the TCN's
        parameter count. The setting `model.widths` applies only to the TCN. `vocab_size` is `None`
        if the data are not token ids.
        """
        tcn = override(self, settings)
        if mixer == "tcn":
            return tcn
        with as_user_errors(f"{mixer} with as many parameters as the TCN"):
            widths = tcn.model_config(vocab_size).equal_sized(mixer).widths
        recipe = override(override(self, self.recurrent), settings)
        options = {**dict(recipe.model_options), "mixer": mixer, "widths": widths}
        return dataclasses.replace(recipe, model_options=tuple(sorted(options.items())))


@dataclasses.dataclass(frozen=True)
class SequenceRun(Run):
    """A training run of a TCN or recurrent model on a sequence task, finished or not.

    The folder of the run contains no vocabulary.

    Attributes:
        vocab_size: vocabulary size of the data; `None` if the data are not token ids.
    """

    recipe_class = SequenceRecipe
    vocabulary_class = None

    vocab_size: int | None = None

    def make_network(self) -> TemporalModel:
        return self.recipe.network(self.recipe.model_config(self.vocab_size))

    def plan(self, start: None, inputs: Inputs) -> Plan:
        self.recipe.check_metric([TASKS[self.recipe.task].metric])
        return self.plan_of(TASKS[self.recipe.task].read_data(self.recipe, inputs.tfds))

    def plan_of(self, data: TaskData) -> Plan:
        """Plans the training on the data of the task."""
        return Plan(
            run=dataclasses.replace(self, vocab_size=data.vocab_size),
            batches=data.train,
            validation=lambda network: lambda model, step: task_metrics(model, data.validation),
            fingerprint=data.fingerprint,
            note=f"; {data.summary}",
            next=("evaluate {run}{data}",),
        )


def task_metrics(model: TrainedModel, dataset: tf.data.Dataset) -> dict[str, float]:
    """Evaluates a model on a dataset, and returns the metrics.

    For a classification task, the metrics also include "bits", the loss in bits.
    """
    metrics = evaluate_model(model, dataset)
    if "perplexity" in metrics:
        metrics["bits"] = metrics["loss"] / math.log(2)
    return metrics
