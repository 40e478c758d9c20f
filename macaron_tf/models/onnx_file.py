"""ONNX export: converts an operation that tf2onnx lacks, and checks the written file."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from macaron_tf.errors import UserError, needed


class _Erfc:
    """Converts `Erfc`, which the exact GELU uses, to `1 - Erf(x)`; the error is at most 6e-8."""

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
    """Within this context tf2onnx can convert `Erfc`; at its end the written file is checked.

    The check is needed because tf2onnx raises no error for an operation that it does not know: it
    writes a file that no runtime opens.

    Raises:
        UserError: tf2onnx is not installed, or the file is not valid. An invalid file is removed.
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
        raise UserError(
            f"tf2onnx does not know a part of this network: export another format ({cause:.200})"
        ) from error
