"""Steps that REST and gRPC share: finding the version, checking inputs, queueing the request."""

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

from export.server.batching import Batcher
from export.server.config import ServerConfig
from export.server.errors import Code, ServingError, no_status, not_found
from export.server.metrics import Metrics
from export.server.servable import Servable, Signature
from export.server.versions import VersionManager

# A model's name, version (None: the current one) and label ("": none) in a request.
Spec = tuple[str, int | None, str]
_SHORT = 64 * 1024  # bytes of a request that is always accepted, whatever long ones hold


class Bodies:
    """Counts the bytes that all requests hold together; above `limit`, long ones get a 503."""

    def __init__(self, limit: int):
        self.held = 0
        self._limit = limit
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yields a function that counts bytes of a request until the `with` ends.

        It raises a ServingError (HTTP 503) if the bytes are too many.
        """
        own = 0

        def take(count: int) -> None:
            nonlocal own
            with self._lock:
                if own + count > _SHORT and self.held + count > self._limit:
                    message = f"the requests in flight hold {self.held} bytes: try again later"
                    raise ServingError(Code.RESOURCE_EXHAUSTED, message, http_status=503)
                self.held += count
                own += count

        try:
            yield take
        finally:
            with self._lock:
                self.held -= own


class ServingCore:
    """The models, their versions and their queue, which both protocols use.

    Args:
        config: the server's settings.
        models: the models by name. While the server runs, the mapping may be replaced, but not
            changed.
        batcher: the queue.
    """

    def __init__(
        self, config: ServerConfig, models: Mapping[str, VersionManager], batcher: Batcher
    ):
        self.config = config
        self.metrics = Metrics(models)
        self.models = models
        self.bodies = Bodies(config.max_total_body_bytes or 16 * config.max_body_bytes)
        self._batcher = batcher

    def statuses(self, spec: Spec) -> get_model_status_pb2.GetModelStatusResponse:
        """Returns the states of one or all versions, newest first.

        Raises:
            ServingError: NOT_FOUND, or INVALID_ARGUMENT for an unknown label.
        """
        manager, version = self._model(spec, no_status)
        return get_model_status_pb2.GetModelStatusResponse(
            model_version_status=manager.statuses(version)
        )

    def metadata(self, spec: Spec) -> get_model_metadata_pb2.GetModelMetadataResponse:
        """Returns a version's number and its signatures; raises like `submit`."""
        manager, version = self._model(spec, not_found)
        servable = manager.acquire(version)
        manager.release(servable)
        signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=servable.signature_defs)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name = spec[0]
        response.model_spec.version.value = servable.version
        response.metadata["signature_def"].Pack(signatures)
        return response

    def examples(self) -> dict[str, dict[str, Any]]:
        """Returns example inputs of the loaded models, by model name; see `Servable.example`."""
        found = {}
        for name, manager in self.models.items():
            with contextlib.suppress(ServingError):  # the model is loading or lacks the signature
                servable = manager.acquire()
                manager.release(servable)
                found[name] = servable.example
        return found

    def submit(
        self, spec: Spec, read: Callable[[Servable], tuple[Signature, dict[str, np.ndarray]]]
    ) -> tuple[concurrent.futures.Future, Servable, Signature]:
        """Queues a request, and keeps its version loaded until the request is done.

        Args:
            spec: the model that the request names.
            read: function that reads the request for a version. Returns one of the version's
                signatures, and arrays by input name, which need not be checked.

        Returns:
            A future of all outputs by name, the version and its signature.

        Raises:
            ServingError: NOT_FOUND if there is no such model or version, INVALID_ARGUMENT for an
                unknown label or wrong inputs, UNAVAILABLE while the model loads; see also
                `Batcher.submit`.
        """
        manager, version = self._model(spec, not_found)
        servable = manager.acquire(version)
        try:
            signature, inputs = read(servable)
            rows = signature.check(inputs, self.config.max_request_rows)
            future = self._batcher.submit(servable, signature, inputs, rows)
        except BaseException:
            manager.release(servable)
            raise
        future.add_done_callback(lambda _: manager.release(servable))
        return future, servable, signature

    def measured(self, name: str, protocol: str) -> contextlib.AbstractContextManager:
        """Measures the request within the `with`, unless there is no such model.

        Args:
            name: name of the model.
            protocol: "REST" or "GRPC".
        """
        if name not in self.models:
            return contextlib.nullcontext()
        return self.metrics.measured(name, protocol)

    @property
    def ready(self) -> bool:
        """Whether a version of each model is loaded."""
        return all(found.current is not None for found in self.models.values())

    def _model(self, spec: Spec, absent: Callable) -> tuple[VersionManager, int | None]:
        """Finds the model and the version that a request names.

        Args:
            spec: the model that the request names.
            absent: makes the error for an unknown model.
        """
        name, version, label = spec
        if (found := self.models.get(name)) is None:
            raise absent(name, version)
        return found, found.labelled(label) if label else version
