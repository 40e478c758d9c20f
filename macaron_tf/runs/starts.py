"""Initialization of networks from pre-trained weights, for the flag `--init`."""

import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from macaron_tf.data.sources.readers import count_texts, stream_pairs
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import assign
from macaron_tf.io.progress import Progress
from macaron_tf.models import Elmo, ElmoConfig, EncoderConfig, EncoderDecoderConfig, catalog
from macaron_tf.models.base import Network
from macaron_tf.models.config import (
    WEIGHTLESS_FIELDS,
    architecture_of,
    differing_fields,
)
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.models.tasks import TaskModel, TokenLevelModel
from macaron_tf.objectives import objective_class
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from macaron_tf.runs.loading import read_model
from macaron_tf.runs.recipe import as_user_errors
from macaron_tf.text import (
    PairVocabulary,
    PieceVocabulary,
    SentencePieceVocabulary,
    check_vocabulary,
    load_encoder_vocabulary,
)
from macaron_tf.text.base import SAMPLE, draw_sample
from macaron_tf.text.sentencepiece import interleave, normalized_text
from macaron_tf.text.words import CharacterWords
from macaron_tf.training.locations import locate

if TYPE_CHECKING:
    from macaron_tf.runs.translation import TranslationRecipe

# Parts of an encoder-decoder that can be initialized with an encoder's weights.
PARTS = ("embeddings", "encoder", "decoder")
# Types of networks that `--init` accepts, and their names in error messages.
KINDS = {
    "encoder": "an encoder",
    "pair": "an encoder-decoder",
    "reader": "a BART",  # or another model whose task heads read the decoder's hidden states
    "writer": "a pre-trained T5 or BART",
    "words": "an ELMo",
}
# Parts of a task's network that can be initialized from a pre-trained network.
_SHARED = ("encoder", "encoder_decoder", "pooler", "language_head")


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """Starting point of a training run: a model, its vocabulary and its initial weights.

    Attributes:
        given: value of the flag `--init`.
        source: pre-trained network to copy weights from. `None` means random initialization.
    """

    given: str
    vocabulary: PieceVocabulary
    source: ModelParts | None = None

    @property
    def config(self) -> catalog.Config:
        """Configuration of `source`, in which `vocab_size` is the size of `vocabulary`."""
        return dataclasses.replace(self.source.config, vocab_size=self.vocabulary.size)

    @property
    def settings(self) -> dict[str, Any]:
        """Recipe settings that describe this starting point, if it is a pre-trained model."""
        if not (source := self.source):
            return {}
        return {
            "init": self.given,
            "model": source.card.model,
            "model_options": source.model_options,
        }

    @property
    def trained_length(self) -> int | None:
        """Maximum row length in pre-training, in tokens.

        `None` means that there was no pre-training, that the model also accepts longer rows, or
        that the length is unknown.
        """
        # Sinusoidal positions, and the last bucket of T5's relative positions, fit any length.
        return self.source.card.trained_length if self.source and self.config.longest else None

    @property
    def languages(self) -> tuple[str, ...]:
        """Names of the model's languages, in the order of its language embeddings."""
        languages = self.source.card.languages if self.source else ()
        return languages or self.vocabulary.languages

    def check(self, target_config: EncoderConfig | EncoderDecoderConfig | ElmoConfig) -> None:
        """Raises a UserError if this starting point does not fit the configuration `target_config`.

        The vocabulary must put [CLS] first or last in a row, as `target_config.summary` requires.
        Pre-trained weights must also pass `check_shapes`.
        """
        if (target_config.summary == "last") != self.vocabulary.cls_last:
            end, summary = ("end", "last") if self.vocabulary.cls_last else ("beginning", "first")
            advice = f"give --set model.summary={summary}"
            raise UserError(f"--init {self.given} has [CLS] at the {end}: {advice}")
        if self.source is not None:
            check_shapes(self.given, self.config, target_config)

    def copy_to(self, network: Network) -> list[str]:
        """Copies the pre-trained weights into a built network.

        In a `TaskModel`, this method sets the weights of the encoder or encoder-decoder, the
        pooler, and the head of a language model. All other layers keep their initial weights, and
        so does a pooler whose activation or norm differs from the source's. In
        other networks, this method matches the top-level layers by name.

        Returns:
            Names of the compared layers or parts that keep some or all of their initial weights.
            The list omits the task head of a `TaskModel`. It is empty for an ELMo, or if `source`
            is `None`.
        """
        if self.source is None:
            return []
        source_network, is_task_model = self.source.network, isinstance(network, TaskModel)
        if isinstance(source_network, Elmo):
            network.encoder.copy_elmo(source_network)
            return []
        if not is_task_model and network.config.splittings != self.source.config.splittings:
            raise _setting_error(self.given, "scheme", self.source.config, network.config)
        source_parts = _shared_weights(source_network)
        if is_task_model:
            target_parts = _shared_weights(network)
            pooler = source_network.pooler
            is_shared = pooler and network.pooler and network.pooler.is_like(pooler)
            source_parts["pooler"] = pooler.weights if is_shared else []
        else:
            source_parts = {**_weights_by_layer(source_network), **source_parts}
            target_parts = _weights_by_layer(network)
        incomplete = [
            name
            for name, weights in target_parts.items()
            if not _copy_values(weights, source_parts.get(name, []))
        ]
        if "encoder" in incomplete or "encoder_decoder" in incomplete:
            found, wanted = type(source_network).__name__, type(network).__name__
            raise UserError(f"--init {self.given}, a {found}, cannot initialize a {wanted}")
        if is_task_model and network.language_head and not self.source.card.starts:
            # GPT was pre-trained without [SEP], so the output bias makes [SEP] impossible. But
            # fine-tuning inserts [SEP] between two texts.
            bias = ops.convert_to_numpy(network.language_head.weights[0]).copy()
            bias[self.source.special.end] = 0.0
            assign(network.language_head.weights[0], bias)
        return incomplete


def read_start(
    given: str,
    kinds: Collection[str] = ("encoder", "reader", "words"),
    lower_case: bool | None = None,
    trust_code: bool = False,
) -> Start:
    """Loads the pre-trained network that `--init` names."""
    return start_of(given, read_model(given, lower_case, trust_code), kinds)


def start_of(given: str, source: ModelParts, kinds: Collection[str]) -> Start:
    """Builds a `Start` from the loaded network `source`, whose type must be among `kinds`.

    Args:
        given: value of the flag `--init`.
        kinds: keys of `KINDS`.
    """
    network, vocabulary = source.network, source.vocabulary
    config = network.config if isinstance(network, Network) else None
    if isinstance(config, EncoderDecoderConfig):
        description, network_kinds = "an encoder-decoder", {"pair"}
        if source.card.objective == "denoising" or isinstance(network, TokenLevelModel):
            network_kinds.add("reader")
        if objective_class(source.card.objective).encoder_decoder:
            network_kinds.add("writer")
    elif isinstance(network, Elmo):
        description, network_kinds = "an ELMo", {"words"}
        vocabulary = CharacterWords(config.max_characters)
    else:
        description, network_kinds = f"of type {type(network).__name__}", {"encoder"}
    if not network_kinds & {*kinds} or not source.card.model:
        wanted = " or ".join(KINDS[kind] for kind in kinds)
        raise UserError(f"{given} is {description}, but must be {wanted}")
    if vocabulary is None:
        source.require_vocabulary()
    source.require_floats()
    return Start(given, vocabulary, source)


def check_shapes(
    given: str, source_config, target_config, free: Collection[str] = WEIGHTLESS_FIELDS
) -> None:
    """Raises a UserError if two configurations differ in a field that is not in `free`.

    Args:
        free: by default the fields that do not affect the weights.
    """
    for name in differing_fields(source_config, target_config):
        if name not in free:
            raise _setting_error(given, name, source_config, target_config)


def _setting_error(given: str, name: str, source_config, target_config) -> UserError:
    return UserError(
        f"--init {given} needs model.{name}={getattr(source_config, name)!r}, not "
        f"{getattr(target_config, name)!r}: leave model.{name} out, or start from other weights"
    )


Weights = Sequence[keras.Variable]


def _shared_weights(network: Network) -> dict[str, Weights]:
    """Returns the weights, by names in `_SHARED`, that pre-trained and task models can share."""
    if isinstance(network, Encoder):
        parts = {"encoder": network}
    elif isinstance(network, EncoderDecoder):
        parts = {"encoder_decoder": network}
    else:
        parts = {name: getattr(network, name) for name in _SHARED}
    return {name: part.weights for name, part in parts.items() if part is not None}


def _weights_by_layer(network: Network) -> Mapping[str, Weights]:
    """Groups weights by top-level layer. A weight of the network itself is a group of its own."""
    parts: dict[str, list[keras.Variable]] = {}
    for weight in network.weights:
        parts.setdefault(weight.path.split("/")[1], []).append(weight)
    return parts


def _copy_values(weights: Weights, source_weights: Weights) -> bool:
    """Copies values into `weights`, by position if the lengths match, otherwise by name.

    Returns whether every element of `weights` was set.
    """
    values: Sequence = source_weights
    if len(source_weights) != len(weights):
        by_name = {weight.path.partition("/")[2]: weight for weight in source_weights}
        values = [by_name.get(weight.path.partition("/")[2]) for weight in weights]
    for weight, value in zip(weights, values, strict=True):
        if value is not None:
            assign(weight, ops.convert_to_numpy(value))
    return all(value is not None for value in values)


def config_from_encoder(
    config: EncoderConfig, base: EncoderDecoderConfig, parts: Sequence[str]
) -> EncoderDecoderConfig:
    """Returns an encoder-decoder configuration whose weights the encoder `config` can initialize.

    Args:
        base: encoder-decoder configuration that determines the dropout rates, and the number of
            layers in each stack (encoder or decoder) that is not in `parts`.
        parts: names from `PARTS` of the parts to initialize. The embeddings are always initialized.
    """
    supported = {"embedding_dim": config.hidden_dim, "sharing": "none", "affine": True}
    for field, plain in supported.items():
        value = getattr(config, field)
        if value not in (None, plain):
            lack = f"{field}={value!r} is not supported in an encoder-decoder"
            raise ValueError(f"{lack}: use {plain!r}")
    depths = {
        f"num_{part}_layers": config.num_layers for part in ("encoder", "decoder") if part in parts
    }
    return dataclasses.replace(
        base,
        vocab_size=config.vocab_size,
        **architecture_of(config),
        **depths,
        tied=True,
        scaled_logits=False,
        initializer_range=config.initializer_range,
        language_embeddings=bool(config.num_languages or config.num_segments),
        num_source_layers=0,
    )


def copy_encoder(
    network: EncoderDecoder, encoder: Encoder, parts: Sequence[str], languages: Sequence[int]
) -> None:
    """Copies an encoder's weights into the embeddings and `parts` of an encoder-decoder.

    Args:
        network: encoder-decoder with a configuration from `config_from_encoder`.
        parts: names from `PARTS` of the parts to initialize. The embeddings are always initialized.
        languages: indices of the source and target language in the encoder's language embeddings.
    """
    source_embeddings = encoder.embeddings
    network.embedding.table.assign(source_embeddings.tokens.matrix("float32"))
    sides = (network.source_embeddings, network.target_embeddings)
    for side, language in zip(sides, languages, strict=True):
        for layer, source_layer in (
            (side.position_layer, source_embeddings.position_layer),
            (side.layer_norm, source_embeddings.layer_norm),
        ):
            if layer:
                layer.set_weights(source_layer.get_weights())
        if side.languages is not None:
            # An encoder adds the vectors of the language and of segment 0 to every token.
            order = [language, *(other for other in languages if other != language)]
            order = (order * 2)[: side.languages.shape[0]]
            tables = [(source_embeddings.languages, order)]
            tables.append((source_embeddings.segments, [0] * len(order)))
            # (1 or 2, D)
            vectors = [ops.take(table, rows, axis=0) for table, rows in tables if table is not None]
            if vectors:
                side.languages.assign(sum(vectors))
    for name in ("encoder", "decoder"):
        if name in parts:
            getattr(network, name).copy_from(encoder.stack)


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
        """Returns `recipe` with the location (`init`) and the sizes of the pre-trained model."""
        return recipe

    def check(self, recipe: "TranslationRecipe") -> None:
        """Raises a `UserError` if the recipe's settings do not fit this initialization."""
        wanted, data = recipe.model_config(), recipe.data
        has_both = isinstance(self, EncoderStart) and data.source_language != data.target_language
        if recipe.task.unsupervised and not has_both:
            raise UserError(
                "task.unsupervised=True needs two languages, and --init with both of them"
            )
        if self.init:
            check_shapes(self.init.given, self.apply(recipe).model_config(), wanted, _MAY_DIFFER)
        elif wanted.num_source_layers:
            raise UserError("model.num_source_layers needs --init with a run of BART or T5")

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
    for name in ("vocab_size", "two_way"):  # set by the vocabulary and `task.unsupervised`
        options.pop(name, None)
    cleaning, max_length = recipe.data.cleaning, config.longest or sys.maxsize
    cleaning = dataclasses.replace(cleaning, max_tokens=min(cleaning.max_tokens, max_length))
    return recipe.changed(
        model_options=tuple(sorted(options.items())),
        data=dict(cleaning=cleaning),
        task=dict(decoding=dict(max_length=min(recipe.task.decoding.max_length, max_length))),
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
        if recipe.task.unsupervised and self.init.vocabulary.special.mask is None:
            raise UserError(f"the vocabulary of {self.init.given} has no [MASK]: give another")
        self._language_rows(recipe)

    def vocabulary(
        self, recipe: "TranslationRecipe", directory: str | None = None, tfds: Tfds | None = None
    ) -> PairVocabulary:
        vocabulary, data = self.init.vocabulary, recipe.data
        if directory:
            raise UserError(f"{self.init.given} already has a vocabulary: leave --vocabulary out")
        return PairVocabulary(vocabulary, vocabulary, data.normalization, data.languages)

    def copy_to(self, network: EncoderDecoder, recipe: "TranslationRecipe") -> None:
        encoder = self.init.source.encoder
        copy_encoder(network, encoder, self.parts, self._language_rows(recipe))
        if self.decoder:
            network.decoder.copy_from(self.decoder.source.encoder.stack)

    def _language_rows(self, recipe: "TranslationRecipe") -> list[int]:
        """Returns the language embedding indices of source and target, [0, 0] if there are none."""
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
        recipe = recipe.changed(init=self.init.given, model=model, task=dict(sentinel_rows=rows))
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
    is_pair = objective_class(model.card.objective).encoder_decoder
    if is_pair and not locate(location).without_recipe:
        if parts or decoder:
            raise UserError(f"init_parts and init_decoder cannot be combined with {location}")
        return SequenceStart(start_of(location, model, ["pair"]))
    start, parts = start_of(location, model, ["encoder"]), parts or PARTS[1:]
    parts = tuple(part for part in PARTS if part in parts)
    if not decoder:
        return EncoderStart(start, parts)
    parts = tuple(part for part in parts if part != "decoder") or PARTS[:1]
    decoder_start = start_of(decoder, read_model(decoder, trust_code=trust_code), ["encoder"])
    check_vocabulary(start.vocabulary.hash, decoder_start.vocabulary.hash, location)
    return EncoderStart(start, parts, decoder_start)
