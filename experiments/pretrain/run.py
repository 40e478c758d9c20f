"""Recipe and run of pre-training, with the network and the objective of each recipe."""

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import keras
import tensorflow as tf
from annotated_types import Ge, Gt, Le

from experiments.recipe import MAY_CHANGE, Recipe, naming
from experiments.run import Run
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.errors import UserError
from macaron_tf.layers.embeddings import cluster_bounds
from macaron_tf.models import (
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    GeneratorDiscriminator,
    LanguageModel,
    PretrainingEncoder,
    SegmentLanguageModel,
    Stack,
    TwoStreamModel,
    generator_config,
)
from macaron_tf.objectives import (
    PRETRAINING,
    DenoisingConfig,
    MaskingConfig,
    PretrainingObjective,
    SpanCorruptionConfig,
)
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from macaron_tf.plug_ins import clear_errors, find, is_place
from macaron_tf.settings import INT32, Count, Natural, OneOf, Positive, Settings, hints_of


@dataclasses.dataclass(frozen=True)
class VocabularyConfig(Settings):
    """The vocabulary that is trained on a corpus that has none.

    Attributes:
        kind: `"wordpiece"` (BERT's), `"sentencepiece"` (BPE: XLM's), `"unigram"` (SentencePiece's
            other model: ALBERT's) or `"byte_bpe"` (RoBERTa's).
        size: pieces, the special ones included.
        lower_case: fold case; with WordPiece and unigram accents go too, as in BERT and ALBERT.
        max_documents: greatest number of documents read, the first of each source; None = all.
        max_characters: of `"wordpiece"`: the text's most frequent characters that become pieces; a
            word with another one is [UNK]. None = 1,000, or 99.95% of a text of more, such as
            Chinese, as far as they fit into three quarters of the pieces.
    """

    section: ClassVar[str] = "vocabulary"

    kind: Literal["wordpiece", "sentencepiece", "unigram", "byte_bpe"] = "wordpiece"
    size: Annotated[int, Ge(8), INT32] = 8_000
    lower_case: bool = True
    max_documents: Count | None = None
    max_characters: Count | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingRecipe(Recipe):
    """Every setting of a pre-training run.

    Attributes:
        corpus: settings of the rows. With `corpus.pairs` a row is a pair of segments, and the
            model also learns whether they belong together; a model with language embeddings has
            one for each of `corpus.languages`.
        vocabulary: settings of the vocabulary.
        masking: settings of masked tokens.
        objective: `"masked_language"`; `"span_boundary"`, also masked spans from their neighbours
            (SpanBERT); `"replaced_tokens"` (ELECTRA); `"causal_language"`, the next token (with
            `model.causal=True`); `"segment_language"`, the next token of texts that continue from
            row to row (Transformer-XL); or `"permutation_language"`, tokens of such texts in
            random order (XLNet). An encoder-decoder learns `"span_corruption"` (T5) or
            `"denoising"` (BART). `package.module:Name` is a `PretrainingObjective` of your own.
        corruption: of `"span_corruption"`.
        denoising: of `"denoising"`.
        generator_width: of `"replaced_tokens"`, the generator's share of the encoder's width.
        discriminator_weight: of `"replaced_tokens"`, of the discriminator's loss.
        partial_prediction: K of `"permutation_language"`: one token in so many is predicted.
        memory_length: of objectives with a memory: M, positions of earlier rows that attention
            sees.
        bidirectional: of `"permutation_language"`: every text of an update is read in both
            directions, so that half of its rows are read backwards (XLNet).
        isolate_documents: documents of one row, with `corpus.packing="full_text"` or
            "full_sentences", do not see each other, as if each had a row of its own: attention
            stays within a document, its positions begin at 0 and recurrences anew. The corpus
            stays as it is: a document ends with its [SEP].
        head_transform: a layer before the table in the head over masked tokens (BERT), or the
            table alone (XLM); a language model's head is the table alone.
        batch_size: rows of a micro-batch. With a memory, the micro-batches of an update have texts
            of their own, which go on in the next update.
        init: origin of the weights, of `--init`; None = they are drawn.
        static_shapes: score padding among the masked positions too, which makes all shapes static
            (XLA, TPU); the result is the same.
        validation_batches: evaluated batches of the validation rows; None = all.
    """

    kind = "pretraining"
    command = "python -m experiments.pretrain"
    may_change = (*MAY_CHANGE, "validation_batches")
    by_argument: ClassVar = {"init": "--init"}

    corpus: CorpusConfig
    vocabulary: VocabularyConfig = VocabularyConfig()
    masking: MaskingConfig = MaskingConfig()
    corruption: SpanCorruptionConfig = SpanCorruptionConfig()
    denoising: DenoisingConfig = DenoisingConfig()
    objective: Annotated[str, OneOf(tuple(PRETRAINING), PretrainingObjective)] = "masked_language"
    generator_width: Annotated[float, Gt(0), Le(1)] = 0.25
    discriminator_weight: Positive = 50.0
    head_transform: bool = True
    partial_prediction: Annotated[float, Gt(1)] = 6.0
    memory_length: Natural = 0
    bidirectional: bool = False
    isolate_documents: bool = False
    batch_size: Count = 32
    init: str | None = None
    static_shapes: bool = False
    validation_batches: Count | None = None

    def check(self) -> None:
        if self.learnt.learns != "masked_language" and self.corpus.paired:
            raise UserError(
                f"objective {self.objective!r} reads running text: set corpus.pairs=none"
            )
        if self.learnt.learns == "causal_language" and self.corpus.has_translations:
            raise UserError(
                f"objective {self.objective!r} reads text of one language a row: leave the "
                "translation pairs out of corpus.sources"
            )
        if self.isolate_documents:
            given = f"isolate_documents=True with objective {self.objective!r}"
            if self.learnt.has_memory:
                raise UserError(f"{given}: its memory goes on over documents; leave it out")
            if self.learnt.encoder_decoder:
                raise UserError(
                    f"{given}: an encoder-decoder reads a row as one text; leave it out"
                )
            if self.corpus.has_translations:
                raise UserError(
                    "isolate_documents=True: a translation's halves see each other; leave it out, "
                    "or the translation pairs out of corpus.sources"
                )
            if not self.corpus.crosses_documents:
                given = f"isolate_documents=True with corpus.packing={self.corpus.row_packing!r}"
                raise UserError(
                    f"{given}, whose rows have one document each: set corpus.packing=full_text or "
                    "full_sentences"
                )
        if self.learnt.learns == "span_boundary" and self.masking.choice != "spans":
            raise UserError("objective 'span_boundary' needs spans: set masking.choice=spans")
        if self.learnt.has_memory:
            if self.corpus.batch_alpha is not None:
                raise UserError(
                    f"objective {self.objective!r} goes on from batch to batch, with one language "
                    "in each it cannot: leave out corpus.batch_alpha"
                )
            if self.memory_length < 1:
                raise UserError(
                    f"memory_length is {self.memory_length}: objective {self.objective!r} needs 1 "
                    "or more"
                )
            if self.corpus.packing != "full_text":
                raise UserError(
                    f"objective {self.objective!r} reads texts that continue from row to row: set "
                    "corpus.packing=full_text"
                )

    def unread(self) -> dict[str, str]:
        readers = {
            "masking.": [name for name, kind in PRETRAINING.items() if kind.fills_masks],
            "corruption.": ("span_corruption",),
            "denoising.": ("denoising",),
            "generator_width": ("replaced_tokens",),
            "discriminator_weight": ("replaced_tokens",),
            "partial_prediction": ("permutation_language",),
            "bidirectional": ("permutation_language",),
            "memory_length": [name for name, kind in PRETRAINING.items() if kind.has_memory],
            "head_transform": ("masked_language", "span_boundary"),
        }
        if is_place(self.objective):  # its `preparation` gets them
            del readers["masking."]
        found = super().unread()
        for name, kinds in readers.items():
            if self.learnt.learns not in kinds:
                found[name] = f"objective {' or '.join(map(repr, kinds))}"
        if self.vocabulary.kind != "wordpiece":
            found["vocabulary.max_characters"] = "vocabulary.kind=wordpiece"
        return found

    @functools.cached_property
    def objective_class(self) -> type[PretrainingObjective]:
        """The class that `objective` names."""
        if not is_place(self.objective):
            return PRETRAINING[self.objective]
        kind = find(self.objective, PretrainingObjective)
        if kind.learns not in PRETRAINING:
            raise UserError(
                f"objective {self.objective} has learns={kind.learns!r}: give one of "
                f"{', '.join(PRETRAINING)}"
            )
        return kind

    @functools.cached_property
    def learnt(self) -> type[PretrainingObjective]:
        """The objective of ours whose network and rows it has: `objective_class` or its base."""
        return PRETRAINING[self.objective_class.learns]

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig | EncoderDecoderConfig:
        config = super().model_config(vocab_size)
        length = self.corpus.sequence_length
        if self.learnt.encoder_decoder:
            needed = f"is no encoder-decoder, which objective {self.objective!r} needs"
            self.expect_model(config, EncoderDecoderConfig, needed)
            length -= 1  # without [CLS] and [SEP], with EOS
        else:
            self.expect_model(config, EncoderConfig, "is no encoder")
        if config.longest is not None and config.longest < length:
            raise UserError(
                f"model.max_length is {config.max_length}, less than corpus.sequence_length, "
                f"{self.corpus.sequence_length}: raise it or take shorter rows"
            )
        if self.learnt.encoder_decoder:
            if self.corpus.languages:
                raise UserError(
                    f"objective {self.objective!r} knows no languages: give the corpus's sources "
                    "none"
                )
            return config
        if self.corpus.paired and config.num_segments < 2:
            raise UserError(
                "corpus.pairs needs model.num_segments of 2 or more: pairs have 2 segments"
            )
        if config.causal != self.learnt.causal:
            raise UserError(
                f"objective {self.objective!r} with model.causal={config.causal}: a causal model "
                "learns 'causal_language' or 'segment_language', and nothing else does"
            )
        if config.adaptive_cutoffs and not (self.learnt.causal or self.learnt.has_memory):
            raise UserError(
                f"objective {self.objective!r} scores tokens by their table of embeddings: set "
                "model.adaptive_cutoffs=()"
            )
        if config.adaptive_cutoffs and vocab_size:
            with naming("model.adaptive_cutoffs"):
                cluster_bounds(vocab_size, config.adaptive_cutoffs)
        if self.learnt.learns == "permutation_language" and "swish_rnn" in config.blocks:
            raise UserError(
                "model.block=swish_rnn with objective 'permutation_language': its recurrence would "
                "tell each token to itself; take transformer or macaron"
            )
        if self.learnt.has_memory and not config.relative:
            raise UserError(
                f"objective {self.objective!r} needs attention that looks back: set "
                "model.positions=transformer_xl"
            )
        if self.isolate_documents:
            with naming("isolate_documents=True"):
                Stack(config, config.num_layers, causal=config.causal).check_documents()
        if config.num_languages and not self.corpus.languages:
            raise UserError(
                f"{self.model} has language embeddings but no source of the corpus has a language: "
                "give each its own, (NAME, SPLIT, None, LANGUAGE), or --set model.num_languages=0"
            )
        if config.num_languages:
            config = dataclasses.replace(config, num_languages=len(self.corpus.languages))
        return config

    def network(self, config: EncoderConfig | EncoderDecoderConfig) -> keras.Model:
        """The model with its heads."""
        policy = {"dtype": self.training.dtype_policy}
        match self.learnt.learns:
            case "masked_language" | "span_boundary":
                return PretrainingEncoder(
                    config,
                    sentence_pair=self.corpus.paired,
                    span_boundary=self.learnt.learns == "span_boundary",
                    head_options=None if self.head_transform else {"transform": False},
                    **policy,
                )
            case "replaced_tokens":
                with naming(f"generator_width is {self.generator_width}"):
                    generator = generator_config(config, self.generator_width)
                return GeneratorDiscriminator(config, generator, **policy)
            case "causal_language":
                return LanguageModel(config, **policy)
            case "segment_language":
                return SegmentLanguageModel(config, self.memory_length, **policy)
            case "permutation_language":
                return TwoStreamModel(config, self.memory_length, **policy)
            case "span_corruption" | "denoising":
                return EncoderDecoder(config, **policy)

    def make_objective(self, static_shapes: bool = False) -> PretrainingObjective:
        skip = not (self.static_shapes or static_shapes)
        options = {
            "masked_language": {"sentence_pair": self.corpus.paired},
            "replaced_tokens": {"discriminator_weight": self.discriminator_weight},
            "permutation_language": {"partial": self.partial_prediction},
            "span_corruption": {"config": self.corruption},
            "denoising": {"config": self.denoising},
        }.get(self.learnt.learns, {})
        kind = self.objective_class
        fitting = {name: value for name, value in options.items() if name in hints_of(kind)}
        place = is_place(self.objective) and clear_errors(self.objective)
        with place or contextlib.nullcontext():
            return kind(skip_padding=skip, **fitting)

    def usage(self) -> dict:
        learns = self.learnt.learns
        return {
            **super().usage(),
            "objective": learns,
            "trained_length": self.corpus.sequence_length,
            "languages": self.corpus.languages,
            "sentinels": self.corruption.sentinels if learns == "span_corruption" else 0,
        }


@dataclasses.dataclass(frozen=True)
class PretrainingRun(Run):
    """A finished or running pre-training."""

    recipe_class = PretrainingRecipe

    def make_network(self) -> keras.Model:
        sentinels = SENTINEL_ROWS if self.recipe.learnt.learns == "span_corruption" else 0
        return self.recipe.network(self.recipe.model_config(self.vocabulary.size + sentinels))

    def build_network(self, saved: bool = False) -> keras.Model:
        network = super().build_network(saved)
        if self.recipe.learnt.has_memory and not saved:
            # Each replica keeps its own rows' memory, see `macaron_tf.distribution.distributed`.
            mesh = keras.distribution.distribution()
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            parts = mesh.num_model_replicas if mesh else replicas
            if self.recipe.batch_size % parts:
                raise UserError(
                    f"batch_size={self.recipe.batch_size} is no multiple of {parts}, the replicas "
                    "or the mesh's data, as the memory of a text in each row needs: set another "
                    "batch_size"
                )
            rows = self.recipe.batch_size // replicas
            network.keep_memory(rows, self.recipe.training.accumulation_steps)
        return network

    def memory(self, network: keras.Model, use: str = "training") -> Sequence[keras.Variable]:
        return network.memories[use].variables if self.recipe.learnt.has_memory else ()
