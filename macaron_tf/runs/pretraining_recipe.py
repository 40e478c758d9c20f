"""Recipe of pre-training (`PretrainingRecipe`)."""

import dataclasses
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

import keras
from annotated_types import Ge

from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.errors import UserError
from macaron_tf.io.plug_ins import is_import_path
from macaron_tf.layers.embeddings import cluster_bounds
from macaron_tf.models import EncoderConfig, EncoderDecoderConfig, Stack
from macaron_tf.objectives import (
    PRETRAINING,
    MaskedLanguageObjective,
    PermutationObjective,
    PretrainingObjective,
)
from macaron_tf.runs.recipe import MAY_CHANGE, Recipe, as_user_errors
from macaron_tf.settings import INT32, Count, Settings, Variants
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
        objective: pre-training objective with its settings. An encoder needs `"masked_language"`
            (BERT), `"span_boundary"` (SpanBERT) or `"replaced_tokens"` (ELECTRA). A causal model
            needs `"causal_language"` (GPT) or, with a memory of earlier rows, `"segment_language"`
            (Transformer-XL). Two-stream attention needs `"permutation_language"` (XLNet). An
            encoder-decoder needs `"span_corruption"` (T5) or `"denoising"` (BART). The form
            `package.module:Name` names a subclass of one of these classes. A new objective keeps
            the settings that it has in common with the recipe's objective.
        isolate_documents: whether attention stays within a document if several documents share a
            row, as with `corpus.packing="full_text"` or `"full_sentences"`. Positions and
            recurrent states then restart with every document. [SEP] marks the end of a document.
        batch_size: number of rows in a micro-batch. If the objective has a memory, each micro-batch
            of an update has its own texts, and these texts continue in the next update.
        init: pre-trained model to start from, in a form that `macaron_tf.load` accepts; `None`
            means random weights.
        validation_batches: number of validation batches to evaluate; `None` means all batches.
    """

    kind = "pretraining"
    may_change = (*MAY_CHANGE, "validation_batches")
    evaluation_settings = ("objective.memory_length", "model.clamp_length")
    configs = (EncoderConfig, EncoderDecoderConfig)
    by_argument: ClassVar[dict[str, str]] = {
        "objective.name": "--set objective=NAME",
        "objective.sentence_pair": "--set corpus.pairs",
    }

    corpus: CorpusConfig
    vocabulary: VocabularyConfig = VocabularyConfig()
    objective: Annotated[PretrainingObjective, Variants(PRETRAINING, PretrainingObjective)] = (
        MaskedLanguageObjective()
    )
    isolate_documents: bool = False
    batch_size: Count = 32
    init: str | None = None
    validation_batches: Count | None = None

    def check_metric(self, metric_names: Iterable[str]) -> None:
        """Also raises a `UserError` if it is unknown which values of an own metric are better."""
        super().check_metric(metric_names)
        metric, known = self.training.best_metric, {*LOWER_IS_BETTER, "accuracy"}
        name = self.objective.name
        if is_import_path(name) and not (self.training.best_mode or metric in known):
            raise UserError(
                f"training.best_metric={metric} is a metric of {name}: set "
                "training.best_mode=min if smaller values are better, and otherwise max"
            )

    def check(self) -> None:
        objective, corpus = self.objective, self.corpus
        name, isolated = f"objective {objective.name!r}", "isolate_documents=True excludes"
        if corpus.paired and not isinstance(objective, MaskedLanguageObjective):
            raise UserError(f"{name} needs rows of running text: set corpus.pairs=none")
        if objective.causal and corpus.has_translations:
            raise UserError(f"{name} needs rows in one language: leave translation pairs out")
        if self.isolate_documents and objective.has_memory:
            raise UserError(f"{isolated} {name}, whose memory spans documents: leave it out")
        if self.isolate_documents and objective.encoder_decoder:
            raise UserError(f"{isolated} {name}, which treats each row as one text: leave it out")
        if self.isolate_documents and corpus.has_translations:
            raise UserError(f"{isolated} translation pairs, which belong together: leave it out")
        if objective.has_memory and corpus.batch_alpha is not None:
            raise UserError(
                f"{name} continues texts from batch to batch: leave corpus.batch_alpha out"
            )
        if objective.has_memory and corpus.packing != "full_text":
            raise UserError(f"{name} continues texts from row to row: set corpus.packing=full_text")

    def unread(self) -> list[str]:
        read = {
            "isolate_documents": self.corpus.crosses_documents,
            "vocabulary.max_characters": self.vocabulary.kind == "wordpiece",
        }
        return [*super().unread(), *(path for path in read if not read[path])]

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig | EncoderDecoderConfig:
        config, objective = super().model_config(vocab_size), self.objective
        name, languages = f"objective {objective.name!r}", self.corpus.languages
        decodes = objective.encoder_decoder
        self.expect_model(config, EncoderDecoderConfig if decodes else EncoderConfig)
        # An encoder-decoder's row lacks [CLS] and [SEP], and has EOS.
        if config.longest is not None and config.longest < self.corpus.sequence_length - decodes:
            raise UserError(
                f"model.max_length is {config.max_length}, but rows have up to "
                f"{self.corpus.sequence_length} tokens: lower corpus.sequence_length"
            )
        if decodes and languages:
            raise UserError(f"{name} reads no languages: leave them out of corpus.sources")
        if decodes:
            return config
        if self.corpus.paired and config.num_segments < 2:
            raise UserError(
                f"corpus.pairs={self.corpus.pairs} makes rows of 2 segments, but "
                f"model.num_segments is {config.num_segments}: set model.num_segments=2"
            )
        if config.causal != objective.causal:
            raise UserError(
                f"{name} does not support model.causal={config.causal}: set "
                f"model.causal={objective.causal}"
            )
        if config.adaptive_cutoffs and not (objective.causal or objective.has_memory):
            raise UserError(
                f"{name} does not support an adaptive softmax: set model.adaptive_cutoffs=()"
            )
        if isinstance(objective, PermutationObjective) and "swish_rnn" in config.blocks:
            raise UserError(
                f"{name} does not support model.block=swish_rnn, because the recurrence would "
                "reveal each token to its own prediction: set model.block=transformer or macaron"
            )
        if objective.has_memory and not config.relative:
            raise UserError(
                f"{name} needs relative-position attention: set model.positions=transformer_xl"
            )
        if config.num_languages and not languages:
            raise UserError(
                f"{self.model} has language embeddings, but no source in corpus.sources has a "
                "language code: write (NAME, SPLIT, None, LANGUAGE), or set model.num_languages=0"
            )
        if config.adaptive_cutoffs and vocab_size:
            with as_user_errors("model.adaptive_cutoffs"):
                cluster_bounds(vocab_size, config.adaptive_cutoffs)
        if self.isolate_documents:
            with as_user_errors("isolate_documents=True"):
                Stack(config, config.num_layers, causal=config.causal).check_documents()
        if config.num_languages:
            config = dataclasses.replace(config, num_languages=len(languages))
        return config

    def network(self, config: EncoderConfig | EncoderDecoderConfig) -> keras.Model:
        """Creates the network with the heads that the objective needs, without building it."""
        return self.make_objective().network(config, self.training.dtype_policy)

    def make_objective(self, static_shapes: bool = False) -> PretrainingObjective:
        changes = {"skip_padding": self.objective.skip_padding and not static_shapes}
        if isinstance(self.objective, MaskedLanguageObjective):
            changes["sentence_pair"] = self.corpus.paired
        return dataclasses.replace(self.objective, **changes)

    def usage(self) -> dict:
        return {
            **super().usage(),
            "objective": type(self.objective).name,  # a user's class has that of its base
            "trained_length": self.corpus.sequence_length,
            "languages": self.corpus.languages,
            "sentinels": self.objective.sentinels,
        }
