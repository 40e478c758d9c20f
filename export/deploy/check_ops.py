"""Lists the ops of an exported model that are not built into TensorFlow.

    python export/deploy/check_ops.py OUT/1

A server can load the model only if the server is linked with the listed ops. Otherwise, loading
fails with the error "Op type not registered".
"""

import argparse
import collections
import os
import sys

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2


def ops_outside_core(path: str) -> dict[str, int]:
    """Counts the ops of a SavedModel that are not built into TensorFlow.

    Args:
        path: folder that contains `saved_model.pb`.

    Returns:
        Dict mapping op name to the number of nodes with this op, sorted by name.

    Raises:
        OSError: `saved_model.pb` cannot be read.
        DecodeError: `saved_model.pb` is damaged.
    """
    with open(os.path.join(path, "saved_model.pb"), "rb") as file:
        model = saved_model_pb2.SavedModel.FromString(file.read())
    if not model.meta_graphs:
        raise DecodeError("the file contains no graph")
    counts = collections.Counter()
    functions = set()
    for meta in model.meta_graphs:
        graph = meta.graph_def
        functions |= {function.signature.name for function in graph.library.function}
        counts.update(node.op for node in graph.node)
        for function in graph.library.function:
            counts.update(node.op for node in function.node_def)
    return {
        name: count
        for name, count in sorted(counts.items())
        if not hasattr(tf.raw_ops, name) and name not in functions
    }


def main() -> int:
    """Prints the number of nodes and the name of each op, and returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", help="folder of an exported model version, such as OUT/1")
    version = parser.parse_args().version
    try:
        op_counts = ops_outside_core(version)
    except (OSError, DecodeError) as error:
        print(
            f"error: {version} has no readable saved_model.pb ({error}): give the folder of an "
            "exported model version, or export the model again",
            file=sys.stderr,
        )
        return 2
    for name, count in op_counts.items():
        print(f"{count:5d}  {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
