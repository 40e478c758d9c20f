"""Every setting of a translation run."""

import dataclasses

from experiments.recipe import MAY_CHANGE, Recipe
from macaron_tf.data.translation import BatchingConfig, BpeDropoutConfig, CleaningConfig
from macaron_tf.decoding.config import BeamSearchConfig
from macaron_tf.errors import UserError
from macaron_tf.evaluation.translation import TranslationMetric
from macaron_tf.models import EncoderDecoderConfig, catalog
from macaron_tf.text.normalization import NormalizationConfig


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which text a translation model learns from, and how it becomes batches.

    Attributes:
        source: what `macaron_tf.data.read_pairs` reads, such as `tfds:multi30k/de-en`.
        source_language, target_language: codes such as "en".
        train_split, validation_split, test_split: names of splits. Where the source has no
            such split, a run that needs it says so.
        vocabulary_size: pieces of the joint vocabulary; of the source's alone behind an
            encoder-decoder that was pre-trained in the target's.
        normalization: of every line, before it is cut into pieces.
        cleaning: which training pairs are kept.
        batching: how rows become batches of a few static shapes.
        sampling: BPE-dropout of the training text.
        validation_lines: how many lines of the validation split are translated for BLEU while
            training; None = all.
    """

    source: str
    source_language: str
    target_language: str
    train_split: str = "train"
    validation_split: str = "validation"
    test_split: str = "test"
    vocabulary_size: int = 10_000
    normalization: NormalizationConfig = NormalizationConfig()
    cleaning: CleaningConfig = CleaningConfig()
    batching: BatchingConfig = BatchingConfig()
    sampling: BpeDropoutConfig = BpeDropoutConfig()
    validation_lines: int | None = None

    def __post_init__(self):
        if self.vocabulary_size < 8:
            raise UserError(f"data.vocabulary_size is {self.vocabulary_size}: it must be 8 or more")
        if self.validation_lines is not None and self.validation_lines < 1:
            raise UserError(
                f"data.validation_lines is {self.validation_lines}: give 1 or more, or None for all"
            )

    @property
    def languages(self) -> tuple[str, str]:
        """Of the source and of the target."""
        return self.source_language, self.target_language


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationRecipe(Recipe):
    """Every setting of a translation run.

    Attributes: those of `Recipe`, and
        data, decoding, metric: see their classes.
        label_smoothing: of the objective.
        average_last: checkpoints averaged by `translate average` when no number is given.
        init, init_decoder, init_parts: where weights come from: what `--init`, `--init-decoder`
            and `--init-parts` named; None = they are drawn.
        sentinel_rows: rows of the model's table beyond the target vocabulary's.
        first_stage_steps: updates of BART's first stage, which trains the new encoder of the
            source, the positions and the projection of the first layer's attention alone; the
            rest of the run trains everything.
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

    data: DataConfig
    decoding: BeamSearchConfig
    metric: TranslationMetric
    label_smoothing: float = 0.1
    average_last: int = 5
    init: str | None = None
    init_decoder: str | None = None
    init_parts: tuple[str, ...] = ()
    sentinel_rows: int = 0
    first_stage_steps: int = 0

    def __post_init__(self):
        for name in ("sentinel_rows", "first_stage_steps"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} is {getattr(self, name)}: it must be 0 or more")
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"label_smoothing is {self.label_smoothing}: it must lie in [0, 1)")
        if self.average_last < 1:
            raise UserError(f"average_last is {self.average_last}: it must be 1 or more")

    def model_config(
        self, vocab_size: int | None = None, source_vocab_size: int | None = None
    ) -> EncoderDecoderConfig:
        """As the base's.

        Args:
            vocab_size: of the vocabulary, the target's where there are two.
            source_vocab_size: of the source's, where it has one of its own.
        """
        if vocab_size is not None:
            vocab_size += self.sentinel_rows
        config = super().model_config(vocab_size)
        if not isinstance(config, EncoderDecoderConfig):
            known = ", ".join(catalog.names(EncoderDecoderConfig))
            raise UserError(f"model: {self.model} cannot translate; there are {known}")
        if self.first_stage_steps and not config.num_source_layers:
            raise UserError(
                f"first_stage_steps is {self.first_stage_steps}, but the model has no new encoder "
                "of the source: give --init a run of BART's or T5's, or set first_stage_steps=0"
            )
        limits = {
            "data.cleaning.max_tokens": self.data.cleaning.max_tokens,
            "decoding.max_length": self.decoding.max_length,
        }
        for name, limit in limits.items():
            if config.longest is not None and config.longest < limit:
                raise UserError(
                    f"{name} is {limit}, but the model has {config.longest} positions: set "
                    f"{name}={config.longest} or less"
                )
        return dataclasses.replace(config, source_vocab_size=source_vocab_size)

    def check_continues(self, before: "TranslationRecipe", where) -> None:
        if before.init != self.init:
            raise UserError(
                f"{where} was started with --init {before.init or 'left out'}, not "
                f"{self.init or 'without it'}: give the same command, or another folder"
            )
        super().check_continues(before, where)

    def follow(self, path: str) -> "TranslationRecipe":
        """A new `data.target_language` is also the language that BLEU tokenizes."""
        if path != "data.target_language":
            return self
        metric = dataclasses.replace(self.metric, language=self.data.target_language)
        return dataclasses.replace(self, metric=metric)
