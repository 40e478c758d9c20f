"""The one protocol of mixers: x, a context and a kept state in; y and the new state out."""

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
    """All that mixers know besides x and their state; it goes down a stack whole.

    Masks are boolean, True = attend. T are the positions of x, S those that are attended.

    Attributes:
        mask: `(B, T)`, False at padding.
        attention_mask: over x itself, `(B, T)`, `(B, T, T)` or `(B, H, T, T)`.
        bias: makes the numbers added to scores, `(query_length, key_length, start) -> (..., T, S)`,
            `start` being the position of the first query, by default that of the last T of S.
        segment_ids: `(B, T)` int.
        documents: `(B, T)` int, the number of each position's document: no position sees another
            document's. `attention_mask` says so too; recurrences begin anew at a document.
        memory: `(B, S, D)`, that cross-attention attends.
        memory_mask: `(B, S)`.
        memory_keys: the memory's keys and values, instead of `memory`: see `project_memory`.
        positions: `(T,)` or `(B, T)` int, of x's tokens in their text; None = from 0 on, or behind
            the tokens of a cache that holds all of them.
        index: scalar int32, the position of x's first token in a cache of fixed room; None
            lengthens a cache that grows.
        held: `(T,)`, True at the places of a cache that hold a token. Such a cache is only read,
            and the new state has the new tokens' keys and values alone.
        two_streams: relative attention also returns its keys in its new state, for a second pass
            of queries (XLNet).
        query_positions: `(B, P, T)`, one-hot: in that second pass x is only these P of T positions.
        backward: `(B,)`, True of texts that are read from their end: distances change their signs.
        training: as in Keras; None = as the Keras layer that is being called.
        packing: x is `(N, D)`, without padding; mask and the rest are of the rows `(B, T)`.
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
    """A layer that mixes tokens or channels: `(B, T, D) -> (B, T, D)`.

    A subclass defines `mix`. Without a state that is the plain Keras call; with one it goes on
    from earlier tokens. A state comes from `init_cache` (token-by-token decoding: tensors
    `(B, K, ...)`, K hypotheses a row) or `init_memory` (earlier segments: tensors `(B, ...)`).

    Attributes:
        keeps_state: whether an output depends on earlier tokens, so that going on needs a state.
        can_prefill: whether `mix` takes many tokens at once into a decoding cache.
        takes_bias: whether there are scores that a bias can be added to.
        takes_queries: whether a query (XLNet's second stream) learns nothing of its own token.
        takes_packed: whether `mix` takes x without padding, see `Context.packing`.
        takes_held: whether `mix` takes a cache that it only reads, see `Context.held`.
        takes_documents: whether `mix` keeps documents apart, see `Context.documents`; one whose
            outputs need their own position only does.

    Call arguments: `x (B, T, D)`; the others, of which each mixer uses its own, as in `Context`:
    `mask` (or `x_mask`), Keras's padding mask; `attention_mask`, `attention_bias` (broadcasting to
    `(B, H, T, S)`), `segment_ids`, `memory` and `memory_mask`. Returns `(B, T, D)`.
    """

    keeps_state = True
    can_prefill = True
    takes_bias = False
    takes_queries = False
    takes_packed = False
    takes_held = False
    takes_documents = False

    def mix(self, x, context: Context, state=None) -> tuple[Any, Any]:
        """One pass over x.

        Args:
            x: `(B, T, D)`; in decoding `(B K, D)`, one token of each hypothesis (flat is faster:
                one matrix product where TensorFlow makes B small ones of rank 3), or
                `(B K, T, D)`, the next T tokens of each (prefill).
            context: masks and the rest.
            state: from `init_cache`, `init_memory` or the last call; None = x is all there is.

        Returns:
            An output of the shape of x, and the new state; None without a state.
        """
        raise NotImplementedError

    def init_cache(self, batch_size, beams: int, room: int | None) -> Any:
        """The state before the first token of K hypotheses: tensors `(B, K, ...)`.

        Args:
            batch_size: B. beams: K.
            room: T, fixed room for this many tokens, as XLA needs it; None = the cache grows with
                every token, which is faster elsewhere: empty positions are not attended.
        """
        raise SettingError(
            f"cached decoding with a {type(self).__name__} is not supported: it needs the whole "
            "sequence at once; take blocks that decode token by token, such as transformer, "
            "macaron or swish_rnn"
        )

    def init_memory(self, batch_size, length: int) -> Any:
        """The state before a text: tensors `(B, ...)`; attention keeps `length` = M positions."""
        raise SettingError(
            f"a memory of earlier segments with a {type(self).__name__} is not supported: it keeps "
            "none; set positions='transformer_xl'"
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
    """The conjunction of the given masks, whose shapes broadcast; None where none is given."""
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(ops.logical_and, given) if given else None
