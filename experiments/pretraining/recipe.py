"""Every setting of a pre-training run."""

import dataclasses

from experiments.recipe import Recipe
from macaron_tf.data.pretraining_corpus import CorpusConfig
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderConfig, catalog
from macaron_tf.objectives.masking import MaskingConfig

VOCABULARIES = ("wordpiece", "sentencepiece")


@dataclasses.dataclass(frozen=True)
class VocabularyConfig:
    """The vocabulary that is trained on a corpus that has none.

    Attributes:
        kind: `"wordpiece"` (BERT's) or `"sentencepiece"` (BPE).
        size: pieces, the special ones included.
        lower_case: fold case; with WordPiece accents go too, as in BERT.
        max_documents: documents read at most, the first of each source.
    """

    kind: str = "wordpiece"
    size: int = 8_000
    lower_case: bool = True
    max_documents: int | None = None

    def __post_init__(self):
        if self.kind not in VOCABULARIES:
            raise UserError(f"vocabulary.kind is {self.kind!r}: give {' or '.join(VOCABULARIES)}")
        if self.size < 8:
            raise UserError(f"vocabulary.size is {self.size}: it must be 8 or more")
        if self.max_documents is not None and self.max_documents < 1:
            raise UserError(
                f"vocabulary.max_documents is {self.max_documents}: give 1 or more, or None for all"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingRecipe(Recipe):
    """Every setting of a pre-training run.

    Attributes: those of `Recipe`, and
        corpus, vocabulary, masking: see their classes. With `corpus.next_sentence` the rows are
            pairs of segments and whether they belong together is learnt too.
        batch_size: rows of a micro-batch.
        static_shapes: score unused places for masked positions too, so that all shapes are static
            (XLA, TPU); the result is the same.
        validation_batches: how many batches of the validation rows are looked at; None = all.
    """

    kind = "pretraining"
    command = "python -m experiments.pretrain"

    corpus: CorpusConfig
    vocabulary: VocabularyConfig = VocabularyConfig()
    masking: MaskingConfig = MaskingConfig()
    batch_size: int = 32
    static_shapes: bool = False
    validation_batches: int | None = None

    def __post_init__(self):
        if self.batch_size < 1:
            raise UserError(f"batch_size is {self.batch_size}: it must be 1 or more")
        if self.validation_batches is not None and self.validation_batches < 1:
            raise UserError(
                f"validation_batches is {self.validation_batches}: give 1 or more, or None for all"
            )

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig:
        config = super().model_config(vocab_size)
        if not isinstance(config, EncoderConfig):
            known = ", ".join(catalog.names(EncoderConfig))
            raise UserError(f"model: {self.model} is no encoder; there are {known}")
        if config.positions == "learned" and config.max_length < self.corpus.sequence_length:
            raise UserError(
                f"model.max_length is {config.max_length}, less than corpus.sequence_length, "
                f"{self.corpus.sequence_length}: raise it or take shorter rows"
            )
        if self.corpus.next_sentence and config.num_segments < 2:
            raise UserError(
                "corpus.next_sentence needs model.num_segments of 2 or more: pairs have 2 segments"
            )
        return config
