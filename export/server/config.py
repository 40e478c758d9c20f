"""Settings of the local model server."""

import dataclasses
import re
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

from macaron_tf.errors import UserError
from macaron_tf.settings import Count, Settings


@dataclasses.dataclass(frozen=True)
class ServerConfig(Settings, in_models=False):
    """Settings of the server: the model, the address and the limits.

    Attributes:
        base_path: folder of the model, with a subfolder for each version (`1/`, `2/`, ...).
        name: name of the model in URLs.
        host: IP address to listen on; 0.0.0.0 means all addresses of the machine.
        port: port to listen on; 0 means any free port.
        max_batch_size: maximum number of rows in a batch of merged requests.
        batch_timeout_ms: maximum time that a request waits for other requests to fill its batch, in
            milliseconds.
        workers: maximum number of batches that the server computes at the same time.
        poll_seconds: interval at which the server looks for new versions, in seconds.
        max_queue: maximum number of waiting requests; further requests get HTTP status 503.
        max_request_rows: maximum number of rows in a request.
        max_body_bytes: maximum size of the body of a request, in bytes.
        grace_seconds: maximum time for requests in flight to finish at shutdown, in seconds.
    """

    base_path: str
    name: str
    host: str = "127.0.0.1"
    port: Annotated[int, Ge(0), Le(65535)] = 8501
    max_batch_size: Count = 32
    batch_timeout_ms: Annotated[float, Ge(0), Lt(1e6)] = 5.0
    workers: Count = 2
    poll_seconds: Annotated[float, Gt(0), Lt(1e6)] = 2.0
    max_queue: Count = 1024
    max_request_rows: Count = 1024
    max_body_bytes: Count = 16 * 1024 * 1024
    grace_seconds: Annotated[float, Ge(0), Lt(1e6)] = 30.0

    def check(self) -> None:
        if not re.fullmatch(r"[^/:?#%{}\s]+", self.name):
            raise UserError(f"--name {self.name!r} cannot be part of a URL: use letters and digits")
