"""OpenVINO export of a task's network, and execution in OpenVINO."""

import os
import pathlib
from collections.abc import Mapping

import numpy as np

from macaron_tf.engines.graph import under_policy
from macaron_tf.engines.networks import OUTPUT, TaskNetwork, require_one_pass
from macaron_tf.errors import UserError, needed

# Path within a version's folder; a .bin file beside it has the weights.
FILE = os.path.join("openvino", "openvino_model.xml")
# Settings for float32. By default OpenVINO uses bfloat16 if the CPU supports it, which can change
# outputs by 3e-3.
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


def write_openvino(network: TaskNetwork, folder: pathlib.Path) -> None:
    """Exports a network in float32 as `FILE` in a version's folder, with the output `computed`."""
    with needed("--openvino"):
        import openvino  # noqa: F401

    require_one_pass(network.task, "--openvino", "leave the flag out")
    path = folder / FILE
    path.parent.mkdir(parents=True)
    with under_policy(network.network, "float32", "the network for --openvino"):
        network.export(
            str(path), "openvino", verbose=False, input_signature=network.row_signature()
        )


class OpenVinoNetwork:
    """Network that `write_openvino` wrote, opened in OpenVINO on the CPUs of this machine.

    By default, `settings` make OpenVINO compute in float32.
    """

    def __init__(self, folder: str | os.PathLike, settings: Mapping[str, str] = EXACT):
        with needed("OpenVINO"):
            import openvino

        path = pathlib.Path(folder, FILE)
        try:
            self._model = openvino.Core().compile_model(str(path), "CPU", dict(settings))
        except RuntimeError as error:
            raise UserError(
                f"{path} cannot be opened by OpenVINO ({error!s:.200}): export the model again"
            ) from error

    def compute(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Computes the network's outputs in float32 from rows of ids (see `OnePass.compute`)."""
        names = (entry.node.friendly_name for entry in self._model.inputs)
        return self._model([rows[name] for name in names])[OUTPUT]
