"""Decodes token by token in LiteRT, with float32 or int8 weights.

Reading all weights once takes most of the time of a step. LiteRT reads twice as many bytes per
second as TensorFlow's graph, and int8 weights have a quarter of the bytes.

The file has a function that decodes one token for any number of texts, and functions that read
parts of prompts (prefill) or encode sources; all share one set of weights. The caches of keys and
values are inputs that stay in the interpreter's memory. The functions return only the keys and
values of new tokens, which are then written into the caches in place. A cache is copied only when
it grows, when beam search reorders it, or when another search uses the interpreter.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from macaron_tf.engines.graph import under_policy
from macaron_tf.engines.lite import DECODER, keep_rows
from macaron_tf.engines.lite_writer import ROWS, in_one_file
from macaron_tf.errors import UserError, needed
from macaron_tf.io.noise import silenced
from macaron_tf.io.paths import read_json
from macaron_tf.kernels import implementation_scope
from macaron_tf.models import EncoderDecoder, LanguageModel
from macaron_tf.models.stack import Stack
from macaron_tf.special_ids import PAD

RECORD = "decode.json"
# Prefill reads prompts in parts of these lengths; a shorter part is padded to the next length.
_CHUNKS = (16, 64, 256)
# A cache grows by this number of positions, and is copied then. A step reads the whole cache: with
# 128 rows of width 512 in int8, it takes 24 ms of CPU for 16 positions, and 34 ms for 64.
_ROOM = 16
# `Interpreter.invoke` runs the file's first function, so "decode" must sort first.
_DECODE, _ENCODE = "decode", "encode"


def write_decoder(
    network: LanguageModel | EncoderDecoder,
    folder: pathlib.Path,
    kind: str,
    threads: int | None = None,
) -> "LiteDecoder":
    """Converts a network's decoding, writes `DECODER` and `RECORD` into an existing folder, and
    opens them.

    Args:
        network: the network.
        folder: the folder.
        kind: see `write_lite`.
        threads: see `LiteDecoder`.

    Raises:
        UserError: the network does not decode in LiteRT.
    """
    with needed("LiteRT"):
        import ai_edge_litert  # noqa: F401
    if not isinstance(network, LanguageModel | EncoderDecoder) or not _decoder(network).can_hold:
        raise UserError(
            "LiteRT only decodes recurrences, and attention without windows, biases or relative "
            "positions, and this model has another layer: use it without with_lite (--lite)"
        )
    with under_policy(network, "float32", "LiteRT: the network"), implementation_scope("loop"):
        parts = _Parts(network)
        contents = in_one_file(dict(sorted(parts.functions())), network, kind)
    (folder / DECODER).write_bytes(contents)
    config = network.config
    record = {
        "kind": kind,
        "rows": ROWS[kind],
        "caches": parts.caches,
        "sizes": parts.sizes,
        "vocab_size": config.vocab_size,
        "longest": config.longest,
    }
    (folder / RECORD).write_text(json.dumps(record) + "\n")
    return LiteDecoder(folder, threads)


def converted_decoder(
    network: LanguageModel | EncoderDecoder, kind: str, threads: int | None = None
) -> "LiteDecoder":
    """Converts a network's decoding to LiteRT, without files that stay."""
    with tempfile.TemporaryDirectory() as folder:
        # The interpreter keeps the removed file mapped.
        return write_decoder(network, pathlib.Path(folder), kind, threads)


def _decoder(network: LanguageModel | EncoderDecoder) -> Stack:
    return network.decoder if isinstance(network, EncoderDecoder) else network.encoder.stack


class _Parts:
    """The functions of a network's decoding, for any number of texts and any length of the caches.

    Attributes:
        caches: the shape of each state tensor of one text, with -1 for the length of the cache.
        sizes: lengths of the parts of prompts for which there are prefill functions. Empty for an
            encoder-decoder, and for a language model with a recurrence, which reads prompts token
            by token because padding would change its state.
    """

    def __init__(self, network: LanguageModel | EncoderDecoder):
        self.network = network
        self._translates = isinstance(network, EncoderDecoder)
        small, large = (_decoder(network).init_cache(1, 1, room) for room in (2, 3))
        self._structure = small
        self.caches = [
            [-1 if one != other else one for one, other in zip(a.shape, b.shape, strict=True)][1:]
            for a, b in zip(*map(tf.nest.flatten, (small, large)), strict=True)
        ]
        longest = network.config.longest
        chunks = _CHUNKS
        if self._translates or any(-1 not in shape for shape in self.caches):
            chunks = ()
        self.sizes = [size for size in chunks if longest is None or size <= longest]

    def functions(self) -> Iterator[tuple[str, tf.types.experimental.ConcreteFunction]]:
        """Yields each function's name, and the traced function."""
        token = {"tokens": _int32(None, 1), **self._state(None)}
        if not self._translates:
            yield _DECODE, _traced(self._decode, token)
            for size in self.sizes:
                yield (
                    f"prefill_{size}",
                    _traced(self._prefill, {"tokens": _int32(1, size), **self._state(1)}),
                )
            return
        memory = tf.nest.flatten(self._some_memory())
        shapes = {
            f"memory_{i:03}": tf.TensorSpec((None, part.shape[1], None, part.shape[3]), tf.float32)
            for i, part in enumerate(memory)
        }
        mask = {"memory_mask": tf.TensorSpec((None, None), tf.bool)}
        yield _DECODE, _traced(self._decode, {**token, **shapes, **mask})
        yield _ENCODE, _traced(self._encode, {"source": _int32(None, None)})

    def _some_memory(self) -> Any:
        """Keys and values of a source of two tokens, as an example of structure and shapes."""
        width = self.network.config.hidden_dim
        return self.network.decoder.project_memory(tf.zeros((1, 2, width)))

    def _state(self, rows: int | None) -> dict[str, tf.TensorSpec]:
        caches = {
            f"cache_{i:03}": tf.TensorSpec([rows, *(n if n > 0 else None for n in shape)])
            for i, shape in enumerate(self.caches)
        }
        return {"index": _int32(), "held": tf.TensorSpec((None,), tf.bool), **caches}

    def _decode(self, tokens, index, held, **tensors):
        context: dict[str, Any] = {"held": held}
        if self._translates:
            like = self._some_memory()
            context |= {
                "rows": {
                    "memory_keys": tf.nest.pack_sequence_as(like, _numbered(tensors, "memory_0")),
                    "memory_mask": tensors["memory_mask"],
                },
                "kernel": None,
                "backward": False,
            }
        logits, state = self.network.decode_step(tokens, index, context, self._cache(tensors))
        return {"logits": logits[:, 0], **self._new(state)}

    def _prefill(self, tokens, index, held, **tensors):
        return self._new(self.network.prefill(tokens, index, {"held": held}, self._cache(tensors)))

    def _encode(self, source):
        memory = self.network.encode(source, training=False)
        keys = tf.nest.flatten(self.network.decoder.project_memory(memory))
        return {f"memory_{i:03}": part for i, part in enumerate(keys)}

    def _cache(self, tensors: dict[str, tf.Tensor]) -> dict[str, Any]:
        return {"fixed": tf.nest.pack_sequence_as(self._structure, _numbered(tensors, "cache_"))}

    def _new(self, state: dict[str, Any]) -> dict[str, tf.Tensor]:
        return {f"new_{i:03}": part for i, part in enumerate(tf.nest.flatten(state))}


def _int32(*shape: int | None) -> tf.TensorSpec:
    return tf.TensorSpec(shape, tf.int32)


def _traced(function: Callable, specs: dict[str, tf.TensorSpec]):
    named = {n: tf.TensorSpec(spec.shape, spec.dtype, n) for n, spec in specs.items()}
    return tf.function(function, autograph=False).get_concrete_function(**named)


def _numbered(tensors: Mapping[str, Any], start: str) -> list[Any]:
    return [tensors[name] for name in sorted(tensors) if name.startswith(start)]


@dataclasses.dataclass
class _Search:
    """The state of one search over R texts.

    Attributes:
        filled: number of tokens of each text in the caches.
        caches: the filled parts of the caches, `(R, ...)` each. Empty before the first token, and
            while the caches are in the interpreter.
        memory: keys and values of B sources, `(B, H, S, d)` each.
        real: the sources' mask, `(B, S)`, False at padding.
        sentences: indices of the sources that are in the interpreter; None: none.
    """

    filled: int = 0
    caches: list[np.ndarray] = dataclasses.field(default_factory=list)
    memory: list[np.ndarray] = dataclasses.field(default_factory=list)
    real: np.ndarray | None = None
    sentences: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class _Config:
    """The fields of a network's configuration that searches read."""

    vocab_size: int
    longest: int | None


class LiteDecoder:
    """A file of `write_decoder`, opened. It decodes in place of the network.

    `generate`, `beam_search`, `TextGenerator` and `LineTranslator` accept it as a network. Their
    graphs then call Python functions of this process, so they cannot be saved.

    A search that begins outside a graph is a stream. Streams may alternate with each other and with
    a graph's search, also from several threads; their caches are freed together with their context.
    Searches within graphs must run one after the other, in `alone`.

    Args:
        folder: folder of the files `DECODER` and `RECORD`.
        threads: threads of a matrix product; None: the CPUs of this process, at most 4, but 1 for a
            file of less than 4 MiB, whose products are too short to divide.

    Attributes:
        config: the fields of the network's configuration that searches read.
        kind: see `write_lite`.
        most_rows: most texts of a request that this engine should answer.
        can_prefill: see `LanguageModel.can_prefill`.
        reads_sources: whether the network is an encoder-decoder.

    Raises:
        UserError: a file is missing or damaged.
    """

    def __init__(self, folder: str | os.PathLike, threads: int | None = None):
        with needed("LiteRT"):
            from ai_edge_litert.interpreter import Interpreter

        mend = "export the model again"
        folder = pathlib.Path(folder)
        record = read_json(
            folder / RECORD, mend=mend, kind=str, rows=int, caches=list, sizes=list, vocab_size=int
        )
        self.kind, self._shapes, self._sizes = (record[n] for n in ("kind", "caches", "sizes"))
        self.most_rows: int = record["rows"]
        self.config = _Config(record["vocab_size"], record.get("longest"))
        try:
            small = (folder / DECODER).stat().st_size < 2**22
            threads = threads or (1 if small else min(len(os.sched_getaffinity(0)), 4))
            with silenced():  # XNNPACK prints a notice
                self._interpreter = Interpreter(str(folder / DECODER), num_threads=threads)
                self._interpreter.allocate_tensors()
                runner = self._interpreter.get_signature_runner(_DECODE)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"{folder / DECODER} is damaged ({error}): {mend}") from error
        details = runner.get_input_details()
        self._inputs = {name: detail["index"] for name, detail in details.items()}
        self._heads = {
            detail["index"]: detail["shape_signature"][[1, 3]].tolist()
            for name, detail in details.items()
            if name.startswith("memory_0")
        }
        self._outputs = {n: d["index"] for n, d in runner.get_output_details().items()}
        self._caches = _numbered(self._inputs, "cache_")
        self._memory = _numbered(self._inputs, "memory_0")
        self._new = _numbered(self._outputs, "new_")
        self.can_prefill, self.reads_sources = bool(self._sizes), bool(self._memory)
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._copying = concurrent.futures.ThreadPoolExecutor(threads)
        self._searches: dict[int, _Search] = {}
        # Numbers of searches: the latest, the one in the interpreter, the graph's. 0: none.
        self._number = self._current = self._graphs = 0
        self._rows = self._room = 0  # of the interpreter's tensors

    def facts(self) -> dict[str, Any]:
        """Facts for the record of an export."""
        return {"kind": self.kind, "rows": self.most_rows}

    def keep_most_rows(self, folder: pathlib.Path) -> None:
        """Writes `most_rows` into the record in a folder."""
        keep_rows(folder / RECORD, self.most_rows)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lets no other thread run a graph within the `with`; frees the graph's caches after it."""
        with self._turn:
            try:
                yield
            finally:
                self._searches.pop(self._graphs, None)

    # The methods that a search calls, in a graph or eagerly.

    def init_decode(self, source: Any, beams: int, max_length: int | None = None):
        """Begins a search over B rows, or B sources `(B, S)`; see the models' `init_decode`."""
        del max_length  # caches grow
        count = tf.shape(source)[0] if self._memory else source
        streams = tf.executing_eagerly()
        number = tf.numpy_function(self._begin, [source, streams], tf.int32)
        context = {"search": tf.ensure_shape(number, ()), "rows": {"sentences": tf.range(count)}}
        if streams:
            weakref.finalize(context["search"], self._searches.pop, int(number), None)
        return context, {"texts": tf.zeros((count, beams), tf.int32)}

    def decode_step(self, tokens: tf.Tensor, index: tf.Tensor, context: dict, cache: dict):
        """See `EncoderDecoder.decode_step`."""
        texts, sentences = cache["texts"], context["rows"]["sentences"]
        logits, after = tf.numpy_function(
            self._step, [context["search"], sentences, texts, tokens, index], (tf.float32, tf.int32)
        )
        shape = (*tokens.shape, self.config.vocab_size)  # (B, K, V)
        logits = tf.reshape(logits, [-1 if size is None else size for size in shape])
        return logits, {"texts": tf.ensure_shape(after, texts.shape)}

    def prefill(self, tokens: tf.Tensor, index: tf.Tensor, context: dict, cache: dict):
        """See `LanguageModel.prefill`."""
        texts = cache["texts"]
        after = tf.numpy_function(
            self._prefill, [context["search"], texts, tokens, index], tf.int32
        )
        return {"texts": tf.ensure_shape(after, texts.shape)}

    # The same methods on NumPy arrays, which the graph calls by `tf.numpy_function`.

    def _begin(self, source: np.ndarray, streams: np.ndarray) -> np.ndarray:
        """Begins a search and returns its number. A graph's search replaces the one before."""
        with self._lock:
            search = _Search()
            if self._memory:
                encode = self._interpreter.get_signature_runner(_ENCODE)
                search.memory = _numbered(encode(source=source), "memory_")
                search.real = source != PAD
            self._number += 1
            if not streams:
                self._searches.pop(self._graphs, None)
                self._graphs = self._number
            self._searches[self._number] = search
            return np.int32(self._number)

    def _step(self, number, sentences, texts, tokens, index) -> tuple[np.ndarray, np.ndarray]:
        with self._lock:
            search = self._arranged(int(number), texts, int(index) + 1)
            if search.memory:
                self._remember(search, sentences)
            logits = self._token(search, tokens.reshape(-1, 1), int(index))
        return logits, np.arange(texts.size, dtype=np.int32).reshape(texts.shape)

    def _prefill(self, number, texts, tokens, index) -> np.ndarray:
        index, (count, length) = int(index), tokens.shape
        with self._lock:
            search = self._arranged(int(number), texts, index + length)
            end, longest = index + length, self.config.longest
            while index < end:
                size = next((n for n in self._sizes if n >= end - index), self._sizes[-1])
                part = tokens[:, length - (end - index) :][:, :size]
                if longest is not None and index + size > longest:
                    self._token(search, part[:, :1], index)
                    index += 1
                    continue
                self._read(size, part, index)
                index += part.shape[1]
                search.filled = index
        return np.arange(count, dtype=np.int32)[:, None]

    def _token(self, search: _Search, tokens: np.ndarray, index: int) -> np.ndarray:
        """Adds one token of each text to the caches; returns the logits of the next, `(R, V)`."""
        interpreter = self._interpreter
        interpreter.set_tensor(self._inputs["tokens"], tokens)
        interpreter.set_tensor(self._inputs["index"], np.int32(index))
        if "held" in self._inputs:
            interpreter.set_tensor(self._inputs["held"], np.arange(self._room) < index)
        interpreter.invoke()
        for cache, new, shape in zip(self._caches, self._new, self._shapes, strict=True):
            # LiteRT raises if a view of the interpreter's memory is alive when it runs.
            if -1 in shape:
                interpreter.tensor(cache)()[..., index, :] = interpreter.get_tensor(new)[..., 0, :]
            else:
                interpreter.tensor(cache)()[...] = interpreter.get_tensor(new)
        search.filled = index + 1
        return interpreter.get_tensor(self._outputs["logits"])

    def _read(self, size: int, tokens: np.ndarray, index: int) -> None:
        """Adds tokens `(R, L)` to the caches, by the prefill function for `size` >= L tokens."""
        interpreter, length = self._interpreter, tokens.shape[1]
        runner = interpreter.get_signature_runner(f"prefill_{size}")
        padded = np.full((1, size), PAD, np.int32)
        past = max(index, 1)
        for row, ids in enumerate(tokens):
            padded[0, :length] = ids
            held = {
                f"cache_{i:03}": interpreter.tensor(cache)()[row : row + 1, ..., :past, :]
                for i, cache in enumerate(self._caches)
            }
            new = runner(tokens=padded, index=np.int32(index), held=np.arange(past) < index, **held)
            del held
            for cache, part in zip(self._caches, _numbered(new, "new_"), strict=True):
                places = slice(index, index + length)
                interpreter.tensor(cache)()[row, ..., places, :] = part[0, ..., :length, :]

    def _remember(self, search: _Search, sentences: np.ndarray) -> None:
        """Copies the keys and values of the texts' sources into the interpreter, if needed."""
        if search.sentences is not None and np.array_equal(search.sentences, sentences):
            return
        for index, part in zip(self._memory, search.memory, strict=True):
            self._interpreter.set_tensor(index, part[sentences])
        self._interpreter.set_tensor(self._inputs["memory_mask"], search.real[sentences])
        search.sentences = sentences

    def _arranged(self, number: int, texts: np.ndarray, room: int) -> _Search:
        """Puts a search's caches into the interpreter, in the order of its texts.

        Args:
            number: number of the search.
            texts: `(B, K)`, the index in the caches of the text that each text continues.
            room: number of positions that the caches need.
        """
        search, sentences, texts = self._searches[number], len(texts), texts.ravel()
        if self._current != number:
            self._set_aside()
        here = self._current == number
        if here and len(texts) == self._rows and room <= self._room:
            moved = np.flatnonzero(texts != np.arange(len(texts)))
            if len(moved):
                origins, filled = texts[moved], search.filled
                # The views end with the threads' calls; see `_token`.
                move = lambda cache: self._move(cache, filled, origins, moved)  # noqa: E731
                [*self._copying.map(move, self._caches)]
            return search
        caches = self._taken(search) if here else search.caches
        width = search.real.shape[1] if search.memory else 0
        self._resize(len(texts), -(-room // _ROOM) * _ROOM, sentences, width)
        for number_, cache in enumerate(self._caches):
            self._interpreter.tensor(cache)()[...] = 0
            if caches:
                self._filled(cache, search.filled)[...] = caches[number_][texts]
        search.caches, search.sentences, self._current = [], None, number
        return search

    def _move(self, cache: int, filled: int, origins: np.ndarray, texts: np.ndarray) -> None:
        view = self._filled(cache, filled)
        view[texts] = view[origins]

    def _set_aside(self) -> None:
        """Saves the interpreter's caches in the search that uses it, to make room for another."""
        if search := self._searches.get(self._current):
            search.caches, search.sentences = self._taken(search), None
        self._current = 0

    def _taken(self, search: _Search) -> list[np.ndarray]:
        return [self._filled(cache, search.filled).copy() for cache in self._caches]

    def _filled(self, cache: int, filled: int) -> np.ndarray:
        """A view of the filled part of a cache in the interpreter's memory."""
        view = self._interpreter.tensor(cache)()
        shape = self._shapes[self._caches.index(cache)]
        return view[..., :filled, :] if -1 in shape else view

    def _resize(self, rows: int, room: int, sentences: int, width: int) -> None:
        sizes: dict[int, Sequence[int]] = {self._inputs["tokens"]: (rows, 1)}
        if "held" in self._inputs:
            sizes[self._inputs["held"]] = (room,)
        for cache, shape in zip(self._caches, self._shapes, strict=True):
            sizes[cache] = (rows, *(room if size == -1 else size for size in shape))
        for index in self._memory:
            heads, head_dim = self._heads[index]
            sizes[index] = (sentences, heads, width, head_dim)
        if self._memory:
            sizes[self._inputs["memory_mask"]] = (sentences, width)
        for index, size in sizes.items():
            self._interpreter.resize_tensor_input(index, size)
        self._interpreter.allocate_tensors()
        self._rows, self._room = rows, room
