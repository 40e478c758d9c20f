"""Converts a task's network to LiteRT."""

import json
import pathlib
import tempfile
from collections.abc import Mapping

import keras
import tensorflow as tf

from macaron_tf.engines.graph import TaskGraph, under_policy
from macaron_tf.engines.lite import NETWORK, RECORD, LiteModel, LiteNetwork, signature_of
from macaron_tf.engines.networks import TaskNetwork, one_pass
from macaron_tf.engines.session import STEPS, SessionModel
from macaron_tf.errors import UserError, needed
from macaron_tf.io.noise import silenced
from macaron_tf.kernels import implementation_scope
from macaron_tf.tasks.base import OnePass

# Lengths of rows: a row is padded to the next one. On average, an eighth of a row is padding.
LENGTHS = (8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128)
# Most rows of a request, unless `break_even` measures it. With more rows the graph is faster
# (fp32), or other requests would wait too long (int8). LiteRT's time, relative to the graph's: fp32
# 0.67 for 1 row and 1.07 for 8; int8 0.37 to 0.42 for 1 to 32 rows (BERT mini, one thread).
ROWS = {"fp32": 4, "int8": 64}
KINDS = tuple(ROWS)


def write_lite(network: TaskNetwork, folder: pathlib.Path, kind: str) -> LiteNetwork:
    """Converts a network, writes `NETWORK` and `RECORD` into an existing folder, and opens them.

    Args:
        network: the network.
        folder: the folder.
        kind: `"fp32"`, or `"int8"` to store matrices in int8 and quantize the activations that they
            multiply row by row.

    Raises:
        UserError: the network does not convert.
    """
    one_pass(task := network.task, "LiteRT", "see `write_decoder`")
    with needed("LiteRT"):
        import ai_edge_litert  # noqa: F401
    lengths = _lengths(task.longest)
    with under_policy(task.network, "float32", "LiteRT: the network"):
        functions = {
            signature_of(length): _function(task, network.rows, length) for length in lengths
        }
        contents = in_one_file(functions, task.network, kind)
    (folder / NETWORK).write_bytes(contents)
    short, long = (functions[signature_of(length)] for length in (lengths[0], lengths[-1]))
    record = {
        "kind": kind,
        "lengths": lengths,
        "rows": ROWS[kind],
        "inputs": {
            name: _open_shape(spec.shape, long.structured_input_signature[1][name].shape)
            for name, spec in short.structured_input_signature[1].items()
        },
        "output": _open_shape(
            short.structured_outputs["computed"].shape, long.structured_outputs["computed"].shape
        ),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return LiteNetwork(folder)


def in_one_file(
    functions: Mapping[str, tf.types.experimental.ConcreteFunction],
    network: keras.Model,
    kind: str,
) -> bytes:
    """Converts functions of a network to one file, as signatures that share the weights.

    Args:
        functions: the functions by signature name.
        network: the network that has the weights.
        kind: see `write_lite`.

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
            with silenced():
                return converter.convert()
        except Exception as error:  # ConverterError or others
            cause = str(error).strip().splitlines()
            raise UserError(
                "LiteRT has no operation for a part of this network "
                f"({cause[0] if cause else type(error).__name__:.200}): use it without LiteRT"
            ) from error


def _lengths(longest: int | None) -> list[int]:
    """The lengths of rows; at least two, whose shapes show which axis is the length."""
    longest = min(longest or LENGTHS[-1], LENGTHS[-1])
    lengths = [*(length for length in LENGTHS if length < longest), longest]
    return lengths if len(lengths) > 1 else [longest - 1, longest]


def _function(
    task: OnePass, rows: Mapping[str, tf.Tensor], length: int
) -> tf.types.experimental.ConcreteFunction:
    """Traces the network for one row of `length` ids, with TensorFlow's own operations."""

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


def converted(graph: TaskGraph, kind: str) -> LiteModel:
    """Converts a graph's task to LiteRT, without files that stay."""
    with tempfile.TemporaryDirectory() as folder:
        network = write_lite(TaskNetwork(graph.task), pathlib.Path(folder), kind)
        steps, module = graph.steps(network.output), tf.Module()
        module.resources = graph.task.vocabulary.trackables()
        tf.saved_model.save(module, folder, signatures=steps)
        outputs = [*steps[STEPS[1]].structured_outputs]
        # The interpreter keeps the removed file mapped.
        return LiteModel(network, SessionModel(folder), outputs)
