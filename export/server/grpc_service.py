"""Server for TensorFlow Serving's gRPC services, PredictionService and ModelService."""

import concurrent.futures
import logging
import math
from collections.abc import Callable

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from export.server.core import Bodies, ServingCore, Spec
from export.server.errors import Code, ServingError, from_exception, invalid, too_late
from export.server.servable import Servable, Signature

_LOG = logging.getLogger(__name__)
# A call blocks its thread until its batch is done. With fewer threads than rows in a batch, batches
# would not fill.
_THREADS = 64
# Maps a dtype to the TensorProto field that TensorFlow Serving fills. Clients read, for example,
# `outputs["scores"].float_val`, which would be empty if the values were in `tensor_content`.
_FIELDS = {
    tf.float32: "float_val",
    tf.float64: "double_val",
    tf.int64: "int64_val",
    tf.uint32: "uint32_val",
    tf.uint64: "uint64_val",
    tf.bool: "bool_val",
    **dict.fromkeys((tf.int32, tf.int16, tf.int8, tf.uint8, tf.uint16), "int_val"),
}


class _Services(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    """Handlers for the RPCs Predict, GetModelMetadata and GetModelStatus.

    The inherited handlers for Classify, Regress, MultiInference and HandleReloadConfigRequest raise
    NotImplementedError, which `_Refusals` converts to UNIMPLEMENTED.
    """

    def __init__(self, core: ServingCore):
        self._core = core

    def Predict(self, request, context) -> predict_pb2.PredictResponse:
        """Runs a signature. If `output_filter` is set, the response has only the outputs in it."""
        config = self._core.config

        def read(servable: Servable):
            signature = servable.signature(request.model_spec.signature_name)
            _check_outputs(list(request.output_filter), signature)
            arrays = {
                name: _to_array(name, proto, config.max_body_bytes, reserve)
                for name, proto in request.inputs.items()
            }
            return signature, arrays

        measurement = self._core.measure(request.model_spec.name, "GRPC")
        with measurement, self._core.bodies.reservation() as reserve:
            future, servable, signature = self._core.submit(_model_spec(request), read)
            context.add_callback(future.cancel)  # if the client hangs up
            seconds, remaining = config.request_timeout, context.time_remaining()
            if remaining is not None:
                seconds = min(seconds, remaining)
            try:
                outputs = future.result(seconds)
            except concurrent.futures.TimeoutError:
                future.cancel()
                raise too_late(seconds) from None
            except concurrent.futures.CancelledError:
                raise ServingError(Code.CANCELLED, "the client cancelled the request") from None
            response = predict_pb2.PredictResponse()
            response.model_spec.name = request.model_spec.name
            response.model_spec.version.value = servable.version
            response.model_spec.signature_name = signature.name
            for name in request.output_filter or signature.outputs:
                _fill_tensor(response.outputs[name], outputs[name])
            return response

    def GetModelMetadata(self, request, context) -> get_model_metadata_pb2.GetModelMetadataResponse:
        """Returns the signatures of the requested version."""
        if not request.metadata_field:
            raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != "signature_def":
                raise invalid(f"Metadata field {field} is not supported: use signature_def")
        return self._core.metadata(_model_spec(request))

    def GetModelStatus(self, request, context) -> get_model_status_pb2.GetModelStatusResponse:
        """Returns the states of the requested version, or of all versions."""
        return self._core.statuses(_model_spec(request))


def build_server(core: ServingCore) -> tuple[grpc.Server, int]:
    """Builds the gRPC server and opens its port. The caller starts the server.

    Returns:
        The server, and the number of its port.

    Raises:
        OSError: the port cannot be opened.
    """
    config = core.config
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="grpc"),
        options=(
            ("grpc.max_receive_message_length", config.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            # By default, gRPC shares a port with another server, and both answer in turn.
            ("grpc.so_reuseport", 0),
            # By default, gRPC cancels a call without a reason if no thread takes it within 30 s,
            # as on a busy machine. With one day instead, only the client's deadline counts.
            ("grpc.server_max_unrequested_time_in_server", 86_400),
        ),
        maximum_concurrent_rpcs=config.max_queue,
        interceptors=(_Refusals(core.bodies),),
    )
    services = _Services(core)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(services, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(services, server)
    host = f"[{config.host}]" if ":" in config.host else config.host
    try:
        port = server.add_insecure_port(f"{host}:{config.grpc_port}")
    except RuntimeError as error:
        raise OSError(str(error)) from None
    if port == 0:
        raise OSError(f"cannot bind {host}:{config.grpc_port}")
    return server, port


class _Refusals(grpc.ServerInterceptor):
    """Interceptor that parses requests and converts exceptions to gRPC codes.

    A request that is not a valid message gets INVALID_ARGUMENT, and a method that is not served
    gets UNIMPLEMENTED. Without the interceptor, gRPC would log a traceback in both cases, and a
    message that is not valid would get INTERNAL. gRPC would also parse all messages in the single
    thread that serves all connections. The interceptor parses each message in the thread of its
    call.
    """

    def __init__(self, bodies: Bodies):
        self._bodies = bodies

    def intercept_service(self, continuation, handler_call_details):
        """Returns the method's handler. For a unary method, it also parses and converts errors."""
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler

        def call(data: bytes, context):
            try:
                with self._bodies.reservation() as reserve:
                    reserve(len(data))
                    return handler.unary_unary(handler.request_deserializer(data), context)
            except message.DecodeError:
                failure = invalid("the request is not a valid message for this method")
            except NotImplementedError:
                failure = ServingError(Code.UNIMPLEMENTED, "this server does not offer the method")
            except Exception as error:
                failure = from_exception(error)
                if failure.code == Code.INTERNAL:
                    _LOG.exception("a gRPC request failed")
            context.abort(failure.code, failure.message)

        return handler._replace(request_deserializer=None, unary_unary=call)


def _model_spec(request) -> Spec:
    if not request.HasField("model_spec"):
        raise invalid("Missing ModelSpec")
    spec = request.model_spec
    version = spec.version.value if spec.HasField("version") else None
    return spec.name, version, spec.version_label


def _check_outputs(names: list[str], signature: Signature) -> None:
    for name in names:
        if name not in signature.outputs:
            raise invalid(
                f"output tensor alias not found in signature: {name} Outputs expected to be in "
                f"the set {{{','.join(signature.outputs)}}}."
            )
        if names.count(name) > 1:
            raise invalid(f"duplicate output tensor alias: {name}")


def _to_array(
    name: str, proto: tensor_pb2.TensorProto, max_bytes: int, reserve: Callable
) -> np.ndarray:
    """Converts a TensorProto to an array.

    The array's size is checked first, because a proto of a few bytes can declare 10^12 zeros.

    Args:
        name: name of the input, for error messages.
        proto: the proto.
        max_bytes: maximum size of the array in bytes.
        reserve: function that counts the array's bytes as in use (see `Bodies.reservation`).

    Raises:
        ServingError: INVALID_ARGUMENT if `proto` is not valid or the array is too large, or
            RESOURCE_EXHAUSTED if the requests in flight hold more than `max_total_body_bytes`.
    """
    sizes = [dim.size for dim in proto.tensor_shape.dim]
    if proto.tensor_shape.unknown_rank or any(size < 0 for size in sizes):
        raise invalid(f"input {name!r}: the TensorProto has an unknown shape: set all dimensions")
    try:
        dtype = tf.dtypes.as_dtype(proto.dtype)
        size = math.prod(sizes) * (dtype.size or 8)  # a string takes at least a pointer
        if size > max_bytes:
            raise invalid(
                f"input {name!r}: a tensor of shape {sizes} exceeds {max_bytes} bytes: send fewer "
                "rows"
            )
        reserve(size)
        return tf.make_ndarray(proto)
    except (TypeError, ValueError, LookupError, ArithmeticError):
        is_known = proto.dtype in types_pb2.DataType.values()
        dtype_name = types_pb2.DataType.Name(proto.dtype) if is_known else str(proto.dtype)
        raise invalid(
            f"input {name!r}: the TensorProto is not a valid tensor with dtype {dtype_name} and "
            f"shape {sizes}: make the proto with tf.make_tensor_proto"
        ) from None


def _fill_tensor(proto: tensor_pb2.TensorProto, array: np.ndarray) -> None:
    if array.dtype == np.object_:
        proto.dtype = tf.string.as_datatype_enum
        proto.string_val.extend(array.reshape(-1).tolist())
    else:
        dtype = tf.dtypes.as_dtype(array.dtype)
        if dtype not in _FIELDS:
            proto.CopyFrom(tf.make_tensor_proto(array))
            return
        proto.dtype = dtype.as_datatype_enum
        getattr(proto, _FIELDS[dtype]).extend(array.reshape(-1).tolist())
    for size in array.shape:
        proto.tensor_shape.dim.add().size = size
