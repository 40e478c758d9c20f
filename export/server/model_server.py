"""The whole server: versions, queue, REST and gRPC, started and stopped together."""

import contextlib
import json
import socket
from collections.abc import Callable, Iterator

import grpc
import numpy as np

from export.server.batching import Batcher
from export.server.config import ServerConfig
from export.server.core import ServingCore
from export.server.grpc_service import build_server
from export.server.http_server import HttpServer
from export.server.rest import RestApi
from export.server.servable import DEFAULT_SIGNATURE, made_up
from export.server.versions import VersionManager, check_base_path
from macaron_tf.errors import UserError

# Inputs of a text generator in the example request; zeros would generate nothing.
_CONTROLS = {"max_tokens": 20, "seed": 1, "temperature": 1.0, "top_p": 0.9}


class ModelServer:
    """A model server in this process; a context manager that starts and stops it.

    Example:
        with ModelServer(ServerConfig("exported/demo", "demo", rest_port=0, grpc_port=0)) as server:
            TranslationClient(server.url, "demo").translate(["A dog runs."])
    """

    def __init__(self, config: ServerConfig):
        self.config = config
        self.versions = VersionManager(config.base_path, config.name, config.poll_seconds)
        self.batcher: Batcher | None = None
        self.rest_port = self.grpc_port = 0
        # To be called at the end with the seconds of grace; the last added first.
        self._stops: list[Callable[[float], None]] = []

    @property
    def url(self) -> str:
        """REST's address, such as http://127.0.0.1:8501."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self.rest_port}"

    def start(self) -> None:
        """Binds both ports, loads the newest version that loads, and returns once it answers.

        While it loads, requests are answered with "not loaded yet" (503, UNAVAILABLE).

        Raises:
            UserError: nothing to serve, no such host, a port in use, or no version loads.
        """
        check_base_path(self.config.base_path)
        _check_host(self.config.host)
        try:
            self._bind()
            self.versions.start()
            if self.versions.current is None:
                raise UserError(self._why_nothing_loads())
        except BaseException:
            self.stop(grace_seconds=0.0)
            raise

    def stop(self, grace_seconds: float | None = None) -> None:
        """Stops accepting, gives requests in flight some seconds, frees the model."""
        grace = self.config.grace_seconds if grace_seconds is None else grace_seconds
        while self._stops:
            self._stops.pop()(grace)
        self.versions.stop()

    def __enter__(self) -> "ModelServer":
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def example(self) -> str:
        """A curl command that this model answers."""
        lease = self.versions.acquire()
        try:
            signature = lease.servable.signature(DEFAULT_SIGNATURE)
            specs = sorted(signature.inputs.items())
            inputs = {name: _example_value(name, spec) for name, spec in specs}
            row_form = signature.batchable
        finally:
            lease.release()
        if row_form:
            rows = {name: value[0] for name, value in inputs.items()}
            body = {"instances": [rows if len(rows) > 1 else next(iter(rows.values()))]}
        else:
            body = {"inputs": inputs}
        address = f"{self.url}/v1/models/{self.config.name}:predict"
        return f"curl -d '{json.dumps(body)}' {address}"

    def _bind(self) -> None:
        config = self.config
        self.batcher = Batcher(
            config.max_batch_size, config.batch_timeout_ms, config.max_queue, config.workers
        )
        core = ServingCore(config, self.versions, self.batcher)
        rest = RestApi(core)
        self._stops += [lambda _: rest.close(), self.batcher.stop]
        http = HttpServer(config, rest.handle)
        with _port("REST", "--rest-port", config.rest_port):
            http.start()
        self.rest_port = http.port
        self._stops.append(http.stop)
        with _port("gRPC", "--grpc-port", config.grpc_port):
            grpc_server, self.grpc_port = build_server(core)
        grpc_server.start()
        # Both stop at once, and share the seconds.
        self._stops[-1] = lambda grace: _stop_both(grpc_server, http, grace)

    def _why_nothing_loads(self) -> str:
        reasons = [
            f"version {status.version}: {status.message.splitlines()[0][:200]}"
            for status in self.versions.statuses()
            if status.message
        ]
        return f"no version in {self.config.base_path} loads ({'; '.join(reasons)})"


def _example_value(name: str, spec):
    value = made_up(spec)
    if value.dtype == object:
        value[...] = "A dog is running."
    elif name in _CONTROLS:
        return np.full(value.shape, _CONTROLS[name]).tolist()  # 0.9, not float32's 0.8999...
    return value.tolist()


def _stop_both(grpc_server: grpc.Server, http: HttpServer, grace: float) -> None:
    stopped = grpc_server.stop(grace)
    http.stop(grace)
    stopped.wait()


@contextlib.contextmanager
def _port(kind: str, flag: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"the {kind} port {port} cannot be opened ({reason}); choose another with {flag}"
        ) from None


def _check_host(host: str) -> None:
    """Raises a UserError that blames a host which no port of this machine can be opened on."""
    try:
        kind, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind) as probe:
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"--host {host!r} is no address of this machine ({said}): give another, "
            "such as 127.0.0.1, or 0.0.0.0 for all"
        ) from None
