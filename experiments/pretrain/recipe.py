"""Recipe of pre-training (`PretrainingRecipe`)."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

import keras
from annotated_types import Ge, Gt, Le

from experiments.recipe import MAY_CHANGE, Recipe, as_user_errors, refuse
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
from macaron_tf.plug_ins import clear_errors, find, is_import_path
from macaron_tf.settings import INT32, Count, Natural, OneOf, Positive, Settings, hints_of
from macaron_tf.training.config import LOWER_IS_BETTER


@dataclasses.dataclass(frozen=True)
class VocabularyConfig(Settings):
    """Settings of a vocabulary that is trained for a pre-training run.

    Attributes:
        kind: `"wordpiece"` (BERT), `"sentencepiece"` (BPE, as in XLM), `"unigram"` (SentencePiece
            unigram model, as in ALBERT) or `"byte_bpe"` (RoBERTa).
        size: number of subword pieces, including special tokens.
        lower_case: whether text is lower-cased. WordPiece and unigram vocabularies then also
            strip accents, as in BERT and ALBERT.
        max_documents: maximum number of documents to read from the beginning of each source;
            `None` means all documents.
        max_characters: with `"wordpiece"`, maximum number of single characters in the vocabulary,
            which are the most frequent characters. A word with any other character becomes [UNK].
            `None` means 1,000 characters. For text such as Chinese, `None` means enough characters
            to cover 99.95% of the text, but at most three quarters of the vocabulary size.
    """

    section: ClassVar[str] = "vocabulary"

    kind: Literal["wordpiece", "sentencepiece", "unigram", "byte_bpe"] = "wordpiece"
    size: Annotated[int, Ge(8), INT32] = 8_000
    lower_case: bool = True
    max_documents: Count | None = None
    max_characters: Count | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingRecipe(Recipe):
    """Settings of a pre-training run.

    Attributes:
        corpus: settings of the training rows. With `corpus.pairs`, a row holds a pair of segments,
            and the model also learns sentence-pair classification (next-sentence or sentence-order
            prediction). A model with language embeddings has one embedding for each language in
            `corpus.languages`.
        vocabulary: settings of the vocabulary.
        masking: settings of token masking.
        objective: pre-training objective. An encoder needs `"masked_language"` (BERT),
            `"span_boundary"` (SpanBERT) or `"replaced_tokens"` (ELECTRA). A causal model needs
            `"causal_language"` (GPT) or, with a memory of earlier rows, `"segment_language"`
            (Transformer-XL). Two-stream attention needs `"permutation_language"` (XLNet). An
            encoder-decoder needs `"span_corruption"` (T5) or `"denoising"` (BART). The form
            `package.module:Name` names a subclass of `PretrainingObjective`.
        corruption: settings of objective `"span_corruption"`.
        denoising: settings of objective `"denoising"`.
        generator_width: with `"replaced_tokens"`, ratio of generator width to discriminator width.
        discriminator_weight: with `"replaced_tokens"`, weight of the discriminator loss.
        partial_prediction: with `"permutation_language"`, the constant K in the XLNet paper. The
            model predicts one in K tokens.
        memory_length: with `"segment_language"` and `"permutation_language"`, number of positions
            in earlier rows that attention can see.
        bidirectional: with `"permutation_language"`, whether to read every text in both
            directions, as XLNet does. Half of the rows of an update then read the texts of the
            other rows backward.
        isolate_documents: whether attention stays within a document if several documents share a
            row, as with `corpus.packing="full_text"` or `"full_sentences"`. Positions and
            recurrent states then restart with every document. [SEP] marks the end of a document.
        head_transform: whether the masked language model head has a dense layer before the tied
            embedding matrix, as in BERT. XLM has no dense layer. A causal language model never has
            this dense layer.
        batch_size: number of rows in a micro-batch. If the objective has a memory, each micro-batch
            of an update has its own texts, and these texts continue in the next update.
        init: pre-trained model to start from, in a form that `macaron_tf.load` accepts; `None`
            means random weights.
        static_shapes: whether the head computes logits also at the padding in the masked positions.
            All shapes are then static, as XLA and TPUs require. The loss is the same.
        validation_batches: number of validation batches to evaluate; `None` means all batches.
    """

    kind = "pretraining"
    may_change = (*MAY_CHANGE, "validation_batches")
    evaluation_settings = ("memory_length", "model.clamp_length")

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

    def check_metric(self, metric_names: Iterable[str]) -> None:
        """Also raises a `UserError` if it is unknown which values of an own metric are better."""
        super().check_metric(metric_names)
        metric, known = self.training.best_metric, {*LOWER_IS_BETTER, "accuracy"}
        if is_import_path(self.objective) and not (self.training.best_mode or metric in known):
            raise UserError(
                f"training.best_metric={metric} is a metric of {self.objective}: set "
                "training.best_mode=min if smaller values are better, and otherwise max"
            )

    def check(self) -> None:
        objective, corpus = self.builtin_objective, self.corpus
        name = f"objective {self.objective!r}"
        isolated, in_documents = self.isolate_documents, "isolate_documents=True cannot be combined"
        refuse(
            (
                objective.learns != "masked_language" and corpus.paired,
                f"{name} needs rows of running text: set corpus.pairs=none",
            ),
            (
                objective.learns == "causal_language" and corpus.has_translations,
                f"{name} needs rows in one language: leave translation pairs out of corpus.sources",
            ),
            (
                isolated and objective.has_memory,
                f"{in_documents} with {name}, whose memory spans documents: leave it out",
            ),
            (
                isolated and objective.encoder_decoder,
                f"{in_documents} with {name}, which treats each row as one text: leave it out",
            ),
            (
                isolated and corpus.has_translations,
                f"{in_documents} with translation pairs, whose two sides belong together: leave it "
                "out",
            ),
            (
                objective.learns == "span_boundary" and self.masking.choice != "spans",
                f"{name} needs masked spans: set masking.choice=spans",
            ),
            (
                objective.has_memory and corpus.batch_alpha is not None,
                f"{name} continues texts from batch to batch: leave corpus.batch_alpha out",
            ),
            (
                objective.has_memory and self.memory_length < 1,
                f"memory_length is {self.memory_length}, but {name} needs at least 1",
            ),
            (
                objective.has_memory and corpus.packing != "full_text",
                f"{name} reads texts that continue from row to row: set corpus.packing=full_text",
            ),
        )

    def unread(self) -> list[str]:
        objective, learns = self.builtin_objective, self.builtin_objective.learns
        read = {
            # `masking` is passed to the `preparation` of a user's class.
            "masking.": objective.fills_masks or is_import_path(self.objective),
            "corruption.": learns == "span_corruption",
            "denoising.": learns == "denoising",
            "generator_width": learns == "replaced_tokens",
            "discriminator_weight": learns == "replaced_tokens",
            "partial_prediction": learns == "permutation_language",
            "bidirectional": learns == "permutation_language",
            "memory_length": objective.has_memory,
            "head_transform": learns in ("masked_language", "span_boundary"),
            "isolate_documents": self.corpus.crosses_documents,
            "vocabulary.max_characters": self.vocabulary.kind == "wordpiece",
        }
        return [*super().unread(), *(path for path in read if not read[path])]

    @functools.cached_property
    def objective_class(self) -> type[PretrainingObjective]:
        """Class that the setting `objective` names."""
        if not is_import_path(self.objective):
            return PRETRAINING[self.objective]
        cls = find(self.objective, PretrainingObjective)
        if cls.learns not in PRETRAINING:
            raise UserError(
                f"the attribute `learns` of objective {self.objective} is {cls.learns!r}, but "
                f"must be one of {', '.join(PRETRAINING)}: correct the class"
            )
        return cls

    @functools.cached_property
    def builtin_objective(self) -> type[PretrainingObjective]:
        """Built-in objective class that determines the network and the training rows.

        A user-defined objective names this class in its attribute `learns`.
        """
        return PRETRAINING[self.objective_class.learns]

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig | EncoderDecoderConfig:
        config, objective = super().model_config(vocab_size), self.builtin_objective
        name, length = f"objective {self.objective!r}", self.corpus.sequence_length
        if objective.encoder_decoder:
            predicate = f"is not an encoder-decoder, which {name} needs"
            self.expect_model(config, EncoderDecoderConfig, predicate)
            length -= 1  # minus 2 for [CLS] and [SEP], plus 1 for EOS
        else:
            self.expect_model(config, EncoderConfig, "is not an encoder")
        refuse(
            (
                config.longest is not None and config.longest < length,
                f"model.max_length is {config.max_length}, but rows have up to "
                f"{self.corpus.sequence_length} tokens: lower corpus.sequence_length",
            ),
            (
                objective.encoder_decoder and self.corpus.languages,
                f"{name} does not use the language codes in corpus.sources: leave them out",
            ),
        )
        if objective.encoder_decoder:
            return config
        refuse(
            (
                self.corpus.paired and config.num_segments < 2,
                f"corpus.pairs={self.corpus.pairs} makes rows of 2 segments, but "
                f"model.num_segments is {config.num_segments}: set model.num_segments=2",
            ),
            (
                config.causal != objective.causal,
                f"{name} does not support model.causal={config.causal}: set "
                f"model.causal={objective.causal}",
            ),
            (
                config.adaptive_cutoffs and not (objective.causal or objective.has_memory),
                f"{name} does not support an adaptive softmax: set model.adaptive_cutoffs=()",
            ),
            (
                objective.learns == "permutation_language" and "swish_rnn" in config.blocks,
                f"{name} does not support model.block=swish_rnn, because the recurrence would "
                "reveal each token to its own prediction: set model.block=transformer or macaron",
            ),
            (
                objective.has_memory and not config.relative,
                f"{name} needs relative-position attention: set model.positions=transformer_xl",
            ),
            (
                config.num_languages and not self.corpus.languages,
                f"{self.model} has language embeddings, but no source in corpus.sources has a "
                "language code: write (NAME, SPLIT, None, LANGUAGE), or set model.num_languages=0",
            ),
        )
        if config.adaptive_cutoffs and vocab_size:
            with as_user_errors("model.adaptive_cutoffs"):
                cluster_bounds(vocab_size, config.adaptive_cutoffs)
        if self.isolate_documents:
            with as_user_errors("isolate_documents=True"):
                Stack(config, config.num_layers, causal=config.causal).check_documents()
        if config.num_languages:
            config = dataclasses.replace(config, num_languages=len(self.corpus.languages))
        return config

    def network(self, config: EncoderConfig | EncoderDecoderConfig) -> keras.Model:
        """Creates the network with the heads that the objective needs, without building it."""
        policy = {"dtype": self.training.dtype_policy}
        match self.builtin_objective.learns:
            case "masked_language" | "span_boundary":
                return PretrainingEncoder(
                    config,
                    sentence_pair=self.corpus.paired,
                    span_boundary=self.builtin_objective.learns == "span_boundary",
                    head_options=None if self.head_transform else {"transform": False},
                    **policy,
                )
            case "replaced_tokens":
                with as_user_errors(f"generator_width is {self.generator_width}"):
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
        skip_padding = not (self.static_shapes or static_shapes)
        options = {
            "masked_language": {"sentence_pair": self.corpus.paired},
            "replaced_tokens": {"discriminator_weight": self.discriminator_weight},
            "permutation_language": {"partial": self.partial_prediction},
            "span_corruption": {"config": self.corruption},
            "denoising": {"config": self.denoising},
        }.get(self.builtin_objective.learns, {})
        cls = self.objective_class
        arguments = {name: value for name, value in options.items() if name in hints_of(cls)}
        error_context = is_import_path(self.objective) and clear_errors(self.objective)
        with error_context or contextlib.nullcontext():
            return cls(skip_padding=skip_padding, **arguments)

    def usage(self) -> dict:
        learns = self.builtin_objective.learns
        return {
            **super().usage(),
            "objective": learns,
            "trained_length": self.corpus.sequence_length,
            "languages": self.corpus.languages,
            "sentinels": self.corruption.sentinels if learns == "span_corruption" else 0,
        }
