"""Token-by-token decoding in LiteRT, with float32 or int8 weights.

A decoding step spends most of its time on reading all weights once. With float32 weights, LiteRT
decodes GPT-2 1.8 times as fast as a TensorFlow graph, and int8 weights take a quarter of the bytes.

The LiteRT file has a function that decodes one token for any number of texts. It also has functions
that prefill the caches from parts of prompts, or that encode source texts. All functions share one
set of weights. The key and value caches are inputs that stay in the interpreter's memory. The
functions return only the keys and values of new tokens, which are then written into the caches in
place. A cache is copied only when it grows, when beam search reorders its rows, or when another
search uses the interpreter.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import tempfile
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from macaron_tf.engines.graph import Functions, traced, under_policy
from macaron_tf.engines.lite import DECODER, LiteFile
from macaron_tf.engines.lite_writer import ROWS, lite_file
from macaron_tf.errors import UserError
from macaron_tf.io.paths import refuse_damage
from macaron_tf.kernels import implementation_scope
from macaron_tf.models import EncoderDecoder, LanguageModel
from macaron_tf.models.stack import Stack
from macaron_tf.special import Special
from macaron_tf.tasks.base import require

RECORD = "decode.json"
# Prefill reads prompts in parts of these lengths. A shorter part is padded to the next length.
_CHUNKS = (16, 64, 256)
# A full cache is copied into a cache with this many more positions. Each step reads the whole
# cache, so the number is small: for 128 rows of width 512 in int8, a step takes 24 ms of CPU time
# with 16 positions and 34 ms with 64.
_CAPACITY_MULTIPLE = 16
_SPLIT_BYTES = 2**22
# `Interpreter.invoke` runs the first function of the file, so "decode" must sort first.
_DECODE, _ENCODE = "decode", "encode"


def write_decoder(
    network: LanguageModel | EncoderDecoder,
    folder: pathlib.Path,
    precision: str,
    threads: int | None = None,
) -> "LiteDecoder":
    """Converts the decoding of a network to LiteRT in `folder`, and opens the written files.

    `precision` is `"fp32"` or `"int8"`, as in `write_lite`; see `LiteDecoder` for `threads`.
    """
    decodes = isinstance(network, LanguageModel | EncoderDecoder)
    if not (decodes and _decoder(network).takes_cache_mask):
        parts = "windows, attention biases, relative positions or blocks without a cache"
        raise UserError(f"LiteRT cannot decode with {parts}: omit with_lite (--lite)")
    with under_policy(network, "float32", "LiteRT: the network"), implementation_scope("loop"):
        functions, caches, sizes = _functions(network)
        contents = lite_file(dict(sorted(functions.items())), network, precision)
    (folder / DECODER).write_bytes(contents)
    config = network.config
    special = config.special if isinstance(network, EncoderDecoder) else Special()
    record = {
        "kind": precision,
        "rows": ROWS[precision],
        "caches": caches,
        "sizes": sizes,
        "vocab_size": config.vocab_size,
        "longest": config.longest,
        "special": dataclasses.asdict(special),
    }
    (folder / RECORD).write_text(json.dumps(record) + "\n")
    return LiteDecoder(folder, threads)


def convert_decoder(
    network: LanguageModel | EncoderDecoder, precision: str, threads: int | None = None
) -> "LiteDecoder":
    """Converts the decoding of a network to LiteRT in memory (see `write_decoder`)."""
    with tempfile.TemporaryDirectory() as folder:
        # The interpreter memory-maps the file, which stays readable after its removal.
        return write_decoder(network, pathlib.Path(folder), precision, threads)


def _decoder(network: LanguageModel | EncoderDecoder) -> Stack:
    return network.decoder if isinstance(network, EncoderDecoder) else network.encoder.stack


def _functions(
    network: LanguageModel | EncoderDecoder,
) -> tuple[Functions, list[list[int]], list[int]]:
    """Traces the functions that decode with a network, for any cache length.

    Returns the functions; the shape of each state tensor for one text, with -1 for the cache
    length; and the lengths of the prompt parts that the prefill functions read. There are none for
    a recurrence: prefill passes no padding mask, so padding would change its state.
    """
    small, large = (_decoder(network).init_cache(1, 1, capacity) for capacity in (2, 3))
    caches = [
        [-1 if m != n else m for m, n in zip(a.shape, b.shape, strict=True)][1:]
        for a, b in zip(*map(tf.nest.flatten, (small, large)), strict=True)
    ]

    def state(rows: int | None) -> dict[str, tf.TensorSpec]:
        shapes = ([rows, *(n if n > 0 else None for n in shape)] for shape in caches)
        specs = _numbered("cache", map(tf.TensorSpec, shapes))
        return {"index": _int32(), "held": tf.TensorSpec((None,), tf.bool), **specs}

    def cache(tensors: Mapping[str, tf.Tensor]) -> dict[str, Any]:
        return {"fixed": tf.nest.pack_sequence_as(small, _in_order(tensors, "cache_"))}

    def decode(tokens, index, held, **tensors):
        context: dict[str, Any] = {"cache_mask": held}
        if isinstance(network, EncoderDecoder):
            keys = tf.nest.pack_sequence_as(memory, _in_order(tensors, "memory_0"))
            rows = {"memory_keys": keys, "memory_mask": tensors["memory_mask"]}
            context |= {"rows": rows, "kernel": None, "backward": False}
        logits, new = network.decode_step(tokens, index, context, cache(tensors))
        return {"logits": logits[:, 0], **_numbered("new", tf.nest.flatten(new))}

    def prefill(tokens, index, held, **tensors):
        new = network.prefill(tokens, index, {"cache_mask": held}, cache(tensors))
        return _numbered("new", tf.nest.flatten(new))

    def encode(source):
        keys = network.decoder.project_memory(network.encode(source, training=False))
        return _numbered("memory", tf.nest.flatten(keys))

    token = {"tokens": _int32(None, 1), **state(None)}
    if isinstance(network, EncoderDecoder):
        # Attention keys and values of two dummy tokens, for the structure and the shapes.
        memory = network.decoder.project_memory(tf.zeros((1, 2, network.config.hidden_dim)))
        parts = (
            tf.TensorSpec((None, part.shape[1], None, part.shape[3]))
            for part in tf.nest.flatten(memory)
        )
        token |= {**_numbered("memory", parts), "memory_mask": tf.TensorSpec((None, None), tf.bool)}
        encoder = _trace(encode, {"source": _int32(None, None)})
        return {_DECODE: _trace(decode, token), _ENCODE: encoder}, caches, []
    longest = network.config.longest
    chunks = _CHUNKS if all(-1 in shape for shape in caches) else ()
    sizes = [size for size in chunks if longest is None or size <= longest]
    functions = {_DECODE: _trace(decode, token)}
    for size in sizes:
        functions[f"prefill_{size}"] = _trace(prefill, {"tokens": _int32(1, size), **state(1)})
    return functions, caches, sizes


def _int32(*shape: int | None) -> tf.TensorSpec:
    return tf.TensorSpec(shape, tf.int32)


def _trace(function: Callable, specs: dict[str, tf.TensorSpec]):
    named_specs = {n: tf.TensorSpec(spec.shape, spec.dtype, n) for n, spec in specs.items()}
    return traced(function, **named_specs)


def _numbered(name: str, parts: Iterable[Any]) -> dict[str, Any]:
    return {f"{name}_{index:03}": part for index, part in enumerate(parts)}


def _in_order(tensors: Mapping[str, Any], start: str) -> list[Any]:
    return [tensors[name] for name in sorted(tensors) if name.startswith(start)]


@dataclasses.dataclass
class _Search:
    """State of one search over R texts.

    Attributes:
        filled: number of tokens per text in the caches.
        caches: filled parts of the caches, each of shape `(R, ...)`. The list is empty before the
            first token and while the interpreter holds the caches.
        memory: keys and values for B sources, each of shape `(B, H, S, d)` with H heads, source
            length S and head size d. The list is empty for a language model.
        source_mask: mask of the sources, booleans `(B, S)` with False at padding.
        sources: indices of the sources whose keys and values the interpreter holds; `None` means
            that the interpreter holds no sources of this search.
    """

    filled: int = 0
    caches: list[np.ndarray] = dataclasses.field(default_factory=list)
    memory: list[np.ndarray] = dataclasses.field(default_factory=list)
    source_mask: np.ndarray | None = None
    sources: np.ndarray | None = None


class LiteDecoder(LiteFile):
    """Decoder in LiteRT, loaded from the files that `write_decoder` writes.

    `generate`, `beam_search`, `TextGenerator` and `LineTranslator` accept a `LiteDecoder` in place
    of a network. Their graphs then call Python functions of this process, so the graphs cannot be
    saved.

    A search that begins outside a graph is a stream. Streams may alternate with each other and with
    a search in a graph, also from several threads. The caches of a stream are freed together with
    the stream's context. Searches in graphs must run one after the other, each within a `with`
    block of `alone`.

    Args:
        threads: see `LiteFile`. A file below 4 MiB gets one thread.

    Attributes:
        can_prefill: whether `prefill` reads several prompt tokens at once.
    """

    def __init__(self, folder: str | os.PathLike, threads: int | None = None):
        fields: dict[str, type] = {"caches": list, "sizes": list, "vocab_size": int}
        super().__init__(folder, DECODER, RECORD, threads, _SPLIT_BYTES, **fields)
        record = self._record
        self._shapes, self._sizes = record["caches"], record["sizes"]
        self.config = types.SimpleNamespace(
            vocab_size=record["vocab_size"],
            longest=record["longest"],
            special=Special.of(record["special"]),
        )
        with refuse_damage(self._path, "export the model again"):
            runner = self._interpreter.get_signature_runner(_DECODE)
        details = runner.get_input_details()
        self._inputs = {name: detail["index"] for name, detail in details.items()}
        self._heads = {
            detail["index"]: detail["shape_signature"][[1, 3]].tolist()
            for name, detail in details.items()
            if name.startswith("memory_0")
        }
        self._outputs = {n: d["index"] for n, d in runner.get_output_details().items()}
        self._caches = _in_order(self._inputs, "cache_")
        self._memory = _in_order(self._inputs, "memory_0")
        self._new = _in_order(self._outputs, "new_")
        self.can_prefill, self.reads_sources = bool(self._sizes), bool(self._memory)
        self._graph_lock = threading.Lock()
        self._copy_pool = concurrent.futures.ThreadPoolExecutor(self._threads)
        self._searches: dict[int, _Search] = {}
        # Ids of the latest search, of the search whose caches the interpreter holds, and of the
        # latest search in a graph. The id 0 stands for no search.
        self._last_search = self._loaded_search = self._graph_search = 0
        self._num_rows = self._capacity = 0  # rows and positions of the interpreter's caches

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Waits for other threads in this block, at whose end a graph search's caches are freed."""
        with self._graph_lock:
            try:
                yield
            finally:
                self._searches.pop(self._graph_search, None)

    # A search calls the next three methods, in a graph or eagerly.

    def init_decode(self, source: Any, beams: int, max_length: int | None = None):
        """Starts a search with `beams` texts per row (see `EncoderDecoder.init_decode`).

        `source` is the batch size B for a language model, or ids `(B, S)`. The caches grow.
        """
        del max_length
        if self._memory and self.config.longest is not None:
            problem = f"a source has more than the {self.config.longest} ids that the model reads"
            fits = tf.fill([tf.shape(source)[0]], tf.shape(source)[1] <= self.config.longest)
            source = require(fits, f"{problem}: shorten the source", source)
        count = tf.shape(source)[0] if self._memory else source
        is_stream = tf.executing_eagerly()
        search_id = tf.numpy_function(self._begin, [source, is_stream], tf.int32)
        context = {"search": tf.ensure_shape(search_id, ()), "rows": {"sources": tf.range(count)}}
        if is_stream:
            weakref.finalize(context["search"], self._searches.pop, int(search_id), None)
        return context, {"texts": tf.zeros((count, beams), tf.int32)}

    def decode_step(self, tokens: tf.Tensor, index: tf.Tensor, context: dict, cache: dict):
        """Computes the logits of the next token (see `EncoderDecoder.decode_step`)."""
        texts, sources = cache["texts"], context["rows"]["sources"]
        logits, new_texts = tf.numpy_function(
            self._step, [context["search"], sources, texts, tokens, index], (tf.float32, tf.int32)
        )
        shape = (*tokens.shape, self.config.vocab_size)  # (B, K, V)
        logits = tf.reshape(logits, [-1 if size is None else size for size in shape])
        return logits, {"texts": tf.ensure_shape(new_texts, texts.shape)}

    def prefill(self, tokens: tf.Tensor, index: tf.Tensor, context: dict, cache: dict):
        """Appends several prompt tokens to the caches at once (see `LanguageModel.prefill`)."""
        texts = cache["texts"]
        new_texts = tf.numpy_function(
            self._prefill, [context["search"], texts, tokens, index], tf.int32
        )
        return {"texts": tf.ensure_shape(new_texts, texts.shape)}

    # `tf.numpy_function` calls the next three methods with NumPy arrays.

    def _begin(self, source: np.ndarray, is_stream: np.ndarray) -> np.ndarray:
        """Starts a search, which replaces the previous search in a graph, and returns its id."""
        with self._lock:
            search = _Search()
            if self._memory:
                encode = self._interpreter.get_signature_runner(_ENCODE)
                search.memory = _in_order(encode(source=source), "memory_")
                search.source_mask = source != self.config.special.pad
            self._last_search += 1
            if not is_stream:
                self._searches.pop(self._graph_search, None)
                self._graph_search = self._last_search
            self._searches[self._last_search] = search
            return np.int32(self._last_search)

    def _step(self, search_id, sources, texts, tokens, index) -> tuple[np.ndarray, np.ndarray]:
        with self._lock:
            search = self._arrange_caches(int(search_id), texts, int(index) + 1)
            if search.memory:
                self._load_sources(search, sources)
            logits = self._read_token(search, tokens.reshape(-1, 1), int(index))
        return logits, np.arange(texts.size, dtype=np.int32).reshape(texts.shape)

    def _prefill(self, search_id, texts, tokens, index) -> np.ndarray:
        index, (count, length) = int(index), tokens.shape
        with self._lock:
            search = self._arrange_caches(int(search_id), texts, index + length)
            end, max_length = index + length, self.config.longest
            while index < end:
                size = next((n for n in self._sizes if n >= end - index), self._sizes[-1])
                part = tokens[:, length - (end - index) :][:, :size]
                if max_length is not None and index + size > max_length:
                    self._read_token(search, part[:, :1], index)
                    index += 1
                    continue
                self._read_part(size, part, index)
                index += part.shape[1]
                search.filled = index
        return np.arange(count, dtype=np.int32)[:, None]

    def _read_token(self, search: _Search, tokens: np.ndarray, index: int) -> np.ndarray:
        """Appends one token per text to the caches, and returns the next token's logits `(R, V)`.

        The interpreter holds the caches of `search`. `tokens` is `(R, 1)`, at position `index`.
        """
        interpreter = self._interpreter
        interpreter.set_tensor(self._inputs["tokens"], tokens)
        interpreter.set_tensor(self._inputs["index"], np.int32(index))
        if "held" in self._inputs:
            interpreter.set_tensor(self._inputs["held"], np.arange(self._capacity) < index)
        interpreter.invoke()
        for cache, new, shape in zip(self._caches, self._new, self._shapes, strict=True):
            # No view of the interpreter's memory may be alive at `invoke`, or LiteRT raises.
            if -1 in shape:
                interpreter.tensor(cache)()[..., index, :] = interpreter.get_tensor(new)[..., 0, :]
            else:
                interpreter.tensor(cache)()[...] = interpreter.get_tensor(new)
        search.filled = index + 1
        return interpreter.get_tensor(self._outputs["logits"])

    def _read_part(self, size: int, tokens: np.ndarray, index: int) -> None:
        """Appends tokens `(R, L)` from position `index` on by a prefill function for `size`."""
        interpreter, length = self._interpreter, tokens.shape[1]
        runner = interpreter.get_signature_runner(f"prefill_{size}")
        padded = np.zeros((1, size), np.int32)
        past = max(index, 1)
        for row, ids in enumerate(tokens):
            padded[0, :length] = ids
            views = (interpreter.tensor(cache)() for cache in self._caches)
            caches = _numbered("cache", (view[row : row + 1, ..., :past, :] for view in views))
            new = runner(
                tokens=padded, index=np.int32(index), held=np.arange(past) < index, **caches
            )
            del caches, views
            for cache, part in zip(self._caches, _in_order(new, "new_"), strict=True):
                positions = slice(index, index + length)
                interpreter.tensor(cache)()[row, ..., positions, :] = part[0, ..., :length, :]

    def _load_sources(self, search: _Search, sources: np.ndarray) -> None:
        """Copies the keys and values of sources into the interpreter, unless it has them."""
        if search.sources is not None and np.array_equal(search.sources, sources):
            return
        for index, part in zip(self._memory, search.memory, strict=True):
            self._interpreter.set_tensor(index, part[sources])
        self._interpreter.set_tensor(self._inputs["memory_mask"], search.source_mask[sources])
        search.sources = sources

    def _arrange_caches(self, search_id: int, texts: np.ndarray, capacity: int) -> _Search:
        """Copies the caches of a search into the interpreter, with room for `capacity` positions.

        Each of the K new texts of a source continues the text at its index in `texts (B, K)`.
        """
        search, num_sources, texts = self._searches[search_id], len(texts), texts.ravel()
        if self._loaded_search != search_id:
            self._unload_search()
        is_loaded = self._loaded_search == search_id
        if is_loaded and len(texts) == self._num_rows and capacity <= self._capacity:
            targets = np.flatnonzero(texts != np.arange(len(texts)))
            if len(targets):
                origins, filled = texts[targets], search.filled

                def move(cache: int) -> None:  # `view` is freed at its end, see `_read_token`
                    view = self._filled(cache, filled)
                    view[targets] = view[origins]

                [*self._copy_pool.map(move, self._caches)]
            return search
        caches = self._copy_caches(search) if is_loaded else search.caches
        width = search.source_mask.shape[1] if search.memory else 0
        capacity = -(-capacity // _CAPACITY_MULTIPLE) * _CAPACITY_MULTIPLE
        self._resize(len(texts), capacity, num_sources, width)
        for index, cache in enumerate(self._caches):
            self._interpreter.tensor(cache)()[...] = 0
            if caches:
                self._filled(cache, search.filled)[...] = caches[index][texts]
        search.caches, search.sources, self._loaded_search = [], None, search_id
        return search

    def _unload_search(self) -> None:
        """Copies the interpreter's caches to their search, so that another search can begin."""
        if search := self._searches.get(self._loaded_search):
            search.caches, search.sources = self._copy_caches(search), None
        self._loaded_search = 0

    def _copy_caches(self, search: _Search) -> list[np.ndarray]:
        return [self._filled(cache, search.filled).copy() for cache in self._caches]

    def _filled(self, cache: int, filled: int) -> np.ndarray:
        """Returns a view of the filled part of a cache in the interpreter's memory."""
        view = self._interpreter.tensor(cache)()
        shape = self._shapes[self._caches.index(cache)]
        return view[..., :filled, :] if -1 in shape else view

    def _resize(self, rows: int, capacity: int, num_sources: int, width: int) -> None:
        sizes: dict[int, Sequence[int]] = {self._inputs["tokens"]: (rows, 1)}
        if "held" in self._inputs:
            sizes[self._inputs["held"]] = (capacity,)
        for cache, shape in zip(self._caches, self._shapes, strict=True):
            sizes[cache] = (rows, *(capacity if size == -1 else size for size in shape))
        for index in self._memory:
            heads, head_dim = self._heads[index]
            sizes[index] = (num_sources, heads, width, head_dim)
        if self._memory:
            sizes[self._inputs["memory_mask"]] = (num_sources, width)
        for index, size in sizes.items():
            self._interpreter.resize_tensor_input(index, size)
        self._interpreter.allocate_tensors()
        self._num_rows, self._capacity = rows, capacity
