"""Settings of the local model server."""

import dataclasses
import re
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

from macaron_tf.errors import UserError
from macaron_tf.io.serving import MAX_VERSION
from macaron_tf.settings import Count, Settings

Port = Annotated[int, Ge(0), Le(65535)]
Seconds = Annotated[float, Gt(0), Lt(1e6)]


@dataclasses.dataclass(frozen=True)
class ServerConfig(Settings, in_models=False):
    """Settings of the server: the models, the addresses and the limits.

    Attributes:
        base_path: folder of the model, with a subfolder for each version (`1/`, `2/`, ...).
        name: name of the model in URLs and in gRPC requests.
        model_config_file: TensorFlow Serving model configuration file, a `ModelServerConfig` in
            protocol buffer text format. The file lists the folders, names, versions and labels of
            the models, and replaces the argument OUT and --name.
        model_config_file_poll_wait_seconds: interval at which the server reads the model
            configuration file again, in seconds; 0 means that the server reads the file only once.
        host: IP address to listen on; 0.0.0.0 means all addresses of the machine.
        rest_port: port for REST requests; 0 means any free port.
        grpc_port: port for gRPC requests; 0 means any free port.
        max_batch_size: maximum number of rows in a batch of merged requests.
        batch_timeout_ms: maximum time that a request waits for other requests to fill its batch, in
            milliseconds.
        poll_seconds: interval at which the server looks for new versions in the folders of the
            models, in seconds.
        workers: maximum number of batches that the server computes at the same time.
        max_queue: maximum number of waiting requests, and maximum number of concurrent gRPC calls;
            further requests get HTTP status 503 or the gRPC code RESOURCE_EXHAUSTED.
        max_request_rows: maximum number of rows in a request.
        max_request_values: maximum number of JSON values in a REST request, counted as its commas,
            opening brackets and opening braces.
        max_body_bytes: maximum size of the body of a request, compressed or not, in bytes.
        max_total_body_bytes: maximum total size of all requests in flight, in bytes. Above this
            size, new requests of more than 64 KiB get HTTP status 503 or the gRPC code
            RESOURCE_EXHAUSTED. 0 means 16 times --max-body-bytes.
        max_connections: maximum number of open REST connections.
        request_timeout: maximum time from the receipt of a request to its response, in seconds.
        header_timeout: maximum time for receiving the headers of a REST request, in seconds.
        body_timeout: maximum time for receiving the body of a REST request or for sending the
            response, in seconds.
        idle_timeout: time after which the server closes an idle REST connection, in seconds.
        grace_seconds: maximum time for requests in flight to finish at shutdown, in seconds.
    """

    base_path: str = ""
    name: str = ""
    model_config_file: str | None = None
    model_config_file_poll_wait_seconds: Annotated[float, Ge(0), Lt(1e6)] = 0.0
    host: str = "127.0.0.1"
    rest_port: Port = 8501
    grpc_port: Port = 8500
    max_batch_size: Count = 32
    batch_timeout_ms: Annotated[float, Ge(0), Lt(1e6)] = 5.0
    poll_seconds: Seconds = 2.0
    workers: Count = 2
    max_queue: Count = 1024
    max_request_rows: Count = 1024
    max_request_values: Count = 1024 * 1024
    max_body_bytes: Count = 16 * 1024 * 1024
    max_total_body_bytes: Annotated[int, Ge(0), Le(MAX_VERSION)] = 0
    max_connections: Count = 1024
    request_timeout: Seconds = 120.0
    header_timeout: Seconds = 20.0
    body_timeout: Seconds = 60.0
    idle_timeout: Seconds = 120.0
    grace_seconds: Annotated[float, Ge(0), Lt(1e6)] = 30.0

    def check(self) -> None:
        if self.model_config_file is None:
            check_name(self.name, "--name")
        elif self.base_path or self.name:
            raise UserError(
                "--model-config-file cannot be combined with OUT or --name: leave out "
                "--model-config-file, or both OUT and --name"
            )


def check_name(name: str, where: str) -> None:
    """Checks that a model's name can be part of a URL.

    Args:
        name: the name.
        where: flag or field with the name, for the error message.

    Raises:
        UserError: the name is empty, or contains whitespace or one of `/:?#%`.
    """
    if not re.fullmatch(r"[^/:?#%\s]+", name):
        raise UserError(
            f"{where}: the name {name!r} cannot be part of a URL: give a non-empty name "
            "without spaces and without the characters / : ? # %"
        )
