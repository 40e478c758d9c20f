"""Fuzz tests that send almost valid messages and random bytes to a live server over gRPC."""

import socket

import grpc
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import predict_pb2

from tests.fuzz.profiles import examples, hypothesis, strategies  # isort: skip

from tests.export.conftest import live_server, toy_versions  # noqa: F401, fixtures

_REFUSALS = {"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}
_METHODS = [
    "PredictionService/Predict", "PredictionService/GetModelMetadata",
    "PredictionService/Classify", "PredictionService/MultiInference",
    "ModelService/GetModelStatus", "ModelService/HandleReloadConfigRequest", "ModelService/None",
]  # fmt: skip
_sizes = strategies.sampled_from([-(2**63), -5, -1, 0, 1, 2, 3, 2**31, 2**40, 2**62, 2**63 - 1])
_int64 = strategies.sampled_from([-(2**63), -1, 0, 1, 2, 2**31, 2**63 - 1]) | strategies.integers(
    -(2**63), 2**63 - 1
)
_words = strategies.text(max_size=5) | strategies.sampled_from(["serving_default", "toy"])
_right = {"text": [b"a"], "source": [b"a"], "target": [b"b"], "ints": [[1, 2, 3]], "x": 1.0}
_right |= {"floats": [0.5], "flags": [True], "image_bytes": [b"\xff"], "steps": [3]}


@strategies.composite
def tensors(draw):
    """Draws a TensorProto whose dtype, shape and values may disagree."""
    if draw(strategies.booleans()):
        name = draw(strategies.sampled_from(sorted(_right)))
        proto = tf.make_tensor_proto(_right[name])
    else:
        proto = tensor_pb2.TensorProto(dtype=draw(strategies.integers(0, 130)))
        proto.tensor_shape.unknown_rank = draw(strategies.booleans())
    for size in draw(strategies.lists(_sizes, max_size=3)):
        proto.tensor_shape.dim.add().size = size
    if draw(strategies.booleans()):
        proto.tensor_content = draw(strategies.binary(max_size=20))
    proto.string_val.extend(draw(strategies.lists(strategies.binary(max_size=5), max_size=2)))
    proto.int_val.extend(draw(strategies.lists(strategies.integers(-9, 70_000), max_size=2)))
    proto.half_val.extend(draw(strategies.lists(strategies.integers(-9, 70_000), max_size=1)))
    proto.float_val.extend(draw(strategies.lists(strategies.floats(width=32), max_size=2)))
    if draw(strategies.integers(0, 5)) == 0:
        proto.resource_handle_val.add().device = "x"
        proto.version_number = 7
    return proto


@strategies.composite
def requests(draw):
    """Draws the bytes of a PredictRequest.

    The bytes are also sent as other request types, whose first fields are the same.
    """
    request = predict_pb2.PredictRequest()
    spec = request.model_spec
    spec.name = draw(strategies.sampled_from(["toy", "toy", "toy", "other", ""]) | _words)
    signatures = strategies.sampled_from(["", "score", "numbers", "scalar", "slow"])
    spec.signature_name = draw(signatures | _words)
    if draw(strategies.integers(0, 3)) == 0:
        spec.version.value = draw(_int64)
    elif draw(strategies.integers(0, 3)) == 0:
        spec.version_label = draw(_words)
    for name in draw(
        strategies.lists(strategies.sampled_from(sorted(_right)) | _words, max_size=4)
    ):
        request.inputs[name].CopyFrom(draw(tensors()))
    request.output_filter.extend(draw(strategies.lists(_words, max_size=2)))
    sent = request.SerializeToString()
    if draw(strategies.integers(0, 3)) == 0:  # damaged
        at = draw(strategies.integers(0, len(sent)))
        sent = sent[:at] + draw(strategies.binary(max_size=4)) + sent[at + 1 :]
    return sent


def ask(channel, method: str, sent: bytes) -> str:
    """Sends a request; returns the name of the gRPC status."""
    try:
        channel.unary_unary(f"/tensorflow.serving.{method}")(sent, 20)
    except grpc.RpcError as error:
        assert len(error.details()) < 1100
        return error.code().name
    return "OK"


@pytest.fixture(scope="module")
def channel(live_server):  # noqa: F811
    with grpc.insecure_channel(f"127.0.0.1:{live_server.grpc_port}") as made:
        yield made


@examples(150, 1000)
@hypothesis.given(
    method=strategies.just(_METHODS[0]) | strategies.sampled_from(_METHODS),
    sent=requests() | strategies.binary(max_size=60),
)
def test_any_request(channel, caplog, method, sent):
    assert ask(channel, method, sent) in _REFUSALS | {"OK"}
    assert "Traceback" not in caplog.text
    right = predict_pb2.PredictRequest()
    right.model_spec.name = "toy"
    right.inputs["text"].CopyFrom(tf.make_tensor_proto([b"a"]))
    assert ask(channel, _METHODS[0], right.SerializeToString()) == "OK"


@examples(10, 100)
@hypothesis.given(sent=strategies.binary(max_size=60), begun=strategies.booleans())
def test_connections_that_speak_no_grpc(live_server, channel, caplog, sent, begun):  # noqa: F811
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if begun else b""
    with socket.create_connection(("127.0.0.1", live_server.grpc_port), timeout=20) as half:
        half.sendall(preface + sent)
        assert ask(channel, "ModelService/GetModelStatus", b"\x0a\x05\x0a\x03toy") == "OK"
    assert "Traceback" not in caplog.text
