"""Tests of TensorFlow Serving's gRPC API on a live server."""

import subprocess
import sys
import time

import grpc
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from export.server.config import ServerConfig
from export.server.core import ServingCore
from export.server.grpc_service import build_server


@pytest.fixture(scope="module")
def channel(live_server):
    with grpc.insecure_channel(f"127.0.0.1:{live_server.grpc_port}") as made:
        yield made


@pytest.fixture(scope="module")
def prediction(channel):
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


def make_request(signature="", name="toy", version=None, **inputs):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return request


def test_predict_echoes_the_version_and_fills_typed_fields(prediction):
    response = prediction.Predict(make_request(text=[b"a dog", b"\xff"]), 20)
    assert response.model_spec.name == "toy"
    assert response.model_spec.version.value == 1
    assert response.model_spec.signature_name == "serving_default"
    assert response.outputs["translations"].string_val[0] == b"v1:A DOG"
    assert list(response.outputs["scores"].float_val) == pytest.approx([-0.5, -2.0, -0.1, -1.2])
    assert tf.make_ndarray(response.outputs["scores"]).shape == (2, 2)


def test_every_dtype_comes_back(prediction):
    request = make_request(
        "numbers",
        ints=[[1, 2, 3]],
        floats=tf.constant([0.5]),
        flags=[True],
        image_bytes=[b"\x00"],
    )
    outputs = prediction.Predict(request, 20).outputs
    assert {name: tf.make_ndarray(proto).tolist() for name, proto in outputs.items()} == {
        "total": [7],
        "half": [0.25],
        "flipped": [False],
        "out_bytes": [b"\x00\xff"],
    }


def test_a_scalar_string_comes_back(prediction):
    output = prediction.Predict(make_request("motto", text=["a", "b"]), 20).outputs["motto"]
    assert list(output.string_val) == ["abg\u00fct\0".encode()] and not output.tensor_shape.dim


def test_output_filter(prediction):
    request = make_request(text=["a"])
    request.output_filter.append("scores")
    assert list(prediction.Predict(request, 20).outputs) == ["scores"]
    request.output_filter.append("nothing")
    with pytest.raises(grpc.RpcError) as caught:
        prediction.Predict(request, 20)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def huge_request():
    request = make_request(text=["a"])
    request.inputs["text"].tensor_shape.dim[0].size = 10**12
    return request


def typed(dtype, **values):
    """Returns a request whose tensor has one element, the type `dtype` and the fields `values`."""
    request = make_request(text=["a"])
    proto = tensor_pb2.TensorProto(dtype=dtype, **values)
    proto.tensor_shape.dim.add().size = 1
    request.inputs["text"].CopyFrom(proto)
    return request


@pytest.mark.parametrize(
    "request_, code",
    [
        (make_request(name="other", text=["a"]), "NOT_FOUND"),
        (make_request(version=9, text=["a"]), "NOT_FOUND"),
        (make_request("no", text=["a"]), "INVALID_ARGUMENT"),
        (make_request(words=["a"]), "INVALID_ARGUMENT"),
        (make_request(text=[1]), "INVALID_ARGUMENT"),
        (make_request(text=[["a"]]), "INVALID_ARGUMENT"),
        (make_request(text=tf.constant([], tf.string)), "INVALID_ARGUMENT"),
        (make_request(text=["FAIL"]), "INVALID_ARGUMENT"),
        (huge_request(), "INVALID_ARGUMENT"),
        (predict_pb2.PredictRequest(), "INVALID_ARGUMENT"),
        (typed("DT_RESOURCE"), "INVALID_ARGUMENT"),
        (typed("DT_VARIANT_REF"), "INVALID_ARGUMENT"),
        (typed("DT_UINT8", int_val=[70_000]), "INVALID_ARGUMENT"),
        (typed("DT_FLOAT", tensor_content=b"abc"), "INVALID_ARGUMENT"),
    ],
)
def test_status_codes(prediction, request_, code):
    with pytest.raises(grpc.RpcError) as caught:
        prediction.Predict(request_, 20)
    assert caught.value.code().name == code
    assert caught.value.details()


def test_claimed_strings_take_a_pointer_each(prediction):
    request = make_request(text=["a"])
    request.inputs["text"].tensor_shape.dim[0].size = 200_000
    with pytest.raises(grpc.RpcError, match="exceeds 1000000 bytes"):
        prediction.Predict(request, 20)


def test_the_bytes_of_all_messages_together_have_a_limit():
    config = ServerConfig("x", "x", grpc_port=0, max_total_body_bytes=1)
    server, port = build_server(ServingCore(config, {}, None))
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        for length, code in ((60_000, "NOT_FOUND"), (70_000, "RESOURCE_EXHAUSTED")):
            request = get_model_status_pb2.GetModelStatusRequest()
            request.model_spec.name = "a" * length
            with pytest.raises(grpc.RpcError) as caught:
                stub.GetModelStatus(request, 20)
            assert caught.value.code().name == code
    server.stop(0)


def test_metadata_and_status(prediction, channel):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "toy"
    response = prediction.GetModelMetadata(request, 20)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert "serving_default" in signatures.signature_def
    assert response.model_spec.version.value == 1
    request.metadata_field[0] = "other"
    with pytest.raises(grpc.RpcError) as caught:
        prediction.GetModelMetadata(request, 20)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    stub = model_service_pb2_grpc.ModelServiceStub(channel)
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "toy"
    (status,) = stub.GetModelStatus(request, 20).model_version_status
    assert status.version == 1
    assert status.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE
    request.model_spec.version.value = 5
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetModelStatus(request, 20)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "method, sent, code",
    [
        ("Predict", b"\xff\xff", "INVALID_ARGUMENT"),  # gRPC's default is INTERNAL
        ("Predict", b"\x0a\x02\xff\xff", "INVALID_ARGUMENT"),
        ("Predict", b"a" * 1_100_000, "RESOURCE_EXHAUSTED"),
        ("Classify", b"", "UNIMPLEMENTED"),
        ("None", b"", "UNIMPLEMENTED"),
    ],
)
def test_bytes_that_are_no_request_leave_no_traceback(channel, caplog, method, sent, code):
    call = channel.unary_unary(f"/tensorflow.serving.PredictionService/{method}")
    with pytest.raises(grpc.RpcError) as caught:
        call(sent, 20)
    assert caught.value.code().name == code
    assert "Traceback" not in caplog.text


def test_a_deadline_is_kept(prediction):
    with pytest.raises(grpc.RpcError) as caught:
        prediction.Predict(make_request("slow", steps=[300_000]), 0.2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


# Serves a folder, and holds Python's interpreter lock for some seconds after a line on stdin.
_HELD_UP = """
import ctypes, sys
from export.server.config import ServerConfig
from export.server.model_server import ModelServer
with ModelServer(ServerConfig(sys.argv[1], "toy", rest_port=0, grpc_port=0)) as server:
    print(server.grpc_port, flush=True)
    sys.stdin.readline()
    ctypes.PyDLL(None).sleep(int(sys.argv[2]))
    sys.stdin.readline()
"""


@pytest.mark.slow
def test_calls_that_wait_long_for_a_busy_server_are_answered(model_folder):
    """Calls are answered after 33 seconds, although gRPC's default timeout is 30 seconds."""
    words = [sys.executable, "-c", _HELD_UP, str(model_folder), "33"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as server:
        try:
            with grpc.insecure_channel(f"127.0.0.1:{int(server.stdout.readline())}") as channel:
                predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
                request = make_request(text=[b"a dog"])
                predict(request, 60)
                server.stdin.write("now\n")
                server.stdin.flush()
                time.sleep(1)
                calls = [predict.future(request, 120) for _ in range(5)]
                assert all(call.result().outputs["translations"].string_val for call in calls)
        finally:
            server.kill()
