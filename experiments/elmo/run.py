"""Recipe and run of ELMo."""

import dataclasses
from typing import Annotated

from annotated_types import Ge

from experiments.recipe import Recipe
from experiments.run import Run
from macaron_tf.models import Elmo, ElmoConfig
from macaron_tf.objectives import BidirectionalLanguageObjective
from macaron_tf.settings import Count, Natural
from macaron_tf.text.words import WordVocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class ElmoRecipe(Recipe):
    """A bidirectional language model over whole words, and its training text.

    Attributes:
        sources: see `macaron_tf.data.sources.readers.documents`; held in memory.
        vocabulary_size: predicted words, the most frequent ones.
        row_length: words a row L, each sentence between two marks.
        batch_size: rows of a micro-batch.
        held_out: one in so many documents is for validation.
        samples: negative words of the sampled softmax in training; 0 = the full softmax, see
            `BidirectionalLanguageObjective`.
    """

    kind = "elmo"
    command = "python -m experiments.elmo"
    steps = ("train {name} runs/{name} --data-dir DIR",)

    sources: tuple[str, ...]
    vocabulary_size: Annotated[int, Ge(4)] = 8_000
    row_length: Annotated[int, Ge(2)] = 32
    batch_size: Count = 32
    held_out: Annotated[int, Ge(2)] = 50
    samples: Natural = 0

    def check(self) -> None:
        if not self.sources:
            raise self.error("sources=() must be one text or several")

    def model_config(self, vocab_size: int | None = None) -> ElmoConfig:
        config = super().model_config(vocab_size)
        self.expect_model(config, ElmoConfig, "is no ELMo")
        return config

    def make_objective(self, static_shapes: bool = False) -> BidirectionalLanguageObjective:
        return BidirectionalLanguageObjective(self.samples)


@dataclasses.dataclass(frozen=True)
class ElmoRun(Run):
    """A finished or running training of ELMo."""

    recipe_class = ElmoRecipe
    vocabulary_class = WordVocabulary

    def make_network(self) -> Elmo:
        config = self.recipe.model_config(self.vocabulary.size)
        return Elmo(config, dtype=self.recipe.training.dtype_policy)
