"""ONNX export: support for an operation that tf2onnx lacks, and a check of the written file."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from macaron_tf.errors import UserError, first_line, needed


@contextlib.contextmanager
def onnx_file(path: str | os.PathLike) -> Iterator[None]:
    """Lets tf2onnx convert `Erfc`, and checks the file at `path` at the end of this context.

    For an unknown operation, tf2onnx raises no error, but writes an invalid file, which is removed.
    """
    with needed("ONNX"):
        import onnx
        from tf2onnx.handler import tf_op

    @tf_op("Erfc")
    class Erfc:
        """Converts `Erfc(x)`, which the exact GELU uses, to `1 - Erf(x)`, within 6e-8."""

        @classmethod
        def version_9(cls, graph, node, **kwargs):
            dtype, shape = graph.get_dtype(node.output[0]), graph.get_shape(node.output[0])
            graph.remove_node(node.name)
            erf = graph.make_node("Erf", node.input, dtypes=[dtype], shapes=[shape])
            one = graph.make_const(f"{node.name}_one", np.ones((), np.float32))
            options = {"outputs": node.output, "dtypes": [dtype], "shapes": [shape]}
            graph.make_node("Sub", [one.output[0], erf.output[0]], name=node.name, **options)

    yield
    try:
        onnx.checker.check_model(os.fspath(path))
    except onnx.checker.ValidationError as error:
        pathlib.Path(path).unlink()
        raise UserError(f"tf2onnx failed ({first_line(error):.200}): use another format") from error
