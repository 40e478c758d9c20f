"""Initializes a network with the weights of a pre-trained one, as every `--init` does."""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from macaron_tf.errors import UserError, needs_vocabulary
from macaron_tf.interop.arrays import assign
from macaron_tf.io import paths
from macaron_tf.models import Elmo, ElmoConfig, EncoderConfig, EncoderDecoderConfig, catalog
from macaron_tf.models.base import Model
from macaron_tf.models.config import FREE, SEQUENCE_BLOCKS, differing_fields, shape_of
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.tasks import ReadingModel, TaskModel
from macaron_tf.objectives import learnt
from macaron_tf.pretrained import Pretrained
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.words import CharacterWords

# Parts of an encoder-decoder that can be initialized with an encoder's weights.
PARTS = ("embeddings", "encoder", "decoder")
# Kinds of networks that a training can start from, and their names in messages.
KINDS = {
    "encoder": "an encoder",
    "pair": "an encoder-decoder",
    "reader": "a BART",  # or another whose task heads read the decoder's hidden states
    "writer": "a pre-trained T5 or BART",
    "words": "an ELMo",
}
# Parts that a pre-trained network and a task's network have in common.
_SHARED = ("encoder", "encoder_decoder", "pooler", "language_head")


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """The model, the vocabulary and the weights that a training starts from.

    Attributes:
        given: the value of `--init`.
        vocabulary: the vocabulary that tokenizes text for the model.
        model: name of the model in the catalog.
        model_options: pairs of a configuration field and a value, for fields that differ from the
            catalog.
        source: the pre-trained network; None: random initialization.
    """

    given: str
    vocabulary: PieceVocabulary
    model: str
    model_options: tuple = ()
    source: Pretrained | None = None

    @property
    def config(self) -> catalog.Config:
        """The model's configuration, with the size of the vocabulary."""
        options = {**dict(self.model_options), "vocab_size": self.vocabulary.size}
        return catalog.config(self.model, **options)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings for a recipe whose training begins with this start."""
        return {"init": self.given, "model": self.model, "model_options": self.model_options}

    @property
    def trained_length(self) -> int | None:
        """Length of the longest rows in pre-training; None: longer rows are fine as well."""
        # Sinusoids and T5's last bucket of distances cover any length.
        return self.source.trained_length if self.source and self.config.longest else None

    @property
    def languages(self) -> tuple[str, ...]:
        """Names of the model's languages, in the order of its language embeddings."""
        named = self.source.languages if self.source else ()
        return named or self.vocabulary.languages

    @property
    def label(self) -> str:
        """A short name for tables: of the folder, or if there is none of the model."""
        if not self.source:
            return self.model
        place = re.sub("^[a-z-]+:(?!//)", "", self.given).partition("@")[0]
        return paths.as_path(place).resolve().name

    def check(self, wanted: EncoderConfig | EncoderDecoderConfig | ElmoConfig) -> None:
        """Raises a UserError if the weights or the vocabulary do not fit a configuration."""
        if (wanted.summary == "last") != self.vocabulary.cls_last:
            ends, summary = ("end", "last") if self.vocabulary.cls_last else ("begin", "first")
            raise UserError(
                f"--init {self.given}: its vocabulary makes rows that {ends} with [CLS], which "
                f"model.summary={wanted.summary} does not read: give --set model.summary={summary}"
            )
        if self.source is not None:
            check_shapes(self.given, self.config, wanted)

    def copy_to(self, network: Model) -> list[str]:
        """Copies the weights into a built network.

        A task's network gets the encoder or encoder-decoder, the pooler and a language model's
        head; its other parts keep their values. In any other network, parts are matched by name.

        Returns:
            Names of the parts that keep their initial values.

        Raises:
            UserError: the shapes, the splitting schemes or the kinds of networks differ.
        """
        if self.source is None:
            return []
        theirs, task = self.source.network, isinstance(network, TaskModel)
        if isinstance(theirs, Elmo):
            network.encoder.take_over(theirs)
            return []
        if not task and network.config.splittings != self.source.config.splittings:
            raise _other_setting(self.given, "scheme", self.source.config, network.config)
        parts, own = {**_named(theirs), **_shared(theirs)}, _named(network)
        if task:
            parts, own = _shared(theirs, self.source.pooler), _shared(network)
        drawn = [name for name, weights in own.items() if not _fill(weights, parts.get(name, []))]
        if "encoder" in drawn or "encoder_decoder" in drawn:
            raise UserError(
                f"--init {self.given} is a {type(theirs).__name__}, whose weights do not fill the "
                f"encoder of a {type(network).__name__}: give a model of that kind"
            )
        if task and network.language_head and not self.source.starts:
            # GPT was pre-trained without [SEP], which fine-tuning puts between two texts.
            bias = ops.convert_to_numpy(network.language_head.weights[0]).copy()
            bias[self.vocabulary.sep_id] = 0.0
            assign(network.language_head.weights[0], bias)
        return drawn


def start_of(given: str, source: Pretrained, kinds: Collection[str]) -> Start:
    """Makes a `Start` from a loaded network.

    Args:
        given: the value of `--init`.
        source: the loaded network.
        kinds: the accepted kinds of networks, keys of `KINDS`.

    Raises:
        UserError: the network is of another kind or quantized, or has no vocabulary.
    """
    network, vocabulary = source.network, source.vocabulary
    config = network.config if isinstance(network, Model) else None
    if isinstance(config, EncoderDecoderConfig):
        found, own = "an encoder-decoder", {"pair"}
        if source.objective == "denoising" or isinstance(network, ReadingModel):
            own.add("reader")
        if learnt(source.objective).encoder_decoder:
            own.add("writer")
    elif isinstance(network, Elmo):
        found, own, vocabulary = "an ELMo", {"words"}, CharacterWords(config.max_characters)
    else:
        found, own = f"a {type(network).__name__}", {"encoder"}
    if not own & {*kinds} or not source.model:
        raise UserError(f"{given} is {found}: give {' or '.join(KINDS[kind] for kind in kinds)}")
    if vocabulary is None and given.endswith(".keras"):
        raise needs_vocabulary(given)
    if vocabulary is None:
        raise UserError(
            f"{given} has no tokenizer, or one of a kind that cannot be read here: give a BERT, "
            "RoBERTa, XLM, XLM-R, ALBERT, ELECTRA, XLNet, GPT, GPT-2, T5 or BART with its "
            "tokenizer's files"
        )
    source.require_floats()
    return Start(given, vocabulary, source.model, source.model_options, source)


def check_shapes(given: str, theirs, wanted, free: Collection[str] = FREE) -> None:
    """Raises a UserError if a configuration has weights of other shapes than the given ones.

    Args:
        given: the value of `--init`, for the message.
        theirs: the configuration of the weights.
        wanted: the configuration that the weights should fit.
        free: fields that may differ.
    """
    for name in differing_fields(theirs, wanted):
        if name not in free:
            raise _other_setting(given, name, theirs, wanted)


def _other_setting(given: str, name: str, theirs, wanted) -> UserError:
    return UserError(
        f"--init {given} needs model.{name}={getattr(theirs, name)!r}, not "
        f"{getattr(wanted, name)!r}: leave that setting out, or start from other weights"
    )


Weights = Sequence[keras.Variable]


def _shared(network: Model, pooler: keras.layers.Layer | None = None) -> Mapping[str, Weights]:
    """The weights of the parts in `_SHARED`; `pooler` replaces the network's own."""
    if isinstance(network, Encoder):
        parts = {"encoder": network}
    elif isinstance(network, EncoderDecoder):
        parts = {"encoder_decoder": network}
    else:
        parts = {name: getattr(network, name) for name in _SHARED}
    parts["pooler"] = pooler or parts.get("pooler")
    return {name: part.weights for name, part in parts.items() if part is not None}


def _named(network: Model) -> Mapping[str, Weights]:
    """A network's weights, by the name of the top-level layer, or of a weight outside layers."""
    parts: dict[str, list[keras.Variable]] = {}
    for weight in network.weights:
        parts.setdefault(weight.path.split("/")[1], []).append(weight)
    return parts


def _fill(weights: Weights, theirs: Weights) -> bool:
    """Sets the weights of a part, in order, or by name if their number differs.

    Returns:
        Whether all weights are set.
    """
    found: Sequence = theirs
    if len(theirs) != len(weights):
        named = {weight.path.partition("/")[2]: weight for weight in theirs}
        found = [named.get(weight.path.partition("/")[2]) for weight in weights]
    for weight, value in zip(weights, found, strict=True):
        if value is not None:
            assign(weight, ops.convert_to_numpy(value))
    return all(value is not None for value in found)


def config_from_encoder(
    config: EncoderConfig, base: EncoderDecoderConfig, parts: Sequence[str]
) -> EncoderDecoderConfig:
    """Makes the configuration of an encoder-decoder that an encoder's weights fit.

    Args:
        config: the encoder's configuration.
        base: the configuration that gives the dropout rates, and the depth of stacks that are not
            in `parts`.
        parts: those of `PARTS` that are initialized with the encoder's weights; the embeddings
            always are.

    Raises:
        ValueError: no encoder-decoder can have the encoder's weights.
    """
    for field, plain in (("embedding_dim", config.hidden_dim), ("sharing", "none")):
        value = getattr(config, field)
        if value not in (None, plain):
            raise ValueError(f"{field}={value!r}: an encoder-decoder has {field}={plain!r} only")
    others = config.without_attention
    if others or config.positions == "transformer_xl" or not config.affine:
        found = f"block={others[0]!r}" if others else f"positions={config.positions!r}"
        found = found if config.affine else "affine=False"
        raise ValueError(
            f"{found}: an encoder-decoder has only blocks {', '.join(SEQUENCE_BLOCKS)}, "
            "LayerNorms with a scale, and no Transformer-XL attention over segments"
        )
    depths = {
        f"num_{part}_layers": config.num_layers for part in ("encoder", "decoder") if part in parts
    }
    return dataclasses.replace(
        base,
        vocab_size=config.vocab_size,
        **shape_of(config),
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
    """Copies an encoder's weights into the encoder and the decoder of an encoder-decoder.

    Args:
        network: a network of the configuration that `config_from_encoder` makes.
        encoder: the encoder whose weights are copied.
        parts: those of `PARTS` that get them; the embeddings always do.
        languages: rows of the encoder's language embeddings, for the source and the target.
    """
    own = encoder.embeddings
    network.embedding.table.assign(own.tokens.matrix("float32"))
    sides = (network.source_embeddings, network.target_embeddings)
    for side, language in zip(sides, languages, strict=True):
        for layer, theirs in (
            (side.position_layer, own.position_layer),
            (side.layer_norm, own.layer_norm),
        ):
            if layer:
                layer.set_weights(theirs.get_weights())
        if side.languages is not None:
            # Of an encoder, the vectors of the language and of segment 0 are added to every token.
            order = [language, *(other for other in languages if other != language)]
            order = (order * 2)[: side.languages.shape[0]]
            vectors = [
                ops.take(table, rows, axis=0)  # (1 or 2, D)
                for table, rows in ((own.languages, order), (own.segments, [0] * len(order)))
                if table is not None
            ]
            if vectors:
                side.languages.assign(sum(vectors))
    for name in ("encoder", "decoder"):
        if name in parts:
            getattr(network, name).copy_from(encoder.stack)
