"""The weights of a Transformer encoder, from wherever they come, and the way into our models."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.assign import (
    assign,
    assign_attention,
    assign_dense,
    assign_norm,
)
from macaron_tf.models.pretraining import PretrainingEncoder
from macaron_tf.models.tasks import EncoderClassifier

# kernel (inputs, outputs), bias (outputs,)
Dense = tuple[np.ndarray, np.ndarray]
# scale (D,), offset (D,)
Norm = tuple[np.ndarray, np.ndarray]

# Tables end at a multiple of 8 rows, and the last ones may be nobody's: with this bias their
# softmax is 0 and that of the others what it was. In float16 there is no -1e5.
UNUSED_TOKEN_BIAS = -1e4
# What all of these encoders have, and what ours needs to be for their weights.
_REQUIRED = {
    "block": "transformer",
    "norm": "post",
    "positions": "learned",
    "relative_bias": "none",
    "affine": True,
    "causal": False,
    "norm_type": "layer",
    "embedding_norm": True,
    "use_bias": True,
    "gated": False,
    "head_dim": None,
    "scaled": True,
}


class EncoderArrays(Protocol):
    """One library's arrays by its own paths; a UserError names what is not there."""

    def array(self, path: str) -> np.ndarray:
        """A table or a bias alone."""

    def dense(self, path: str) -> Dense:
        """A linear layer."""

    def norm(self, path: str) -> Norm:
        """A LayerNorm."""


@dataclasses.dataclass(frozen=True)
class EncoderPaths:
    """Where a library keeps the parts of an encoder.

    Attributes:
        tokens, positions: tables. segments, languages: None where there are none.
        norm: of the embeddings.
        layer: before the parts of a layer; there as in the parts `{}` stands for its number.
        query, key, value, output, inner, outer, attention_norm, feed_forward_norm: within a layer.
        projection: of the embeddings to the layers' width, where the widths differ.
        first_layer: number of the first layer.
    """

    tokens: str
    positions: str
    segments: str | None
    norm: str
    layer: str
    query: str
    key: str
    value: str
    output: str
    inner: str
    outer: str
    attention_norm: str
    feed_forward_norm: str
    languages: str | None = None
    projection: str | None = None
    first_layer: int = 0


@dataclasses.dataclass(frozen=True)
class EncoderLayerWeights:
    """One Transformer layer of width D and inner width F."""

    query: Dense
    key: Dense
    value: Dense
    output: Dense
    inner: Dense
    outer: Dense
    attention_norm: Norm
    feed_forward_norm: Norm


@dataclasses.dataclass(frozen=True)
class MaskedLanguageWeights:
    """The head over masked tokens.

    Attributes:
        dense, norm: of its transformation; None where it has none.
        bias: `(V,)`.
        options: of our head, where its settings are not the encoder's.
    """

    dense: Dense | None
    norm: Norm | None
    bias: np.ndarray
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class EncoderWeights:
    """An encoder's weights and what there is on top of it.

    Attributes:
        tokens: `(V, E)`. positions: `(max_length, E)`.
        segments: `(num_segments, E)`. languages: `(num_languages, E)`. None where there are none.
        norm: of the embeddings. layers: first to last; one and the same where they share weights.
        projection: `(E, D)` and its bias; None where E = D.
        pooler, masked_language, sentence_pair: None where there is none.
        replaced_token: the two linear layers of ELECTRA's discriminator, or None.
    """

    tokens: np.ndarray
    positions: np.ndarray
    segments: np.ndarray | None
    norm: Norm
    layers: Sequence[EncoderLayerWeights]
    languages: np.ndarray | None = None
    projection: Dense | None = None
    pooler: Dense | None = None
    masked_language: MaskedLanguageWeights | None = None
    sentence_pair: Dense | None = None
    replaced_token: tuple[Dense, Dense] | None = None


def read_weights(
    arrays: EncoderArrays, paths: EncoderPaths, num_layers: int, **heads
) -> EncoderWeights:
    """Collects an encoder's weights.

    Args:
        arrays: where they are.
        paths: by which names; a part whose name is None is not looked for.
        num_layers: how many layers.
        heads: further fields of the `EncoderWeights`.

    Raises:
        UserError: one is missing; the sentence names it.
    """

    def layer(number: int) -> EncoderLayerWeights:
        parts = {}
        for field in dataclasses.fields(EncoderLayerWeights):
            read = arrays.norm if field.name.endswith("norm") else arrays.dense
            path = f"{paths.layer}/{getattr(paths, field.name)}".removeprefix("/")
            parts[field.name] = read(path.format(number))
        return EncoderLayerWeights(**parts)

    return EncoderWeights(
        tokens=arrays.array(paths.tokens),
        positions=arrays.array(paths.positions),
        segments=arrays.array(paths.segments) if paths.segments else None,
        languages=arrays.array(paths.languages) if paths.languages else None,
        norm=arrays.norm(paths.norm),
        projection=arrays.dense(paths.projection) if paths.projection else None,
        layers=[layer(paths.first_layer + number) for number in range(num_layers)],
        **heads,
    )


def assign_encoder(model: PretrainingEncoder | EncoderClassifier, weights: EncoderWeights) -> None:
    """Sets a model to these weights; heads that either side lacks are left alone.

    The model may have up to 7 more tokens, whose embeddings become 0 and whose scores -10,000.

    Raises:
        UserError: the model is of another kind, or a shape differs; the sentence names the weight.
    """
    config = model.config
    for field, needed in _REQUIRED.items():
        if getattr(config, field) != needed:
            raise UserError(
                f"these weights do not fit a model with {field}={getattr(config, field)!r}: it "
                f"must be {needed!r}."
            )
    if config.num_layers != len(weights.layers):
        raise UserError(
            f"the weights to be read have {len(weights.layers)} layers and the model has "
            f"num_layers={config.num_layers}."
        )
    shared = all(layer.inner[1] is weights.layers[0].inner[1] for layer in weights.layers)
    if config.sharing != "none" and not shared:
        raise UserError(
            "the weights to be read are each layer's own: they do not fit a model with "
            f"sharing={config.sharing!r}."
        )
    if not model.built:
        model.build()
    _assign_embeddings(model.encoder, weights)
    for block, layer in zip(model.encoder.stack.blocks, weights.layers, strict=True):
        _assign_layer(block, layer)
    if weights.pooler and model.pooler:
        assign_dense(model.pooler.dense, [weights.pooler])
    if weights.masked_language and isinstance(model, PretrainingEncoder):
        head, theirs = model.masked_language, weights.masked_language
        if theirs.dense:
            assign_dense(head.dense, [theirs.dense])
            assign_norm(head.norm, theirs.norm)
        assign(head.bias, padded(theirs.bias, config.vocab_size, UNUSED_TOKEN_BIAS))
    if weights.sentence_pair and isinstance(model, PretrainingEncoder) and model.sentence_pair:
        assign_dense(model.sentence_pair.dense, [weights.sentence_pair])


def _assign_embeddings(encoder, weights: EncoderWeights) -> None:
    ours = encoder.embeddings
    assign(ours.tokens.table, padded(weights.tokens, ours.vocab_size))
    assign(ours.position_layer.table, weights.positions)
    for name in ("segments", "languages"):
        variable, rows = getattr(ours, name), getattr(weights, name)
        if (variable is None) != (rows is None):
            raise UserError(
                f"the weights to be read have {0 if rows is None else len(rows)} {name} and the "
                f"model has num_{name}={getattr(ours, f'num_{name}')}."
            )
        if rows is not None:
            assign(variable, rows)
    assign_norm(ours.layer_norm, weights.norm)
    if (encoder.projection is None) != (weights.projection is None):
        raise UserError(
            "embeddings of another width than the layers' need a projection, which only one of the "
            "model and the weights to be read has: check the model's embedding_dim."
        )
    if weights.projection:
        assign_dense(encoder.projection, [weights.projection])


def _assign_layer(block, weights: EncoderLayerWeights) -> None:
    attention, feed_forward = block.attention_0, block.feed_forward_1
    assign_attention(attention.sublayer, lambda part: getattr(weights, part))
    assign_norm(attention.layer_norm, weights.attention_norm)
    assign_dense(feed_forward.sublayer.inner, [weights.inner])
    assign_dense(feed_forward.sublayer.outer, [weights.outer])
    assign_norm(feed_forward.layer_norm, weights.feed_forward_norm)


def padded(rows: np.ndarray, size: int, value: float = 0.0) -> np.ndarray:
    """Rows `(V', ...)` with up to 7 more of `value`, to `size`; unchanged where that is not so."""
    missing = size - len(rows)
    if not 0 < missing < 8:
        return rows
    filling = np.full((missing, *rows.shape[1:]), value, rows.dtype)
    return np.concatenate([rows, filling])
