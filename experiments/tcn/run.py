"""Recipe and run of the TCN and of recurrent models on a task."""

import dataclasses
from collections.abc import Iterable
from typing import Annotated

from annotated_types import Ge

from experiments.recipe import Recipe, naming, override
from experiments.run import Run
from experiments.tcn.tasks import TASKS
from macaron_tf.models import TemporalConfig, TemporalModel
from macaron_tf.objectives import SequenceObjective
from macaron_tf.settings import INT32, Count, OneOf


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceRecipe(Recipe):
    """Every setting of a task: its TCN, and the training of the TCN and of the recurrent models.

    Attributes:
        task: one of `TASKS`.
        batch_size: sequences in a micro-batch.
        recurrent: settings in which the recurrent models differ from the TCN, in the form of
            `--set`.
        sources: for `wikitext` and `lambada`, the documents to learn from, which are held in
            memory; see `macaron_tf.data.sources.readers.documents`.
        vocabulary_size: for these tasks, number of words to predict, the most frequent ones.
        held_out: one of `held_out` documents is for the validation of `wikitext`; `lambada` learns
            from all.
    """

    kind = "sequence"
    command = "python -m experiments.tcn"

    task: Annotated[str, OneOf(tuple(TASKS))]
    batch_size: Count = 32
    recurrent: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    vocabulary_size: Annotated[int, Ge(4), INT32] = 10_000
    held_out: Annotated[int, Ge(2), INT32] = 50

    def check(self) -> None:
        of_documents = ("sources", "vocabulary_size", "held_out")
        given = [name for name in of_documents if getattr(self, name) != getattr(type(self), name)]
        if given and self.task not in ("wikitext", "lambada"):
            raise self.error(
                f"{given[0]} has an effect in wikitext and lambada only: leave it out of "
                f"{self.task}"
            )

    def model_config(self, vocab_size: int | None = None) -> TemporalConfig:
        config = self.catalog_config(**dict(self.model_options))
        self.expect_model(config, TemporalConfig, "is no model of sequences")
        if vocab_size and config.vocab_size:
            config = dataclasses.replace(config, vocab_size=vocab_size, output_dim=vocab_size)
        return config

    def make_objective(self, static_shapes: bool = False) -> SequenceObjective:
        return SequenceObjective(TASKS[self.task].loss, skip_padding=not static_shapes)

    def of_mixer(
        self, mixer: str, settings: Iterable[str] = (), vocab_size: int | None = None
    ) -> "SequenceRecipe":
        """The recipe of one of the compared models.

        Args:
            mixer: `"tcn"`, or a recurrent mixer, whose widths are chosen to give as many parameters
                as the TCN has.
            settings: settings to replace, as `path=value`; widths are those of the TCN.
            vocab_size: vocabulary size of the data, if they are ids.
        """
        tcn = override(self, settings)
        if mixer == "tcn":
            return tcn
        with naming(f"{mixer} with as many parameters as the TCN"):
            widths = tcn.model_config(vocab_size).equal_sized(mixer).widths
        recipe = override(override(self, self.recurrent), settings)
        options = {**dict(recipe.model_options), "mixer": mixer, "widths": widths}
        return dataclasses.replace(recipe, model_options=tuple(sorted(options.items())))


@dataclasses.dataclass(frozen=True)
class SequenceRun(Run):
    """A training on one of the tasks.

    It has no vocabulary; `vocab_size` is the number of symbols of the data, if they are ids.
    """

    recipe_class = SequenceRecipe
    vocabulary_class = None

    vocab_size: int | None = None

    def make_network(self) -> TemporalModel:
        return self.recipe.network(self.recipe.model_config(self.vocab_size))
