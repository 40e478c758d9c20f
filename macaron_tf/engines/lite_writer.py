"""Conversion of a task's network to LiteRT."""

import json
import pathlib
import tempfile
from collections.abc import Mapping

import keras
import tensorflow as tf

from macaron_tf.engines.graph import Functions, TaskGraph, traced, under_policy
from macaron_tf.engines.lite import NETWORK, RECORD, SIGNATURE, LiteModel, LiteNetwork
from macaron_tf.engines.networks import TaskNetwork, require_one_pass
from macaron_tf.engines.session import STEPS, SessionModel
from macaron_tf.io.paths import clear_errors
from macaron_tf.kernels import implementation_scope
from macaron_tf.tasks.base import OnePass

# Supported row lengths. A row is padded to the next length, and 1/8 of a row is padding on average.
LENGTHS = (8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128)
# Maximum number of rows in a request to LiteRT, unless `break_even` measures the number. With more
# rows, the TensorFlow graph is faster (fp32), or other requests would wait too long (int8). The
# time of LiteRT relative to the graph is 0.67 for 1 row and 1.07 for 8 rows in fp32, and 0.37 to
# 0.42 for 1 to 32 rows in int8 (BERT mini, one thread).
ROWS = {"fp32": 4, "int8": 64}
PRECISIONS = tuple(ROWS)


def write_lite(network: TaskNetwork, folder: pathlib.Path, precision: str) -> LiteNetwork:
    """Converts a network to LiteRT with weights in `"fp32"` or `"int8"`, and opens the files.

    With `"int8"`, matrices are stored in int8, and each row of activations is quantized before a
    matrix product.
    """
    require_one_pass(task := network.task, "LiteRT", "call `write_decoder` instead")
    lengths = _lengths(task.longest)
    with under_policy(task.network, "float32", "LiteRT: the network"):
        functions = [_traced_network(task, network.rows, length) for length in lengths]
        signatures = dict(zip(map(SIGNATURE.format, lengths), functions, strict=True))
        contents = lite_file(signatures, task.network, precision)
    (folder / NETWORK).write_bytes(contents)
    short, long = (f.structured_outputs["computed"].shape for f in (functions[0], functions[-1]))
    record = {
        "kind": precision,
        "lengths": lengths,
        "rows": ROWS[precision],
        "pad_id": task.vocabulary.special.pad,
        "inputs": {
            name: [1, *(size or -1 for size in ids.shape[1:])] for name, ids in network.rows.items()
        },
        "output": [a if a == b else -1 for a, b in zip(short, long, strict=True)],
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return LiteNetwork(folder)


def lite_file(functions: Functions, network: keras.Model, precision: str) -> bytes:
    """Returns a LiteRT file with one signature per function. The signatures share the weights."""
    with tempfile.TemporaryDirectory() as folder:
        module = tf.Module()
        module.weights = [weight.value for weight in network.weights]
        tf.saved_model.save(module, folder, signatures=functions)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, [*functions])
        if precision == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        failure, mend = "LiteRT cannot convert this network", "omit with_lite (--lite)"
        with clear_errors(failure, mend, (Exception,)):  # ConverterError or others
            return converter.convert()


def _lengths(max_length: int | None) -> list[int]:
    """Returns the row lengths for which a LiteRT file gets signatures, `max_length` the greatest.

    There are at least two, because the conversion finds the axis of the length by two shapes.
    """
    max_length = min(max_length or LENGTHS[-1], LENGTHS[-1])
    lengths = [*(length for length in LENGTHS if length < max_length), max_length]
    return lengths if len(lengths) > 1 else [max_length - 1, max_length]


def _traced_network(
    task: OnePass, rows: Mapping[str, tf.Tensor], length: int
) -> tf.types.experimental.ConcreteFunction:
    """Traces the network for one row of `length` ids, with operations that LiteRT converts."""

    def compute(**rows: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"computed": task.compute(rows)}

    specs = {
        name: tf.TensorSpec([1, *(size or length for size in ids.shape[1:])], ids.dtype, name)
        for name, ids in rows.items()
    }
    with implementation_scope("loop"):
        return traced(compute, **specs)


def convert_to_lite(graph: TaskGraph, precision: str) -> LiteModel:
    """Converts a task's network to LiteRT in memory (see `write_lite`)."""
    with tempfile.TemporaryDirectory() as folder:
        network = write_lite(TaskNetwork(graph.task), pathlib.Path(folder), precision)
        steps, module = graph.steps(network.output), tf.Module()
        module.resources = graph.task.vocabulary.trackables()
        tf.saved_model.save(module, folder, signatures=steps)
        # The interpreter memory-maps the file, which stays readable after its removal.
        return LiteModel(network, SessionModel(folder), [*steps[STEPS[1]].structured_outputs])
