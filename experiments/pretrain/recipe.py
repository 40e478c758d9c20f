"""Every setting of a pre-training run."""

import dataclasses

from experiments.recipe import MAY_CHANGE, Recipe
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderConfig, EncoderDecoderConfig, catalog
from macaron_tf.objectives import DenoisingConfig, MaskingConfig, SpanCorruptionConfig

OBJECTIVES = (
    "masked_language",
    "span_boundary",
    "replaced_tokens",
    "causal_language",
    "segment_language",
    "permutation_language",
)
CAUSAL = ("causal_language", "segment_language")
MEMORY = ("segment_language", "permutation_language")
FILLING = ("masked_language", "span_boundary", "replaced_tokens")
# Those of an encoder-decoder.
CORRUPTING = ("span_corruption", "denoising")
VOCABULARIES = ("wordpiece", "sentencepiece", "unigram", "byte_bpe")


@dataclasses.dataclass(frozen=True)
class VocabularyConfig:
    """The vocabulary that is trained on a corpus that has none.

    Attributes:
        kind: `"wordpiece"` (BERT's), `"sentencepiece"` (BPE: XLM's), `"unigram"` (SentencePiece's
            other model: ALBERT's) or `"byte_bpe"` (RoBERTa's).
        size: pieces, the special ones included.
        lower_case: fold case; with WordPiece and unigram accents go too, as in BERT and ALBERT.
        max_documents: documents read at most, the first of each source.
    """

    kind: str = "wordpiece"
    size: int = 8_000
    lower_case: bool = True
    max_documents: int | None = None

    def __post_init__(self):
        if self.kind not in VOCABULARIES:
            raise UserError(f"vocabulary.kind is {self.kind!r}: give {', '.join(VOCABULARIES)}")
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
        corpus, vocabulary, masking: see their classes. With `corpus.pairs` the rows are
            pairs of segments and whether they belong together is learnt too; a model with
            language embeddings has one for each of `corpus.languages`.
        objective: `"masked_language"`; `"span_boundary"`, masked spans from their neighbours
            besides (SpanBERT); `"replaced_tokens"` (ELECTRA); `"causal_language"`, the next
            token (with `model.causal=True`); `"segment_language"`, the next token of texts that
            go on from row to row (Transformer-XL); or `"permutation_language"`, tokens of such
            texts in random order (XLNet).
            An encoder-decoder learns `"span_corruption"` (T5) or `"denoising"` (BART).
        corruption, denoising: of these two, see their classes.
        partial_prediction: K of `"permutation_language"`: one token in so many is guessed.
        memory_length: of objectives with a memory: M, positions of the rows before that attention
            sees. adaptive_cutoffs, adaptive_divisor: of `"segment_language"`, see
            `AdaptiveSoftmax`; no cutoffs = tokens are scored by their table.
        generator_width: of `"replaced_tokens"`, the generator's part of the encoder's width;
            discriminator_weight: of the discriminator's loss.
        head_transform: whether the head over masked tokens has a layer of its own before the
            table (BERT's), or is the table alone (XLM's); a language model's is the table alone.
        batch_size: rows of a micro-batch.
        static_shapes: score unused places for masked positions too, so that all shapes are static
            (XLA, TPU); the result is the same.
        validation_batches: how many batches of the validation rows are looked at; None = all.
    """

    kind = "pretraining"
    command = "python -m experiments.pretrain"
    may_change = (*MAY_CHANGE, "validation_batches")

    corpus: CorpusConfig
    vocabulary: VocabularyConfig = VocabularyConfig()
    masking: MaskingConfig = MaskingConfig()
    corruption: SpanCorruptionConfig = SpanCorruptionConfig()
    denoising: DenoisingConfig = DenoisingConfig()
    objective: str = "masked_language"
    generator_width: float = 0.25
    discriminator_weight: float = 50.0
    head_transform: bool = True
    partial_prediction: float = 6.0
    memory_length: int = 0
    adaptive_cutoffs: tuple[int, ...] = ()
    adaptive_divisor: int = 1
    batch_size: int = 32
    static_shapes: bool = False
    validation_batches: int | None = None

    def __post_init__(self):
        if self.objective not in (known := (*OBJECTIVES, *CORRUPTING)):
            raise UserError(f"objective is {self.objective!r}: give {', '.join(known)}")
        if self.objective != "masked_language" and self.corpus.paired:
            raise UserError(
                f"objective {self.objective!r} reads running text: set corpus.pairs=none"
            )
        if self.objective == "span_boundary" and self.masking.choice != "spans":
            raise UserError("objective 'span_boundary' needs spans: set masking.choice=spans")
        if not 0 < self.generator_width <= 1:
            raise UserError(f"generator_width is {self.generator_width}: it must lie in (0, 1]")
        if not 0 < self.discriminator_weight < float("inf"):
            raise UserError(
                f"discriminator_weight is {self.discriminator_weight}: it must be above 0"
            )
        if not 1 < self.partial_prediction < float("inf"):
            raise UserError(f"partial_prediction is {self.partial_prediction}: it must be above 1")
        if self.has_memory:
            if self.memory_length < 1:
                raise UserError(
                    f"memory_length is {self.memory_length}: objective {self.objective!r} needs 1 "
                    "or more"
                )
            if self.corpus.packing != "full_text":
                raise UserError(
                    f"objective {self.objective!r} reads texts that go on from row to row: set "
                    "corpus.packing=full_text"
                )
        if self.batch_size < 1:
            raise UserError(f"batch_size is {self.batch_size}: it must be 1 or more")
        if self.validation_batches is not None and self.validation_batches < 1:
            raise UserError(
                f"validation_batches is {self.validation_batches}: give 1 or more, or None for all"
            )

    @property
    def has_memory(self) -> bool:
        """Whether rows go on from batch to batch, with a memory of those before."""
        return self.objective in MEMORY

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig | EncoderDecoderConfig:
        config = super().model_config(vocab_size)
        if self.objective in CORRUPTING:
            return self._sequence_config(config)
        if not isinstance(config, EncoderConfig):
            known = ", ".join(catalog.names(EncoderConfig))
            raise UserError(f"model: {self.model} is no encoder; there are {known}")
        if config.longest is not None and config.longest < self.corpus.sequence_length:
            raise UserError(
                f"model.max_length is {config.max_length}, less than corpus.sequence_length, "
                f"{self.corpus.sequence_length}: raise it or take shorter rows"
            )
        if self.corpus.paired and config.num_segments < 2:
            raise UserError(
                "corpus.pairs needs model.num_segments of 2 or more: pairs have 2 segments"
            )
        if config.causal != (self.objective in CAUSAL):
            raise UserError(
                f"objective {self.objective!r} with model.causal={config.causal}: a causal model "
                "learns 'causal_language' or 'segment_language', and nothing else does"
            )
        if self.objective == "permutation_language" and "swish_rnn" in config.blocks:
            raise UserError(
                "model.block=swish_rnn with objective 'permutation_language': its recurrence would "
                "tell each token to itself; take transformer or macaron"
            )
        if self.has_memory and config.relative is None:
            raise UserError(
                f"objective {self.objective!r} needs attention that looks back: set "
                "model.positions=transformer_xl"
            )
        if config.num_languages and not self.corpus.languages:
            raise UserError(
                f"{self.model} has language embeddings but no source of the corpus has a language: "
                "give each its own, (NAME, SPLIT, None, LANGUAGE), or --set model.num_languages=0"
            )
        if config.num_languages:
            config = dataclasses.replace(config, num_languages=len(self.corpus.languages))
        return config

    def _sequence_config(self, config) -> EncoderDecoderConfig:
        """Checks the configuration of an encoder-decoder."""
        if not isinstance(config, EncoderDecoderConfig):
            known = ", ".join(catalog.names(EncoderDecoderConfig))
            raise UserError(
                f"model: {self.model} is no encoder-decoder, which objective {self.objective!r} "
                f"needs; there are {known}"
            )
        if self.corpus.languages:
            raise UserError(
                f"objective {self.objective!r} knows no languages: give the corpus's sources none"
            )
        # One token less than a row: without [CLS] and [SEP], with EOS.
        if config.longest is not None and config.longest < self.corpus.sequence_length - 1:
            raise UserError(
                f"model.max_length is {config.max_length}, less than the texts of "
                f"corpus.sequence_length, {self.corpus.sequence_length}: raise it or take shorter "
                "rows"
            )
        return config
