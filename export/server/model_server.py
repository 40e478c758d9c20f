"""Model server, which starts and stops the models, the request queue, REST and gRPC together."""

import contextlib
import json
import logging
import shlex
import socket
import threading
from collections.abc import Callable, Iterator

import grpc

from export.server.batching import Batcher
from export.server.config import ServerConfig
from export.server.core import ServingCore
from export.server.errors import ServingError
from export.server.grpc_service import build_server
from export.server.http_server import HttpServer
from export.server.models import ServedModel, served_models
from export.server.rest import RestApi
from export.server.versions import VersionManager, check_base_path, find_versions
from macaron_tf.errors import UserError

_LOG = logging.getLogger(__name__)


class ModelServer:
    """Model server in this process. A `with` statement starts and stops the server.

    Args:
        config: settings of the server.

    Example:
        with ModelServer(ServerConfig("exported/demo", "demo", rest_port=0, grpc_port=0)) as server:
            requests.get(f"{server.url}/v1/models/demo")
    """

    def __init__(self, config: ServerConfig):
        self.config = config
        self.models: dict[str, VersionManager] = {}
        self.rest_port = self.grpc_port = 0
        # Functions that `stop` calls in reverse order, with the seconds for requests in flight.
        self._stops: list[Callable[[float], None]] = []
        self._stopped = threading.Event()  # ends `_reload_config`

    @property
    def url(self) -> str:
        """Base URL of the REST API, such as http://127.0.0.1:8501."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{self.rest_port}"

    def start(self) -> None:
        """Opens the REST and gRPC ports, loads all models, and returns when all models are loaded.

        While a model loads, requests for the model get HTTP status 503 or the gRPC code
        UNAVAILABLE.

        Raises:
            UserError: the model configuration is not valid, a model's folder is not valid (see
                `check_base_path`), the host or a port cannot be used, no version of a model loads,
                or a label names a version that is not served.
        """
        models = served_models(self.config)
        for model in models:
            check_base_path(model.base_path)
        _check_host(self.config.host)
        try:
            poll_seconds = self.config.poll_seconds
            self.models = {model.name: VersionManager(model, poll_seconds) for model in models}
            core = self._bind()
            for manager in self.models.values():
                _load_model(manager)
            if self.config.model_config_file_poll_wait_seconds:
                reloader = threading.Thread(target=self._reload_config, args=(core,), daemon=True)
                self._stops.append(lambda _: (self._stopped.set(), reloader.join()))
                reloader.start()
        except BaseException:
            self.stop(grace_seconds=0.0)
            raise

    def stop(self, grace_seconds: float | None = None) -> None:
        """Stops accepting requests, waits for the requests in flight, and frees the models.

        Args:
            grace_seconds: maximum number of seconds to wait for requests in flight; `None` means
                `config.grace_seconds`.
        """
        grace = self.config.grace_seconds if grace_seconds is None else grace_seconds
        while self._stops:
            self._stops.pop()(grace)
        for manager in self.models.values():
            manager.stop()

    def _reload_config(self, core: ServingCore) -> None:
        """Rereads and applies the configuration file at intervals, until the server stops."""
        while not self._stopped.wait(self.config.model_config_file_poll_wait_seconds):
            try:
                self._replace_models(served_models(self.config), core)
            except UserError as error:
                _LOG.error("%s; the server continues to serve its current models", error)
            except Exception:
                _LOG.exception(
                    "the configuration file cannot be applied; the server will try again"
                )

    def _replace_models(self, models: list[ServedModel], core: ServingCore) -> None:
        """Replaces the served models by `models`.

        A model that is already served under the same name from the same folder is not reloaded.
        Models that are not in `models` are stopped.

        Args:
            models: all models to serve from now on.
            core: request handler, which gets the new models.

        Raises:
            UserError: the folder of a new model is not valid (see `check_base_path`), a new model
                does not load, or one of its labels names a version that is not served. The served
                models then do not change.
        """
        old, new = self.models, {}
        added = []
        try:
            for model in models:
                manager = old.get(model.name)
                if manager is None or manager.model.base_path != model.base_path:
                    check_base_path(model.base_path)
                    manager = VersionManager(model, self.config.poll_seconds)
                    added.append(manager)
                    _load_model(manager)
                new[model.name] = manager
        except BaseException:
            for manager in added:
                manager.stop()
            raise
        for model in models:
            new[model.name].model = model
        self.models = core.models = new
        for manager in old.values():
            if manager not in new.values():
                manager.stop()

    def __enter__(self) -> "ModelServer":
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def example(self) -> str | None:
        """Returns an example request to the first model, as a curl command.

        Returns `None` if the model has no signature `serving_default`. The first model must be
        loaded.
        """
        manager = next(iter(self.models.values()))
        servable = manager.acquire()
        manager.release(servable)
        try:
            inputs = servable.example
        except ServingError:
            return None
        if servable.signature().batchable:
            body = {"instances": [inputs if len(inputs) > 1 else next(iter(inputs.values()))]}
        else:
            body = {"inputs": inputs}
        address = f"{self.url}/v1/models/{manager.model.name}:predict"
        return shlex.join(["curl", "-d", json.dumps(body), address])

    def _bind(self) -> ServingCore:
        config = self.config
        batcher = Batcher(
            config.max_batch_size, config.batch_timeout_ms, config.max_queue, config.workers
        )
        core = ServingCore(config, self.models, batcher)
        self._stops.append(batcher.stop)
        http = HttpServer(config, RestApi(core).handle, core.bodies)
        with _port_errors("REST", "--rest-port", config.rest_port):
            http.start()
        self.rest_port = http.port
        self._stops.append(http.stop)
        with _port_errors("gRPC", "--grpc-port", config.grpc_port):
            grpc_server, self.grpc_port = build_server(core)
        grpc_server.start()
        # Both servers stop at the same time, so that requests in flight share the grace period.
        self._stops[-1] = lambda grace: _stop_both(grpc_server, http, grace)
        return core


def _load_model(manager: VersionManager) -> None:
    """Loads a model, and starts the thread that watches the model's folder.

    Raises:
        UserError: no version loads, or a label names a version that is not served.
    """
    model = manager.model
    manager.start()
    if manager.current is None:
        candidates = model.candidates(find_versions(model.base_path))
        reasons = [
            f"version {state.version}: {state.status.error_message.splitlines()[0][:200]}"
            for state in (manager.statuses() if candidates else ())
            if state.status.error_message
        ]
        if model.allowed_versions and not reasons:
            versions = ", ".join(map(str, sorted(model.allowed_versions)))
            raise UserError(
                f"model_version_policy asks for version {versions}, but {model.base_path} contains "
                "no such version: correct model_version_policy, or export the model with --version"
            )
        raise UserError(
            f"no version in {model.base_path} can be loaded ({'; '.join(reasons)}): export the "
            "model again"
        )
    for label, version in model.labels.items():
        if version not in manager.served:
            raise UserError(
                f"the label {label!r} of the model {model.name!r} points to version {version}, "
                f"which is not served: choose one of {', '.join(map(str, manager.served))}"
            )


def _stop_both(grpc_server: grpc.Server, http: HttpServer, grace: float) -> None:
    stopped = grpc_server.stop(grace)
    http.stop(grace)
    stopped.wait()


@contextlib.contextmanager
def _port_errors(protocol: str, flag: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"the {protocol} port {port} cannot be opened ({reason}): choose another port with "
            f"{flag}"
        ) from None


def _check_host(host: str) -> None:
    """Raises a UserError if the server cannot open a port on `host`."""
    try:
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"--host {host!r} is not an address of this machine ({reason}): give another host, "
            "such as 127.0.0.1, or 0.0.0.0 for all addresses"
        ) from None
