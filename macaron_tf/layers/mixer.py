"""Base class `Mixer` of layers that mix tokens or channels, and the class `Context`."""

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
    """Inputs of a mixer besides x and the state. A stack passes the context to all its layers.

    Masks are boolean, with True = attend. Attention goes from T positions of x to S positions.

    Attributes:
        mask: padding mask `(B, T)`, False at padding.
        attention_mask: mask of self-attention, `(B, T)`, `(B, T, T)` or `(B, H, T, T)`.
        bias: function of `query_length`, `key_length` and `start` that returns a bias for the
            attention scores, `(..., T, S)`. `start` is the position of the first query. By default,
            the queries are the last T of the S positions.
        documents: int `(B, T)`, the document number of each position. No position sees another
            document. Attention layers rely on `attention_mask`, which must separate the documents
            too. Recurrent layers reset their state at the start of each document.
        memory: `(B, S, D)`, the vectors that cross-attention attends to.
        memory_mask: `(B, S)`, False at padding in the memory.
        memory_keys: keys and values of the memory from `project_memory`, which replace `memory`.
        positions: int `(T,)` or `(B, T)`, the text positions of the tokens in x. `None` means that
            positions count from 0 or, in cached decoding, from the number of cached tokens.
        index: scalar int32, the position at which x starts in a cache of fixed size. `None` means
            that the cache grows.
        cache_mask: boolean, one value for each position in the cache, True where the cache contains
            a token. With `cache_mask`, attention does not update its cache: its new state contains
            only the keys and values of the new tokens. A recurrence updates its state as usual.
        two_streams: whether relative attention also returns its keys and values with the new state.
            XLNet's query stream attends to these keys in a second pass.
        query_positions: one-hot `(B, P, T)`. In XLNet's second pass, x contains only P of the T
            positions, and this tensor marks the position of each query.
        backward: boolean `(B,)`, True for sequences that are read from the end of the text. The
            signs of distances are then reversed (XLNet).
        training: whether the layers train, as in Keras. `None` means the value of the enclosing
            layer's call.
        packing: the `Packing` of x if x is `(N, D)` without padding. Masks still have shape `(B,
            T)`.
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
    cache_mask: Any = None
    two_streams: bool = False
    query_positions: Any = None
    backward: Any = None
    training: bool | None = None
    packing: Packing | None = None


class Mixer(Recording, keras.layers.Layer):
    """Base class of layers that mix tokens or channels: `(B, T, D) -> (B, T, D)`.

    Subclasses define `mix`. Without a state, `mix` computes a whole sequence, as in a normal Keras
    call. With a state, `mix` continues from earlier tokens. The state before the first token comes
    from `init_cache` or `init_memory`. `init_cache` is for token-by-token decoding of K hypotheses
    per sequence, with tensors `(B, K, ...)`. `init_memory` is for texts that are processed in
    segments, with tensors `(B, ...)`.

    Attributes:
        keeps_state: whether outputs depend on earlier tokens, so that decoding needs a state.
        can_prefill: whether `mix` can add many tokens at once to a decoding cache.
        takes_bias: whether the layer has attention scores to which a bias can be added.
        takes_queries: whether XLNet's query stream can use the layer. A query must not see the
            token at its own position, so a layer of this type either is position-wise or attends to
            the content stream.
        takes_packed: whether `mix` accepts x without padding (see `Context.packing`).
        takes_cache_mask: whether `mix` accepts a read-only cache (see `Context.cache_mask`).
        takes_documents: whether `mix` separates documents (see `Context.documents`). A mixer
            without a state always separates documents.

    Call arguments:
        memory: `(B, S, D)`, the input of cross-attention.
        attention_mask: boolean mask of attention, True = attend (see `Context`).
        memory_mask: boolean `(B, S)`, False at padding in the memory.
        mask: Keras's padding mask of x, `(B, T)`, which is `x_mask` in calls with several tensors.
        padding_mask: the same mask under KerasHub's name, of any dtype.
        attention_bias: bias of the attention scores, which broadcasts to `(B, H, T, S)`.
        segment_ids: int `(B, T)`.

    A layer ignores the call arguments that it does not need.
    """

    input_rank: int | None = 3
    keeps_state = True
    can_prefill = True
    takes_bias = False
    takes_queries = False
    takes_packed = False
    takes_cache_mask = False
    takes_documents = False

    def mix(self, x, context: Context, state=None) -> tuple[Any, Any]:
        """Applies the layer, and returns the output, with the shape of x, and the new state.

        Without a `state`, the new state is `None` or has empty lists. With `Context.two_streams`,
        it is a pair in any case.

        Args:
            x: `(B, T, D)` for a whole text or a segment. In cached decoding, x is `(B K, D)` with
                one token per hypothesis, or `(B K, T, D)` with the next T tokens of each hypothesis
                (prefill). TensorFlow computes rank 2 faster, because rank 3 needs B small matrix
                products.
            state: state from `init_cache`, from `init_memory` or from the previous call. `None`
                means that x is the whole text.
        """
        raise NotImplementedError

    def init_cache(self, batch_size, beams: int, capacity: int | None) -> Any:
        """Returns the decoding state before the first token: tensors `(B, K, ...)`.

        `beams` is K. XLA requires a `capacity` in tokens. Without, the cache grows with every
        token, which is faster without XLA, because attention skips positions that are still empty.
        """
        raise SettingError(f"{type(self).__name__} has no cached decoding: define init_cache")

    def init_memory(self, batch_size, length: int) -> Any:
        """Returns the state before a text's first segment, `(B, ...)`, for `length` positions."""
        raise SettingError(f"{type(self).__name__} keeps no earlier segments: define init_memory")

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
        padding_mask=None,
    ):
        if padding_mask is not None:
            padding_mask = ops.cast(padding_mask, "bool")
        context = Context(
            mask=all_of(mask, x_mask, padding_mask),
            attention_mask=attention_mask,
            bias=None if attention_bias is None else lambda **lengths: attention_bias,
            segment_ids=segment_ids,
            memory=memory,
            memory_mask=memory_mask,
            training=training,
        )
        return self.mix(x, context)[0]


def all_of(*masks):
    """Combines masks by logical AND, ignoring `None`. If all are `None`, the result is `None`."""
    present = [mask for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, present) if present else None
