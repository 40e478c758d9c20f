"""Every setting of a run of ELMo."""

import dataclasses

from experiments.recipe import Recipe
from macaron_tf.errors import UserError
from macaron_tf.models import ElmoConfig, catalog


@dataclasses.dataclass(frozen=True, kw_only=True)
class ElmoRecipe(Recipe):
    """A bidirectional language model over whole words, and the text it learns from.

    Attributes: those of `Recipe`, and
        sources: texts, see `macaron_tf.data.sources.readers.documents`; they are held in memory.
        vocabulary_size: words that are predicted, the most frequent.
        row_length: words a row L, each sentence between two marks.
        batch_size: rows of a micro-batch.
        held_out: one of so many documents is for validation.
        samples: words beside which one is scored in training; 0 = all, see
            `BidirectionalLanguageObjective`.
    """

    kind = "elmo"
    command = "python -m experiments.elmo"

    sources: tuple[str, ...]
    vocabulary_size: int = 8_000
    row_length: int = 32
    batch_size: int = 32
    held_out: int = 50
    samples: int = 0

    def __post_init__(self):
        least = {"vocabulary_size": 4, "row_length": 2, "batch_size": 1, "held_out": 2}
        for name, value in {**least, "samples": 0}.items():
            if getattr(self, name) < value:
                raise UserError(f"{name} is {getattr(self, name)}: it must be {value} or more")
        if not self.sources:
            raise UserError("sources is empty: give at least one text")

    def model_config(self, vocab_size: int | None = None) -> ElmoConfig:
        config = super().model_config(vocab_size)
        if not isinstance(config, ElmoConfig):
            known = ", ".join(catalog.names(ElmoConfig))
            raise UserError(f"model: {self.model} is no ELMo; there are {known}")
        return config
