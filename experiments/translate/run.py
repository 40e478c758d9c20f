"""Recipe and run of translation."""

import dataclasses
import os
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Lt

from experiments.recipe import MAY_CHANGE, Recipe
from experiments.run import Run
from macaron_tf.data.sources.names import WHOLE, HeldOut, Source
from macaron_tf.data.translation import BatchingConfig, BpeDropoutConfig, CleaningConfig
from macaron_tf.decoding import (
    BackTranslationObjective,
    BeamSearchConfig,
    LineTranslator,
    SamplingConfig,
)
from macaron_tf.errors import UserError
from macaron_tf.evaluation.translation import TranslationMetric
from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import first_stage_variables
from macaron_tf.objectives import DenoisingConfig, TranslationObjective
from macaron_tf.settings import INT32, Count, Dropout, Natural, Settings
from macaron_tf.tasks.translation import Translation
from macaron_tf.text import PairVocabulary
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.text.sentencepiece import NormalizationRule
from macaron_tf.training.updates import FirstStage



@dataclasses.dataclass(frozen=True)
class DataConfig(Settings):
    """The text that a translation model is trained on, and its batches.

    Attributes:
        source: source of the pairs, such as `tfds:multi30k/de-en`, see
            `macaron_tf.data.sources.names.PAIRS`.
        source_language, target_language: code of the language, such as "en".
        train_split, validation_split, test_split: name of the split.
        target_split: with `unsupervised`, split from which the target texts are read, so that they
            are not translations of the source texts; None: `train_split`.
        vocabulary_size: pieces of the joint vocabulary; if `--init` is an encoder-decoder, which
            has a vocabulary of the target, pieces of the source's vocabulary.
        normalization: normalization of every line before it is split into pieces.
        normalization_rule: SentencePiece's normalization, which follows, and which a vocabulary
            trained for the run contains. `nmt_nfkc` replaces compatibility characters (`m²` by
            `m2`, `½` by 1, a fraction slash and 2, full-width letters by ASCII) and a zero-width
            non-joiner by a space; `nfkc` keeps the non-joiner, `identity` changes nothing; `_cf`
            also folds case.
        cleaning: filters of the training pairs.
        batching: shapes and sizes of batches.
        sampling: BPE-dropout of the training text.
        validation_lines: number of lines of the validation split to translate for BLEU in each
            validation; None: all.
        held_out: fraction of the pairs, at most 2,000, that becomes the validation split if the
            file's name has no {split}.
        seed: seed that chooses the held-out pairs.
    """

    section: ClassVar[str] = "data"

    source: str
    source_language: str
    target_language: str
    train_split: str = "train"
    target_split: str | None = None
    validation_split: str = "validation"
    test_split: str = "test"
    vocabulary_size: Annotated[int, Ge(8), INT32] = 10_000
    normalization: NormalizationConfig = NormalizationConfig()
    normalization_rule: NormalizationRule = "nmt_nfkc"
    cleaning: CleaningConfig = CleaningConfig()
    batching: BatchingConfig = BatchingConfig()
    sampling: BpeDropoutConfig = BpeDropoutConfig()
    validation_lines: Count | None = None
    held_out: Annotated[float, Gt(0), Lt(1)] = 0.1
    seed: Natural = 1

    @property
    def parts(self) -> dict[str, HeldOut]:
        """The held-out parts that replace the splits of a file without splits, by name; else {}."""
        names = self.train_split, self.validation_split
        if Source.of(self.source).has_splits or [name in WHOLE for name in names] != [True, False]:
            return {}
        return {name: HeldOut(self.held_out, self.seed, rest=name in WHOLE) for name in names}

    @property
    def languages(self) -> tuple[str, str]:
        """The source language and the target language."""
        return self.source_language, self.target_language


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationRecipe(Recipe):
    """Every setting of a translation run.

    Attributes:
        data: settings of the text.
        decoding: settings of beam search.
        metric: settings of BLEU.
        label_smoothing: label smoothing of the training loss.
        unsupervised: whether to learn without pairs, in both directions, by denoising and
            back-translation, see `BackTranslationObjective`. `--init` names an encoder or a
            language model of both languages.
        denoising: settings of the noise with `unsupervised`.
        average_last: number of checkpoints that `translate average` averages by default.
        init: the place that `--init` named; None: the weights started at random.
        init_decoder: the place that `--init-decoder` named.
        init_parts: the parts that `--init-parts` named.
        sentinel_rows: rows of the embedding table beyond the target vocabulary.
        first_stage_steps: updates of BART's first stage, which trains only the new encoder of the
            source, the position embeddings and the attention projections of the first layer. The
            rest of the run trains all weights.
    """

    kind = "translation"
    command = "python -m experiments.translate"
    may_change = (
        *MAY_CHANGE,
        "average_last",
        "data.test_split",
        "data.validation_split",
        "data.validation_lines",
        "decoding.",
        "metric.",
    )

    by_argument: ClassVar = {
        "init": "--init",
        "init_decoder": "--init-decoder",
        "init_parts": "--init-parts",
    }

    data: DataConfig
    decoding: BeamSearchConfig
    metric: TranslationMetric
    label_smoothing: Dropout = 0.1
    unsupervised: bool = False
    denoising: DenoisingConfig = DenoisingConfig()
    average_last: Count = 5
    init: str | None = None
    init_decoder: str | None = None
    init_parts: tuple[str, ...] = ()
    sentinel_rows: Natural = 0
    first_stage_steps: Natural = 0

    def model_config(
        self, vocab_size: int | None = None, source_vocab_size: int | None = None
    ) -> EncoderDecoderConfig:
        """The model's configuration for the size of the vocabulary, or of one for each side."""
        if vocab_size is not None:
            vocab_size += self.sentinel_rows
        config = super().model_config(vocab_size)
        self.expect_model(config, EncoderDecoderConfig, "cannot translate")
        if self.first_stage_steps and not config.num_source_layers:
            raise UserError(
                f"first_stage_steps is {self.first_stage_steps}, but the model has no new encoder "
                "of the source: give --init a run of BART or T5, or set first_stage_steps=0"
            )
        self.expect_positions(config, "data.cleaning.max_tokens", self.data.cleaning.max_tokens)
        self.expect_positions(config, "decoding.max_length", self.decoding.max_length)
        sides = {"source_vocab_size": source_vocab_size, "two_way": self.unsupervised}
        return dataclasses.replace(config, **sides)

    def check(self) -> None:
        if self.data.target_split and not self.unsupervised:
            raise UserError(
                "data.target_split gives texts that are not translations of each other: set "
                "unsupervised=True, or leave it out"
            )

    def usage(self) -> dict:
        return {**super().usage(), "decoding": dataclasses.asdict(self.decoding)}

    def unread(self) -> dict[str, str]:
        others = {} if self.unsupervised else {"denoising.": "unsupervised=True"}
        return super().unread() | others

    def make_objective(
        self, static_shapes: bool = False
    ) -> TranslationObjective | BackTranslationObjective:
        if not self.unsupervised:
            return TranslationObjective(self.label_smoothing, skip_padding=not static_shapes)
        return BackTranslationObjective(
            skip_padding=not static_shapes,
            config=self.denoising,
            label_smoothing=self.label_smoothing,
            length=self.data.cleaning.max_tokens,
        )

    def check_continues(self, before: "TranslationRecipe", where, may_change=None) -> None:
        if before.init != self.init:
            raise UserError(
                f"{where} was started with --init {before.init or 'left out'}, not "
                f"{self.init or 'without it'}: give the same command, or another folder"
            )
        super().check_continues(before, where, may_change)

    def follow(self, path: str) -> "TranslationRecipe":
        """Sets the language of BLEU's tokenization if `data.target_language` was replaced."""
        if path != "data.target_language":
            return self
        metric = dataclasses.replace(self.metric, language=self.data.target_language)
        return dataclasses.replace(self, metric=metric)


@dataclasses.dataclass(frozen=True)
class TranslationRun(Run):
    """A finished or running training of a translator."""

    recipe_class = TranslationRecipe

    def make_network(self) -> EncoderDecoder:
        sizes = [self.vocabulary.size]
        if isinstance(self.vocabulary, PairVocabulary):
            sizes = [self.vocabulary.target.size, self.vocabulary.source.size]
        return self.recipe.network(self.recipe.model_config(*sizes))

    def first_stage(self, network: EncoderDecoder) -> FirstStage | None:
        if not self.recipe.first_stage_steps:
            return None
        return FirstStage(self.recipe.first_stage_steps, first_stage_variables(network))

    def translator(
        self,
        checkpoint: os.PathLike | str | None = None,
        decoding: BeamSearchConfig | SamplingConfig | None = None,
        seed: int = 1,
        backward: bool = False,
    ) -> LineTranslator:
        """Makes a translator of lines with the weights of a checkpoint.

        Args:
            checkpoint: see `load_network`.
            decoding: settings of beam search or sampling; None: the recipe's.
            seed: seed of the sampling.
            backward: whether to translate from the target's language to the source's.
        """
        if backward and not self.recipe.unsupervised:
            source, target = self.recipe.data.languages
            raise UserError(
                f"--backward: {self.path} translates from {source} to {target} only: give a run "
                "of unsupervised translation"
            )
        task = Translation(self.load_network(checkpoint), self.vocabulary, self.recipe.decoding)
        return task.lines(decoding, seed, backward)

    def writer(self, network: EncoderDecoder, decoding: BeamSearchConfig) -> LineTranslator:
        """Makes a translator of lines with the weights of a network."""
        return Translation(network, self.vocabulary, decoding).lines()
