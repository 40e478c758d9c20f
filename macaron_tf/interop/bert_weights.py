"""The weights of a BERT, from wherever they come, and the way into our models."""

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
from macaron_tf.models.classifier import EncoderClassifier
from macaron_tf.models.pretraining import PretrainingEncoder

# kernel (inputs, outputs), bias (outputs,)
Dense = tuple[np.ndarray, np.ndarray]
# scale (D,), offset (D,)
Norm = tuple[np.ndarray, np.ndarray]

# Tables end at a multiple of 8 rows, and the last ones may be nobody's: with this bias their
# softmax is 0 and that of the others what it was. In float16 there is no -1e5.
UNUSED_TOKEN_BIAS = -1e4
# What BERT has, and what our encoder needs to be for its weights.
_BERT = {
    "block": "transformer",
    "norm": "post",
    "positions": "learned",
    "relative_bias": "none",
    "affine": True,
}


class BertArrays(Protocol):
    """One library's arrays by its own paths; a UserError names what is not there."""

    def array(self, path: str) -> np.ndarray:
        """A table or a bias alone."""

    def dense(self, path: str) -> Dense:
        """A linear layer."""

    def norm(self, path: str) -> Norm:
        """A LayerNorm."""


@dataclasses.dataclass(frozen=True)
class BertPaths:
    """Where a library keeps the parts of a BERT encoder.

    Attributes:
        tokens, positions, segments: tables.
        norm: of the embeddings.
        layer: of a layer, `{}` standing for its number.
        query, key, value, output, inner, outer, attention_norm, feed_forward_norm: within a layer.
        first_layer: number of the first layer.
    """

    tokens: str
    positions: str
    segments: str
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
    first_layer: int = 0


@dataclasses.dataclass(frozen=True)
class BertLayerWeights:
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
    """The head over masked tokens: its transformation, LayerNorm and bias `(V,)`.

    Attributes:
        options: of `PretrainingEncoder`, where its settings are not the encoder's.
    """

    dense: Dense
    norm: Norm
    bias: np.ndarray
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class BertWeights:
    """An encoder's weights and what there is on top of it.

    Attributes:
        tokens: `(V, D)`. positions: `(max_length, D)`. segments: `(num_segments, D)`.
        norm: of the embeddings. layers: first to last.
        pooler, masked_language, next_sentence: None where there is none.
    """

    tokens: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    norm: Norm
    layers: Sequence[BertLayerWeights]
    pooler: Dense | None = None
    masked_language: MaskedLanguageWeights | None = None
    next_sentence: Dense | None = None


def read_weights(arrays: BertArrays, paths: BertPaths, num_layers: int, **heads) -> BertWeights:
    """Collects an encoder's weights.

    Args:
        arrays: where they are.
        paths: by which names.
        num_layers: how many layers.
        heads: `pooler`, `masked_language` and `next_sentence` of the `BertWeights`.

    Raises:
        UserError: one is missing; the sentence names it.
    """

    def layer(number: int) -> BertLayerWeights:
        prefix = paths.layer.format(number)
        parts = {}
        for field in dataclasses.fields(BertLayerWeights):
            read = arrays.norm if field.name.endswith("norm") else arrays.dense
            parts[field.name] = read(f"{prefix}/{getattr(paths, field.name)}")
        return BertLayerWeights(**parts)

    return BertWeights(
        tokens=arrays.array(paths.tokens),
        positions=arrays.array(paths.positions),
        segments=arrays.array(paths.segments),
        norm=arrays.norm(paths.norm),
        layers=[layer(paths.first_layer + number) for number in range(num_layers)],
        **heads,
    )


def assign_bert(model: PretrainingEncoder | EncoderClassifier, weights: BertWeights) -> None:
    """Sets a model to these weights; heads that either side lacks are left alone.

    The model may have up to 7 more tokens, whose embeddings become 0 and whose scores -10,000.

    Raises:
        UserError: the model is no BERT, or a shape differs; the sentence names the weight.
    """
    config = model.config
    for field, needed in _BERT.items():
        if getattr(config, field) != needed:
            raise UserError(
                f"BERT's weights do not fit a model with {field}={getattr(config, field)!r}: it "
                f"must be {needed!r}."
            )
    if config.num_layers != len(weights.layers):
        raise UserError(
            f"BERT's weights have {len(weights.layers)} layers and the model has "
            f"num_layers={config.num_layers}."
        )
    if not model.built:
        model.build()
    _assign_embeddings(model.encoder.embeddings, weights)
    for block, layer in zip(model.encoder.stack.blocks, weights.layers, strict=True):
        _assign_layer(block, layer)
    if weights.pooler and model.pooler:
        assign_dense(model.pooler.dense, [weights.pooler])
    if weights.masked_language and isinstance(model, PretrainingEncoder):
        head, theirs = model.masked_language, weights.masked_language
        assign_dense(head.dense, [theirs.dense])
        assign_norm(head.norm, theirs.norm)
        assign(head.bias, padded(theirs.bias, config.vocab_size, UNUSED_TOKEN_BIAS))
    if weights.next_sentence and isinstance(model, PretrainingEncoder) and model.next_sentence:
        assign_dense(model.next_sentence.dense, [weights.next_sentence])


def _assign_embeddings(embeddings, weights: BertWeights) -> None:
    assign(embeddings.tokens.table, padded(weights.tokens, embeddings.vocab_size))
    assign(embeddings.position_layer.table, weights.positions)
    if embeddings.segments is None:
        raise UserError("BERT's weights do not fit a model with num_segments=0.")
    assign(embeddings.segments, weights.segments)
    assign_norm(embeddings.norm, weights.norm)


def _assign_layer(block, weights: BertLayerWeights) -> None:
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
