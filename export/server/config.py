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
        base_path: folder with a sub-folder for each version (`1/`, `2/`, ...).
        name: name of the model in URLs and model specs.
        model_config_file: file of several models, their versions and labels: a TensorFlow Serving
            `ModelServerConfig` in protocol buffer text. It replaces `base_path` and `name`.
        model_config_file_poll_wait_seconds: seconds between reads of that file; 0: read it once.
        host: address to listen on; 0.0.0.0: all.
        rest_port: port for REST; 0: any free port.
        grpc_port: port for gRPC; 0: any free port.
        max_batch_size: most rows of a batch that merges concurrent requests.
        batch_timeout_ms: milliseconds that a request waits for others to join its batch.
        poll_seconds: seconds between searches for new versions.
        workers: batches that run at the same time; with two, a slow line does not stop the others.
        max_queue: most requests that may wait; more get status 503 at once.
        max_request_rows: most rows of a request.
        max_request_values: most JSON values of a request.
        max_body_bytes: most bytes of a request.
        max_total_body_bytes: most bytes of all requests that are being received or answered; 0: 16
            times `max_body_bytes`. If there are more, requests above 64 KiB get status 503.
        max_connections: most open REST connections.
        request_timeout: seconds that a request may take, including its wait.
        header_timeout: seconds for a client to send the head of a request.
        body_timeout: seconds for a client to send a body, or to receive an answer.
        idle_timeout: seconds after which an idle connection is closed.
        grace_seconds: seconds for requests in flight to finish at shutdown.
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
                "--model-config-file names the models and their folders: leave OUT and --name out, "
                "or --model-config-file"
            )


def check_name(name: str, where: str) -> None:
    """Raises a UserError if a model's name, given at `where`, cannot be part of a URL."""
    if not re.fullmatch(r"[^/:?#%\s]+", name):
        raise UserError(f"{where}: the name {name!r} cannot be part of a URL: give another")
