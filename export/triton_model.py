"""Runs a signature of an exported model in NVIDIA Triton's Python backend.

The `model.py` that `export.triton` writes imports this module. Triton runs one process for each
model version.
"""

import collections
import functools
import json
import logging

import numpy as np
import triton_python_backend_utils as triton  # exists only in Triton's processes

from export.server.batching import run_joined
from export.server.errors import ServingError, from_exception
from export.server.servable import Servable


class TritonPythonModel:
    """Model class that Triton's Python backend loads.

    Triton calls `initialize` once, `execute` for each batch of requests, and `finalize` at the end.
    """

    def initialize(self, arguments: dict[str, str]) -> None:
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        config = json.loads(arguments["model_config"])
        parameters = {
            name: parameter["string_value"] for name, parameter in config["parameters"].items()
        }
        version = int(arguments["model_version"])
        self._servable = Servable(f"{parameters['folder']}/{version}", version)
        self._signature = self._servable.signature(parameters["signature"])
        self._max_rows = int(config["max_batch_size"]) or 1 << 30
        self._servable.warm_up()

    def execute(self, requests: list) -> list:
        responses = [None] * len(requests)
        groups = collections.defaultdict(list)  # groups of requests to run as one batch
        for index, request in enumerate(requests):
            try:
                inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
                rows = self._signature.check(inputs, self._max_rows)
                shapes = tuple(array.shape[1:] for array in inputs.values())
                key = shapes if self._signature.batchable else index
                groups[key].append((index, rows, inputs))
            except ServingError as error:
                responses[index] = _failure(error)
        for group in groups.values():
            for index, response in self._responses(group):
                responses[index] = response
        return responses

    def _responses(self, group: list[tuple[int, int, dict[str, np.ndarray]]]):
        """Runs requests as one batch, and yields the index and the response of each request.

        The responses may come in another order than the requests in `group`.

        Args:
            group: a tuple (index, number of rows, inputs) for each request. The index is the
                position of the request in the list that `execute` gets.
        """
        run = functools.partial(self._servable.run, self._signature)
        indices = [index for index, *_ in group]
        for i, result in run_joined(run, self._signature, [request for _, *request in group]):
            if isinstance(result, Exception):
                yield indices[i], _failure(from_exception(result))
            else:
                tensors = [triton.Tensor(name, array) for name, array in result.items()]
                yield indices[i], triton.InferenceResponse(tensors)

    def finalize(self) -> None:
        self._servable.close()


def _failure(error: ServingError):
    codes = {"INVALID_ARGUMENT": triton.TritonError.INVALID_ARG}
    code = codes.get(error.code.name, triton.TritonError.INTERNAL)
    return triton.InferenceResponse(error=triton.TritonError(error.message, code))
