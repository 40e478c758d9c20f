"""Writes a task's network for OpenVINO, which runs on Intel's CPUs and GPUs, and opens it again."""

import os
import pathlib
from collections.abc import Mapping

import numpy as np

from macaron_tf.engines.graph import under_policy
from macaron_tf.engines.networks import OUTPUT, TaskNetwork, one_pass
from macaron_tf.errors import UserError, needed

FILE = os.path.join("openvino", "openvino_model.xml")  # in a version's folder; weights in .bin
# Settings to compute in float32. By default OpenVINO uses bfloat16 if the CPU supports it, and
# outputs differ by 3e-3.
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


def write_openvino(network: TaskNetwork, folder: pathlib.Path) -> None:
    """Writes the network, in float32, as `FILE` into a version's folder. Its output is `computed`.

    Raises:
        UserError: the network is quantized or does not convert, or openvino is not installed.
    """
    with needed("--openvino"):
        import openvino  # noqa: F401

    one_pass(network.task, "--openvino", "leave the flag out")
    path = folder / FILE
    path.parent.mkdir(parents=True)
    with under_policy(network.network, "float32", "--openvino: the network"):
        network.export(
            str(path), "openvino", verbose=False, input_signature=network.row_signature()
        )


class OpenVinoNetwork:
    """The network that `write_openvino` wrote, opened by OpenVINO on this machine's CPUs.

    Args:
        settings: OpenVINO's settings; by default it computes in float32.

    Raises:
        UserError: openvino is not installed, or cannot open the file.
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
        """Returns the outputs of `OnePass.compute` in float32."""
        names = (entry.node.friendly_name for entry in self._model.inputs)
        return self._model([rows[name] for name in names])[OUTPUT]
