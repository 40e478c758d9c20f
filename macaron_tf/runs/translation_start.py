"""Initialization of translation models with random or pre-trained weights."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from macaron_tf.data.sources.readers import count_texts, stream_pairs
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io.progress import Progress
from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig, catalog
from macaron_tf.models.config import WEIGHTLESS_FIELDS, differing_fields
from macaron_tf.objectives import objective_class
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from macaron_tf.runs.loading import read_model
from macaron_tf.runs.recipe import as_user_errors
from macaron_tf.runs.starts import (
    PARTS,
    Start,
    check_shapes,
    config_from_encoder,
    copy_encoder,
    start_of,
)
from macaron_tf.text import (
    PairVocabulary,
    PieceVocabulary,
    SentencePieceVocabulary,
    check_vocabulary,
    load_encoder_vocabulary,
)
from macaron_tf.text.base import SAMPLE, draw_sample
from macaron_tf.text.sentencepiece import interleave, normalized_text
from macaron_tf.training.locations import locate

if TYPE_CHECKING:
    from macaron_tf.runs.translation import TranslationRecipe

# Configuration fields in which a model may differ from the pre-trained model.
_MAY_DIFFER = (*WEIGHTLESS_FIELDS, "initializer_range", "vocab_size")


@dataclasses.dataclass(frozen=True, eq=False)
class TranslationStart:
    """Initialization of a translation model with random weights.

    Unless the user gives a vocabulary, a vocabulary is trained on the recipe's text, jointly for
    the source and the target language. Subclasses copy the pre-trained weights of `init`, which is
    `None` in this class.
    """

    init: Start | None = None

    def apply(self, recipe: "TranslationRecipe") -> "TranslationRecipe":
        """Returns `recipe` with the location (`init`) and the sizes of the pre-trained model.

        The dropout rates of `recipe` stay unchanged.
        """
        return recipe

    def check(self, recipe: "TranslationRecipe") -> None:
        """Raises a `UserError` if the recipe's settings do not fit this initialization."""
        wanted, data = recipe.model_config(), recipe.data
        if recipe.unsupervised and not isinstance(self, EncoderStart):
            raise UserError("unsupervised=True needs a model of both languages: give --init")
        if recipe.unsupervised and data.source_language == data.target_language:
            raise UserError(f"unsupervised=True needs two languages, not {data.source_language}")
        if self.init:
            check_shapes(self.init.given, self.apply(recipe).model_config(), wanted, _MAY_DIFFER)
        elif wanted.num_source_layers:
            raise UserError("model.num_source_layers needs --init with a run of BART or T5")
        if self.init and data.bpe_dropout.dropout:
            raise UserError("data.bpe_dropout needs a vocabulary of the run: leave it out")

    def vocabulary(
        self, recipe: "TranslationRecipe", directory: str | None = None, tfds: Tfds | None = None
    ) -> PieceVocabulary:
        """Reads the vocabulary in `directory`, or trains a vocabulary on the recipe's text.

        Subclasses return a `PairVocabulary` with the vocabulary of the pre-trained model.
        """
        if directory:
            return SentencePieceVocabulary.load(directory)
        data = recipe.data
        lines = interleave(_training_pairs(recipe, tfds), data.languages)
        options = {"normalization": data.normalization, "languages": data.languages}
        return _trained_vocabulary(recipe, lines, masks=False, **options)

    def copy_to(self, network: EncoderDecoder, recipe: "TranslationRecipe") -> None:
        """Copies the pre-trained weights, if there are any, into a built network."""


def _training_pairs(recipe: "TranslationRecipe", tfds: Tfds | None) -> Iterator[tuple[str, str]]:
    """Returns at most `SAMPLE` pairs of the training split, drawn at random if it has more."""
    data = recipe.data
    split = data.parts.get(data.train_split, data.train_split)
    pairs = stream_pairs(data.source, split, *data.languages, tfds)
    total = count_texts(data.source, split, data.languages, tfds)
    with Progress("reading", "pairs", total) as progress:
        return draw_sample(progress.over(pairs), SAMPLE)


def _trained_vocabulary(
    recipe: "TranslationRecipe", lines: Iterator[str], **options
) -> SentencePieceVocabulary:
    size, rule = recipe.data.vocabulary_size, recipe.data.normalization_rule
    print(f"training a vocabulary of {size:,} pieces", flush=True)
    options |= {"character_coverage": 1.0, "normalization_rule": rule}
    return SentencePieceVocabulary.train(lines, size, **options)


def _with_model(recipe: "TranslationRecipe", config: EncoderDecoderConfig) -> "TranslationRecipe":
    """Returns `recipe` with the model `config`, and text lengths that fit its position count."""
    options = differing_fields(config, catalog.config(recipe.model))
    for name in ("vocab_size", "two_way"):  # set by the vocabulary and `unsupervised`
        options.pop(name, None)
    cleaning, max_length = recipe.data.cleaning, config.longest or sys.maxsize
    cleaning = dataclasses.replace(cleaning, max_tokens=min(cleaning.max_tokens, max_length))
    return recipe.changed(
        model_options=tuple(sorted(options.items())),
        data=dict(cleaning=cleaning),
        decoding=dict(max_length=min(recipe.decoding.max_length, max_length)),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class EncoderStart(TranslationStart):
    """Initialization of the encoder and decoder with a pre-trained encoder or language model.

    Attributes:
        parts: members of `PARTS` to initialize; the embeddings are always initialized.
        decoder: second pre-trained model, which initializes the decoder, or `None`.

    Reference: Lample and Conneau 2019, "Cross-lingual Language Model Pretraining", table 3.
    """

    parts: tuple[str, ...] = ()
    decoder: Start | None = None

    def apply(self, recipe: "TranslationRecipe") -> "TranslationRecipe":
        config = recipe.model_config()
        with as_user_errors(f"--init {self.init.given}"):
            config = config_from_encoder(self.init.config, config, self.parts)
        if self.decoder:
            with as_user_errors(f"--init {self.decoder.given}"):
                fitted = config_from_encoder(self.decoder.config, config, ("decoder",))
            free = (*_MAY_DIFFER, "num_decoder_layers")
            check_shapes(self.init.given, config, fitted, free)
            config = fitted
        special = self.init.vocabulary.special
        config = dataclasses.replace(config, begin_id=special.begin, end_id=special.end)
        decoder = self.decoder.given if self.decoder else None
        recipe = recipe.changed(init=self.init.given, init_decoder=decoder, init_parts=self.parts)
        return _with_model(recipe, config)

    def check(self, recipe: "TranslationRecipe") -> None:
        super().check(recipe)
        if recipe.unsupervised and self.init.vocabulary.special.mask is None:
            raise UserError(f"the vocabulary of {self.init.given} has no [MASK]: give another")
        self._language_rows(recipe)

    def vocabulary(
        self, recipe: "TranslationRecipe", directory: str | None = None, tfds: Tfds | None = None
    ) -> PairVocabulary:
        vocabulary, data = self.init.vocabulary, recipe.data
        if directory:
            saved_hash = load_encoder_vocabulary(directory).hash
            check_vocabulary(vocabulary.hash, saved_hash, self.init.given)
        return PairVocabulary(vocabulary, vocabulary, data.normalization, data.languages)

    def copy_to(self, network: EncoderDecoder, recipe: "TranslationRecipe") -> None:
        encoder = self.init.source.encoder
        copy_encoder(network, encoder, self.parts, self._language_rows(recipe))
        if self.decoder:
            network.decoder.copy_from(self.decoder.source.encoder.stack)

    def _language_rows(self, recipe: "TranslationRecipe") -> list[int]:
        """Returns the language embedding indices of the source and the target language.

        The result is [0, 0] if the pre-trained model has no language embeddings.
        """
        if not self.init.config.num_languages:
            return [0, 0]
        pretrained = self.init.source.card.languages
        for language in recipe.data.languages:
            if language not in pretrained:
                known = ", ".join(pretrained) or "unnamed languages"
                found = f"--init {self.init.given} has language embeddings for {known}"
                raise UserError(f"{found}, but not for {language!r}")
        return [pretrained.index(language) for language in recipe.data.languages]


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceStart(TranslationStart):
    """Initialization with a pre-trained encoder-decoder, such as BART, and a new source encoder.

    The new encoder reads the source language. The pre-trained model reads the output of the new
    encoder instead of token embeddings.

    Reference: Lewis et al. 2020, "BART", section 3.4.
    """

    def apply(self, recipe: "TranslationRecipe") -> "TranslationRecipe":
        pretrained, config = self.init.source, recipe.model_config()
        # The new encoder in the paper has 6 layers, as many as the encoder of BART-base.
        depth = config.num_source_layers or pretrained.config.num_encoder_layers
        options = {**config.options(*WEIGHTLESS_FIELDS), "num_source_layers": depth}
        rows = SENTINEL_ROWS if pretrained.card.objective == "span_corruption" else 0
        model = pretrained.card.model
        recipe = recipe.changed(init=self.init.given, model=model, sentinel_rows=rows)
        return _with_model(recipe, dataclasses.replace(pretrained.config, **options))

    def vocabulary(
        self, recipe: "TranslationRecipe", directory: str | None = None, tfds: Tfds | None = None
    ) -> PairVocabulary:
        data, (language, _) = recipe.data, recipe.data.languages
        if directory:
            source = load_encoder_vocabulary(directory)
        else:
            lines = (line for line, _ in _training_pairs(recipe, tfds))
            lines = normalized_text(lines, data.normalization, [language])
            special = self.init.vocabulary.special
            options = {"special": special, "masks": special.rows is None}
            source = _trained_vocabulary(recipe, lines, languages=(language,), **options)
        return PairVocabulary(source, self.init.vocabulary, data.normalization, data.languages)

    def copy_to(self, network: EncoderDecoder, recipe: "TranslationRecipe") -> None:
        self.init.copy_to(network)


def read_init(
    location: str | None,
    parts: Sequence[str] | None = None,
    decoder: str | None = None,
    trust_code: bool = False,
) -> TranslationStart:
    """Reads the pre-trained models that the settings `init` and `init_decoder` name.

    Args:
        location: location of a model in a form that `macaron_tf.load` accepts; `None` means random
            weights.
        parts: members of `PARTS` to initialize; `None` means the encoder and the decoder.
        decoder: location of a second model, which initializes the decoder.
    """
    if not location:
        if parts or decoder:
            raise UserError("init_parts and init_decoder need a model to start from: give --init")
        return TranslationStart()
    model = read_model(location, trust_code=trust_code)
    if (
        objective_class(model.card.objective).encoder_decoder
        and not locate(location).without_recipe
    ):
        for name, value in (("init_parts", parts), ("init_decoder", decoder)):
            if value:
                raise UserError(f"{name} cannot be combined with the encoder-decoder {location}")
        return SequenceStart(start_of(location, model, ["pair"]))
    start, parts = start_of(location, model, ["encoder"]), parts or PARTS[1:]
    parts = tuple(part for part in PARTS if part in parts)
    if not decoder:
        return EncoderStart(start, parts)
    parts = tuple(part for part in parts if part != "decoder") or PARTS[:1]
    decoder_start = start_of(decoder, read_model(decoder, trust_code=trust_code), ["encoder"])
    check_vocabulary(start.vocabulary.hash, decoder_start.vocabulary.hash, location)
    return EncoderStart(start, parts, decoder_start)
