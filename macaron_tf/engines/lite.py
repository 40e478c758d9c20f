"""A task's network in LiteRT, TensorFlow's engine for small requests on CPUs.

A graph of TensorFlow starts hundreds of operations anew for each request, which is most of the time
of a single line; LiteRT plans the whole network once, for fixed shapes. Its file holds the network
for rows of several lengths, as signatures that share one set of weights. Texts become rows, and
numbers answers, in TensorFlow: LiteRT has no operations on strings.
"""

import json
import os
import pathlib
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.engines.graph import under_policy
from macaron_tf.engines.networks import symbolic_rows
from macaron_tf.errors import UserError, needed
from macaron_tf.io.paths import read_json
from macaron_tf.kernels import implementation_scope
from macaron_tf.tasks.base import OnePass, TaskKind

KINDS = ("fp32", "int8")
NETWORK, RECORD = "network.tflite", "network.json"
# Lengths of rows: a row is padded to the next one. On average an eighth of it is padding.
LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128)
_THREADS = 4  # at most: more do not make products of so few rows faster
_UNKNOWN = -1e9  # outputs behind the end of a row, as evaluation has them
ROWS = 8  # of a request, at most
Arrays = Mapping[str, np.ndarray]
Step = Callable[[Arrays], Arrays]


def write_lite(task: TaskKind, folder: pathlib.Path, kind: str) -> dict[str, Any]:
    """Converts `task.compute`, and writes `NETWORK` and `RECORD` into a folder that exists.

    Args:
        kind: `"fp32"`; or `"int8"`: matrices in int8, for whose products activations are quantized
            row by row.

    Returns:
        The record: `kind`, `lengths`, and the shapes of `inputs` and of the `output`, each with -1
        for the rows' length.

    Raises:
        UserError: the network does not convert.
    """
    if not isinstance(task, OnePass):
        raise UserError(
            f"--lite: a {task.name} runs its network once for each token, not once for a text: "
            "leave the flag out; in Python `with_lite` decodes"
        )
    with needed("--lite"):
        import ai_edge_litert  # noqa: F401
    network, lengths = task.network, _lengths(task.longest)
    with under_policy(network, "float32", "--lite: the network"):
        rows = symbolic_rows(task)
        functions = {_signature(length): _function(task, rows, length) for length in lengths}
        contents = in_one_file(functions, network, kind)
    (folder / NETWORK).write_bytes(contents)
    short, long = (functions[_signature(length)] for length in (lengths[0], lengths[-1]))
    record = {
        "kind": kind,
        "lengths": lengths,
        "inputs": {
            name: _open_shape(spec.shape, long.structured_input_signature[1][name].shape)
            for name, spec in short.structured_input_signature[1].items()
        },
        "output": _open_shape(
            short.structured_outputs["computed"].shape, long.structured_outputs["computed"].shape
        ),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return record


def in_one_file(
    functions: Mapping[str, tf.types.experimental.ConcreteFunction],
    network: keras.Model,
    kind: str,
) -> bytes:
    """Converts functions of a network, as signatures of a file that share its weights.

    Raises:
        UserError: LiteRT has no operation for a part of the network.
    """
    with tempfile.TemporaryDirectory() as place:
        module = tf.Module()
        module.weights = [weight.value for weight in network.weights]
        tf.saved_model.save(module, place, signatures=functions)
        converter = tf.lite.TFLiteConverter.from_saved_model(place, [*functions])
        if kind == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        try:
            return converter.convert()
        except Exception as error:  # ConverterError, and others for other causes
            cause = str(error).strip().splitlines()
            raise UserError(
                f"--lite: LiteRT has no operation for a part of this network, "
                f"{cause[0] if cause else type(error).__name__:.200}: leave the flag out"
            ) from error


def converted(task: TaskKind, kind: str) -> "LiteNetwork":
    """The task's network in LiteRT, without files that stay."""
    with tempfile.TemporaryDirectory() as folder:
        write_lite(task, pathlib.Path(folder), kind)
        return LiteNetwork(folder)  # its file is mapped


def _lengths(longest: int | None) -> list[int]:
    """Two lengths at least: where they differ, shapes show which axis a row's length is."""
    longest = min(longest or LENGTHS[-1], LENGTHS[-1])
    lengths = [*(length for length in LENGTHS if length < longest), longest]
    return lengths if len(lengths) > 1 else [longest - 1, longest]


def _signature(length: int) -> str:
    return f"length_{length}"


def _function(
    task: OnePass, rows: Mapping[str, tf.Tensor], length: int
) -> tf.types.experimental.ConcreteFunction:
    """The network for one row of a length, traced from stock operations."""

    def compute(**rows: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"computed": task.compute(rows)}

    specs = {
        name: tf.TensorSpec([1, *(size or length for size in ids.shape[1:])], ids.dtype, name)
        for name, ids in rows.items()
    }
    with implementation_scope("loop"):
        return tf.function(compute, autograph=False).get_concrete_function(**specs)


def _open_shape(short: tf.TensorShape, long: tf.TensorShape) -> list[int]:
    return [a if a == b else -1 for a, b in zip(short, long, strict=True)]


class LiteNetwork:
    """The network that `write_lite` wrote, opened: a row after the other, each at its own length.

    Threads take turns, for an interpreter serves one at a time.

    Args:
        folder: holds `NETWORK` and `RECORD`.
        threads: of a product; by default the CPUs of this process, 4 at most.

    Raises:
        UserError: a file is missing or damaged.
    """

    def __init__(self, folder: str | os.PathLike, threads: int | None = None):
        with needed("LiteRT"):
            from ai_edge_litert.interpreter import Interpreter

        mend = "export the model again"
        folder = pathlib.Path(folder)
        record = read_json(
            folder / RECORD, mend=mend, kind=str, lengths=list, inputs=dict, output=list
        )
        self.kind, self.lengths, self._output = record["kind"], record["lengths"], record["output"]
        self.inputs: Mapping[str, list[int]] = record["inputs"]
        threads = threads or min(len(os.sched_getaffinity(0)), _THREADS)
        try:
            self._interpreter = Interpreter(str(folder / NETWORK), num_threads=threads)
            self._runners = {
                length: self._interpreter.get_signature_runner(_signature(length))
                for length in self.lengths
            }
        except (ValueError, RuntimeError) as error:
            raise UserError(f"{folder / NETWORK} is damaged ({error}): {mend}") from error
        self._lock = threading.Lock()

    @property
    def output(self) -> list[int | None]:
        """The shape of `OnePass.compute`'s outputs, None for an open dimension."""
        return [None, *(size if size >= 0 else None for size in self._output[1:])]

    def takes(self, rows: Mapping[str, np.ndarray]) -> bool:
        """Whether this is the engine for rows: they are few, and none is too long."""
        ids = rows["token_ids"]
        own = _row_lengths(ids, self.inputs["token_ids"])
        return 0 < len(own) <= ROWS and own.max() <= self.lengths[-1]

    def answer(self, prepare: Step, conclude: Step, inputs: Arrays) -> Arrays | None:
        """The outputs of `OnePass.serve`; None where this is not the engine for the inputs.

        Args:
            prepare, conclude: run the functions of `TaskGraph.steps`.
        """
        found = prepare(inputs)
        if not self.takes(found):
            return None
        kept = {name: value for name, value in found.items() if name not in self.inputs}
        return conclude({"computed": self.compute(found), **kept})

    def compute(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """The outputs of `OnePass.compute`, float32, for rows that `takes` accepts."""
        ids, shape = rows["token_ids"], self.inputs["token_ids"]
        length = ids.shape[shape.index(-1)]
        sizes = [length if size == -1 else size for size in self._output[1:]]
        computed = np.full((len(ids), *sizes), _UNKNOWN, np.float32)
        for row, own in enumerate(_row_lengths(ids, shape)):
            room = next(length for length in self.lengths if length >= own)
            given = {
                name: _fitted(rows[name][row], [room if n == -1 else n for n in sizes[1:]])
                for name, sizes in self.inputs.items()
            }
            with self._lock:
                found = self._runners[room](**given)["computed"][0]
            kept = tuple(map(slice, map(min, found.shape, computed.shape[1:])))
            computed[(row, *kept)] = found[kept]
        return computed


def _row_lengths(ids: np.ndarray, shape: list[int]) -> np.ndarray:
    """The lengths `(B,)` of rows without their padding."""
    axis = shape.index(-1)
    others = tuple(n for n in range(1, ids.ndim) if n != axis)
    real = (ids != 0).any(axis=others)  # (B, L)
    return real.shape[1] - np.argmax(real[:, ::-1], axis=1)


def _fitted(row: np.ndarray, sizes: list[int]) -> np.ndarray:
    """A row cut or padded to sizes, with an axis before for a batch of one."""
    given = np.zeros((1, *sizes), row.dtype)
    kept = tuple(map(slice, map(min, row.shape, sizes)))
    given[(0, *kept)] = row[kept]
    return given
