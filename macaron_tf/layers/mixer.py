"""`Mixer`, the interface of all layers that mix tokens or channels, and its `Context`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from macaron_tf.layers.packing import Packing
from macaron_tf.layers.recording import Recording
from macaron_tf.settings import SettingError


@dataclasses.dataclass(frozen=True)
class Context:
    """What a mixer reads besides x and its state; a stack passes it to all of its layers.

    Masks are boolean, True = attend. T positions of x attend S positions.

    Attributes:
        mask: `(B, T)`, False at padding.
        attention_mask: mask of self-attention, `(B, T)`, `(B, T, T)` or `(B, H, T, T)`.
        bias: function of `query_length`, `key_length` and `start` that returns numbers to add to
            the scores, `(..., T, S)`. `start` is the position of the first query; by default the
            queries are the last T of the S positions.
        segment_ids: `(B, T)` int.
        documents: `(B, T)` int, the number of each position's document. No position sees another
            document: attention by `attention_mask`, which says the same, and recurrences because
            their state restarts at each document.
        memory: `(B, S, D)`, the vectors that cross-attention attends.
        memory_mask: `(B, S)`.
        memory_keys: keys and values of the memory, which replace `memory`; see `project_memory`.
        positions: `(T,)` or `(B, T)` int, positions of x's tokens in their text. None: they count
            from 0, or from the number of tokens in a cache that holds all earlier ones.
        index: scalar int32, the position of x's first token in a cache of fixed size; None: the
            cache grows.
        held: `(T,)`, True where the cache holds a token. A mixer only reads such a cache, and its
            new state has the keys and values of the new tokens only.
        two_streams: whether the new state of relative attention also has its keys, which the
            queries of a second pass attend (XLNet).
        query_positions: `(B, P, T)`, one-hot: in the second pass x has these P of T positions only.
        backward: `(B,)`, True for texts that are read from their end, which reverses the signs of
            distances.
        training: see Keras; None: the value of the enclosing layer's call.
        packing: set if x is `(N, D)`, without padding; masks still are those of rows `(B, T)`.
    """

    mask: Any = None
    attention_mask: Any = None
    bias: Callable | None = None
    segment_ids: Any = None
    documents: Any = None
    memory: Any = None
    memory_mask: Any = None
    memory_keys: Any = None
    positions: Any = None
    index: Any = None
    held: Any = None
    two_streams: bool = False
    query_positions: Any = None
    backward: Any = None
    training: bool | None = None
    packing: Packing | None = None

    def replace(self, **fields) -> "Context":
        return dataclasses.replace(self, **fields)


class Mixer(Recording, keras.layers.Layer):
    """Base class of layers that mix tokens or channels: `(B, T, D) -> (B, T, D)`.

    Subclasses define `mix`. Without a state it is a normal Keras call; with one it continues from
    earlier tokens. States come from `init_cache`, for token-by-token decoding of K hypotheses per
    row (tensors `(B, K, ...)`), or from `init_memory`, for earlier segments (tensors `(B, ...)`).

    Attributes:
        keeps_state: whether outputs depend on earlier tokens, so that continuing needs a state.
        can_prefill: whether `mix` can add many tokens at once to a decoding cache.
        takes_bias: whether there are attention scores to which a bias can be added.
        takes_queries: whether queries, XLNet's second stream, do not see their own token.
        takes_packed: whether `mix` takes x without padding, see `Context.packing`.
        takes_held: whether `mix` takes a read-only cache, see `Context.held`.
        takes_documents: whether `mix` keeps documents apart, see `Context.documents`. Mixers
            without a state need not.

    Call arguments: `x (B, T, D)`, and those of the following that the mixer uses: `mask` (or
    `x_mask`), Keras's padding mask; `attention_mask`; `attention_bias`, which broadcasts to
    `(B, H, T, S)`; `segment_ids`; `memory` and `memory_mask`. See `Context`. Returns `(B, T, D)`.
    """

    keeps_state = True
    can_prefill = True
    takes_bias = False
    takes_queries = False
    takes_packed = False
    takes_held = False
    takes_documents = False

    def mix(self, x, context: Context, state=None) -> tuple[Any, Any]:
        """Applies the layer.

        Args:
            x: `(B, T, D)`. While decoding: `(B K, D)`, one token per hypothesis (faster than rank
                3, which TensorFlow multiplies by B small matrix products), or `(B K, T, D)`, the
                next T tokens of each hypothesis (prefill).
            context: masks and everything else, see `Context`.
            state: from `init_cache`, `init_memory` or the previous call; None: x is the whole text.

        Returns:
            An output of x's shape, and the new state, None if `state` is.
        """
        raise NotImplementedError

    def init_cache(self, batch_size, beams: int, room: int | None) -> Any:
        """Returns the decoding state before the first token of K hypotheses: tensors `(B, K, ...)`.

        Args:
            batch_size: B.
            beams: K.
            room: T, the number of tokens that a cache of fixed size holds, as XLA needs it. None:
                the cache grows with every token, which is faster without XLA, because no empty
                positions are attended.
        """
        raise SettingError(
            f"cached decoding with a {type(self).__name__} is not supported, because it needs the "
            "whole sequence at once: take blocks that decode token by token, such as transformer, "
            "macaron or swish_rnn"
        )

    def init_memory(self, batch_size, length: int) -> Any:
        """Returns the state before a text: tensors `(B, ...)`.

        Args:
            batch_size: B.
            length: M, the number of positions that attention remembers.
        """
        raise SettingError(
            f"a {type(self).__name__} keeps no memory of earlier segments: set "
            "positions='transformer_xl'"
        )

    def call(
        self,
        x,
        memory=None,
        attention_mask=None,
        memory_mask=None,
        mask=None,
        x_mask=None,
        attention_bias=None,
        segment_ids=None,
        training=None,
    ):
        context = Context(
            mask=all_of(mask, x_mask),
            attention_mask=attention_mask,
            bias=None if attention_bias is None else lambda **lengths: attention_bias,
            segment_ids=segment_ids,
            memory=memory,
            memory_mask=memory_mask,
            training=training,
        )
        return self.mix(x, context)[0]


def all_of(*masks):
    """The conjunction of the given masks, whose shapes broadcast; None if all are None."""
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, given) if given else None
