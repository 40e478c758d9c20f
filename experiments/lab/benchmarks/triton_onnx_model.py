"""Model for NVIDIA Triton's Python backend that runs a classifier with ONNX Runtime."""

import json

import numpy as np
import onnxruntime
import tokenizers
import triton_python_backend_utils as triton  # exists only in processes of Triton


class TritonPythonModel:
    """A classifier with the interface of a Triton Python model.

    Triton calls `initialize` once, and `execute` for each batch of requests.
    """

    def initialize(self, arguments: dict[str, str]) -> None:
        parameters = json.loads(arguments["model_config"])["parameters"]
        values = {name: parameter["string_value"] for name, parameter in parameters.items()}
        self._tokenizer = tokenizers.Tokenizer.from_file(values["tokenizer"])
        self._tokenizer.enable_padding()
        self._tokenizer.enable_truncation(int(values["max_length"]))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(values["threads"])
        # Clients and Triton share the cores, so waiting threads must not spin.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            values["onnx"], options, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list) -> list:
        parts = [request.inputs()[0].as_numpy().ravel() for request in requests]
        rows = self._tokenizer.encode_batch([text.decode() for part in parts for text in part])
        ids = {
            "token_ids": np.array([row.ids for row in rows], np.int32),
            "segment_ids": np.array([row.type_ids for row in rows], np.int32),
        }
        inputs = {node.name: ids[node.name] for node in self._session.get_inputs()}
        [logits] = self._session.run(["computed"], inputs)  # (B, C)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities = weights / weights.sum(axis=-1, keepdims=True)
        ends = np.cumsum([len(part) for part in parts])[:-1]
        return [
            triton.InferenceResponse([triton.Tensor("probabilities", part)])
            for part in np.split(probabilities, ends)
        ]
