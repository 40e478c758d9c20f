"""ONNX files that a runtime opens: TensorFlow's operations that tf2onnx does not know."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from macaron_tf.errors import UserError, needed


class _Erfc:
    """`1 - Erf(x)`; TensorFlow computes the exact GELU by it. At most 6e-8 from `Erfc`."""

    @classmethod
    def version_9(cls, graph, node, **kwargs):
        dtype, shape = graph.get_dtype(node.output[0]), graph.get_shape(node.output[0])
        graph.remove_node(node.name)
        erf = graph.make_node("Erf", node.input, dtypes=[dtype], shapes=[shape])
        one = graph.make_const(f"{node.name}_one", np.ones((), np.float32))
        whole = {"outputs": node.output, "dtypes": [dtype], "shapes": [shape]}
        graph.make_node("Sub", [one.output[0], erf.output[0]], name=node.name, **whole)


@contextlib.contextmanager
def onnx_file(path: str | os.PathLike) -> Iterator[None]:
    """A `with` in which tf2onnx knows `Erfc`, and after which the file it wrote is checked.

    tf2onnx writes a file without an error where it does not know an operation; no runtime opens it.

    Raises:
        UserError: tf2onnx is not installed, or the file, which is removed, is not valid.
    """
    with needed("ONNX"):
        import onnx
        from tf2onnx.handler import tf_op

    tf_op("Erfc")(_Erfc)
    yield
    try:
        onnx.checker.check_model(os.fspath(path))
    except onnx.checker.ValidationError as error:
        pathlib.Path(path).unlink()
        cause = str(error).strip().splitlines()[0]
        raise UserError(f"tf2onnx does not know a part of this network ({cause:.200})") from error
