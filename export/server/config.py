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
    """The model or models to serve, the addresses and the limits.

    Attributes:
        base_path: folder with one sub-folder per version (`1/`, `2/`, ...).
        name: the model's name in URLs and model specs.
        model_config_file: several models, their versions and labels, as TensorFlow Serving's
            `ModelServerConfig` in protocol buffer text; instead of `base_path` and `name`.
        model_config_file_poll_wait_seconds: seconds between reads of that file; 0 = once.
        host: address to listen on; 0.0.0.0 = all.
        rest_port: REST port; 0 = any free one.
        grpc_port: gRPC port; 0 = any free one.
        max_batch_size: rows that concurrent requests may be merged to.
        batch_timeout_ms: milliseconds a request waits for others to join its batch.
        poll_seconds: seconds between looks for new versions.
        workers: batches run at once. Two, so that one slow line does not stop the others.
        max_queue: requests that may wait; more are refused at once with 503.
        max_request_rows: rows in one request.
        max_request_values: values in one request, as JSON.
        max_body_bytes: bytes of one request.
        max_total_body_bytes: bytes of all requests together, from their arrival to their answers;
            0 = 16 times `max_body_bytes`. Beyond, requests above 64 KiB are refused with 503.
        max_connections: open REST connections.
        request_timeout: seconds a request may take, its wait included.
        header_timeout: seconds a client has to send a request's head.
        body_timeout: seconds a client has to send a body, or to take an answer.
        idle_timeout: seconds a kept-alive connection may stay silent.
        grace_seconds: seconds that requests in flight are given at shutdown.
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
                "--model-config-file names the models and their folders: give it without OUT and "
                "without --name, or leave it out"
            )


def check_name(name: str, where: str) -> None:
    """Raises a UserError where a model's name, given at `where`, cannot stand in a URL."""
    if not re.fullmatch(r"[^/:?#%\s]+", name):
        raise UserError(f"{where}: the name {name!r} cannot stand in a URL; give another")
