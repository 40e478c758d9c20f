"""Settings of the local model server."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ServerConfig:
    """What to serve and within which limits.

    Args:
        base_path: folder holding one sub-folder a version (`1/`, `2/`, ...).
        name: the model's name in URLs and model specs.
        host: address to listen on.
        rest_port: REST port; 0 takes any free one.
        grpc_port: gRPC port; 0 takes any free one.
        max_batch_size: rows that concurrent requests may be merged to.
        batch_timeout_ms: milliseconds a request waits for others to join its batch.
        poll_seconds: seconds between looks for new versions.
        workers: batches run at once. Two, so that one slow line does not stop the others.
        max_queue: requests waiting; beyond it a request is refused at once (503).
        max_request_rows: rows in one request.
        max_body_bytes: bytes of one request.
        max_connections: open REST connections.
        request_timeout: seconds a request may take, its wait included.
        header_timeout: seconds a client has to send a request's head.
        body_timeout: seconds a client has to send a body, or to take an answer.
        idle_timeout: seconds a kept-alive connection may stay silent.
        grace_seconds: seconds that requests in flight are given at shutdown.
    """

    base_path: str
    name: str
    host: str = "127.0.0.1"
    rest_port: int = 8501
    grpc_port: int = 8500
    max_batch_size: int = 32
    batch_timeout_ms: float = 5.0
    poll_seconds: float = 2.0
    workers: int = 2
    max_queue: int = 1024
    max_request_rows: int = 1024
    max_body_bytes: int = 16 * 1024 * 1024
    max_connections: int = 1024
    request_timeout: float = 120.0
    header_timeout: float = 20.0
    body_timeout: float = 60.0
    idle_timeout: float = 120.0
    grace_seconds: float = 30.0
