"""The gRPC client; it needs TensorFlow and tensorflow-serving-api."""

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from export.client import Client, TranslationError


class GrpcTranslationClient(Client):
    """Translates over gRPC; needs grpcio, TensorFlow and tensorflow-serving-api. Thread-safe.

    Args:
        target: the server, such as 127.0.0.1:8500.
        version: None = the newest.
        timeout: seconds to wait for an answer, the server's start included.
        batch_size: lines sent in one request.
    """

    def __init__(
        self,
        target: str,
        name: str,
        version: int | None = None,
        timeout: float = 60.0,
        batch_size: int = 32,
    ):
        super().__init__(batch_size)
        # -1: answers of any length; gRPC's own limit is 4 MiB.
        self._channel = grpc.insecure_channel(
            target, options=(("grpc.max_receive_message_length", -1),)
        )
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._name, self._version, self._timeout = name, version, timeout

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def _run(self, signature: str, inputs: dict[str, list[str]]) -> dict[str, list]:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = self._name
        request.model_spec.signature_name = signature
        if self._version is not None:
            request.model_spec.version.value = self._version
        for name, lines in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(lines, dtype="string"))
        try:
            response = self._stub.Predict(request, self._timeout, wait_for_ready=True)
        except grpc.RpcError as error:
            raise TranslationError(error.details(), error.code().name) from None
        outputs = {}
        for name, proto in response.outputs.items():
            array = tf.make_ndarray(proto)
            if proto.dtype == tf.string.as_datatype_enum:
                text = [value.decode("utf-8", "replace") for value in array.reshape(-1)]
                array = np.array(text, dtype=object).reshape(array.shape)
            outputs[name] = array.tolist()
        return outputs
