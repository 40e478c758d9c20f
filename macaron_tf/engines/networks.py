"""A task's network as a Keras model, its export as ONNX and OpenVINO, and their runtimes."""

import contextlib
import functools
import pathlib
from collections.abc import Mapping
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.engines.graph import column_specs, traced, under_policy
from macaron_tf.errors import UserError, needed
from macaron_tf.io.paths import clear_errors
from macaron_tf.kernels import implementation_scope
from macaron_tf.models.onnx_file import onnx_file
from macaron_tf.tasks.base import OnePass, TaskKind

OUTPUT = "computed"
# Formats besides the SavedModel, with the path of the network in a version's folder. Beside the
# file of OpenVINO lies a .bin file with the weights.
FORMATS = {"onnx": "onnx/model.onnx", "openvino": "openvino/openvino_model.xml"}
# Settings of OpenVINO for float32. By default OpenVINO uses bfloat16 if the CPU supports it, which
# can change outputs by 3e-3.
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


class TaskNetwork(keras.Model):
    """Keras model that maps rows of ids to `{"computed": outputs}` by `OnePass.compute`.

    An export uses one instance for all formats, because tracing `rows` takes about a second.
    """

    def __init__(self, task: TaskKind):
        super().__init__(name="network")
        self.network, self.task, self.built = task.network, task, True

    def call(self, rows):
        with implementation_scope("loop"):  # TensorFlow's own operations
            return {OUTPUT: self.task.compute(rows)}

    @functools.cached_property
    def rows(self) -> dict[str, tf.Tensor]:
        """Symbolic tensors of unknown batch size and row length, by input of `task.compute`."""
        specs = column_specs(self.task.inputs)
        return traced(lambda *texts: self.task.prepare(*texts)[0], *specs).structured_outputs


def require_one_pass(task: TaskKind, where: str, mend: str) -> None:
    """Raises a UserError for a task that decodes token by token."""
    if not isinstance(task, OnePass):
        raise UserError(f"{where} takes no {task.name}, which decodes token by token: {mend}")


def write_network(network: TaskNetwork, folder: pathlib.Path, name: str) -> None:
    """Exports a network in float32 to a version's folder, in the format `name` of `FORMATS`."""
    require_one_pass(network.task, f"--{name}", "leave the flag out")
    checked, path = contextlib.nullcontext(), folder / FORMATS[name]
    if name == "onnx":
        checked = onnx_file(path)
    else:
        with needed("--openvino"):
            import openvino  # noqa: F401
    specs = {
        key: keras.InputSpec(ids.dtype.name, ids.shape.as_list(), name=key)
        for key, ids in network.rows.items()
    }
    path.parent.mkdir(parents=True)
    with checked, under_policy(network.network, "float32", f"the network for --{name}"):
        network.export(str(path), name, verbose=False, input_signature=[specs])


class OpenedNetwork(Protocol):
    """Interface of a task's network that LiteRT, ONNX Runtime or OpenVINO has loaded."""

    def compute(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Computes the network's outputs in float32 from rows of ids (see `OnePass.compute`)."""

    def fits(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns booleans `(B,)`: whether the engine accepts rows of this length."""
        return np.ones(len(rows["token_ids"]), bool)


def _opening(path: pathlib.Path, runtime: str) -> contextlib.AbstractContextManager[None]:
    # The runtimes' exceptions have no common base class.
    failure, mend = f"{path} cannot be opened by {runtime}", "export the model again"
    return clear_errors(failure, mend, (Exception,))


class OnnxNetwork(OpenedNetwork):
    """Network that `write_network` wrote, opened in ONNX Runtime on the CPUs of this machine."""

    def __init__(self, folder: pathlib.Path):
        with needed("ONNX Runtime"):
            import onnxruntime

        path, options = folder / FORMATS["onnx"], onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        with _opening(path, "ONNX Runtime"):
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )

    def compute(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        inputs = {entry.name: rows[entry.name] for entry in self._session.get_inputs()}
        return self._session.run([OUTPUT], inputs)[0]


class OpenVinoNetwork(OpenedNetwork):
    """Network that `write_network` wrote, opened in OpenVINO for float32 on this machine's CPUs."""

    def __init__(self, folder: pathlib.Path):
        with needed("OpenVINO"):
            import openvino

        path = folder / FORMATS["openvino"]
        with _opening(path, "OpenVINO"):
            self._model = openvino.Core().compile_model(str(path), "CPU", EXACT)

    def compute(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        names = (entry.node.friendly_name for entry in self._model.inputs)
        return self._model([rows[name] for name in names])[OUTPUT]
