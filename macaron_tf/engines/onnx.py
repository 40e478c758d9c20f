"""ONNX export of a task's network, and execution in ONNX Runtime."""

import os
import pathlib
from collections.abc import Mapping

import numpy as np

from macaron_tf.engines.graph import under_policy
from macaron_tf.engines.networks import OUTPUT, TaskNetwork, require_one_pass
from macaron_tf.errors import UserError, needed
from macaron_tf.models.onnx_file import onnx_file

FILE = os.path.join("onnx", "model.onnx")  # path within a version's folder


def write_onnx(network: TaskNetwork, folder: pathlib.Path) -> None:
    """Exports a network in float32 as `FILE` in a version's folder, with the output `computed`."""
    require_one_pass(network.task, "--onnx", "leave the flag out")
    path = folder / FILE
    path.parent.mkdir(parents=True)
    with onnx_file(path), under_policy(network.network, "float32", "the network for --onnx"):
        network.export(str(path), "onnx", verbose=False, input_signature=network.row_signature())


class OnnxNetwork:
    """Network that `write_onnx` wrote, opened in ONNX Runtime on the CPUs of this machine."""

    def __init__(self, folder: str | os.PathLike):
        with needed("ONNX Runtime"):
            import onnxruntime

        path, options = pathlib.Path(folder, FILE), onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise UserError(
                f"{path} cannot be opened by ONNX Runtime ({error!s:.200}): export the model again"
            ) from error

    def compute(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Computes the network's outputs in float32 from rows of ids (see `OnePass.compute`)."""
        inputs = {entry.name: rows[entry.name] for entry in self._session.get_inputs()}
        return self._session.run([OUTPUT], inputs)[0]
