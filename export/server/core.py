"""The steps that REST and gRPC share: find the version, check the inputs, queue the request."""

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

# A model's name, version (None = the current one) and label, as a request gives them.
Spec = tuple[str, int | None, str]
_SHORT = 64 * 1024  # bytes of a request that is always admitted: long ones lock nobody out


class Bodies:
    """The bytes that all requests hold together; beyond `limit`, long ones are refused."""

    def __init__(self, limit: int):
        self.held = 0
        self._limit = limit
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """A function that counts bytes of one request until the `with` ends; it raises a 503."""
        own = 0

        def take(count: int) -> None:
            nonlocal own
            with self._lock:
                if own + count > _SHORT and self.held + count > self._limit:
                    message = f"the requests under way hold {self.held} bytes; try again later"
                    raise ServingError(Code.RESOURCE_EXHAUSTED, message, http_status=503)
                self.held += count
                own += count

        try:
            yield take
        finally:
            with self._lock:
                self.held -= own


class ServingCore:
    """The models, their versions and their queue, behind both protocols.

    Args:
        models: by name; replaced while the server runs, never changed.
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
        """The states of one or all versions, newest first.

        Raises:
            ServingError: NOT_FOUND, or INVALID_ARGUMENT for an unknown label.
        """
        manager, version = self._model(spec, no_status)
        return get_model_status_pb2.GetModelStatusResponse(
            model_version_status=manager.statuses(version)
        )

    def metadata(self, spec: Spec) -> get_model_metadata_pb2.GetModelMetadataResponse:
        """A version's number and its signatures; raises as `submit`."""
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
        """Inputs that a loaded model answers, by the model's name; see `Servable.example`."""
        found = {}
        for name, manager in self.models.items():
            with contextlib.suppress(ServingError):  # it still loads, or has no such signature
                servable = manager.acquire()
                manager.release(servable)
                found[name] = servable.example
        return found

    def submit(
        self, spec: Spec, read: Callable[[Servable], tuple[Signature, dict[str, np.ndarray]]]
    ) -> tuple[concurrent.futures.Future, Servable, Signature]:
        """Queues a request; its version stays loaded until the request is done.

        Args:
            read: from the version to one of its signatures and arrays by input name, unchecked.

        Returns:
            A future of all outputs by name, the version and its signature.

        Raises:
            ServingError: NOT_FOUND; INVALID_ARGUMENT for an unknown label, or inputs that the
                signature does not take; UNAVAILABLE while it loads; see also `Batcher.submit`.
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
        """Measures a request of "REST" or "GRPC"; not one for a model that is not here."""
        if name not in self.models:
            return contextlib.nullcontext()
        return self.metrics.measured(name, protocol)

    @property
    def ready(self) -> bool:
        """Whether a version of each model is loaded."""
        return all(found.current is not None for found in self.models.values())

    def _model(self, spec: Spec, absent: Callable) -> tuple[VersionManager, int | None]:
        """The model and the version that a request names; raises `absent` of another model."""
        name, version, label = spec
        if (found := self.models.get(name)) is None:
            raise absent(name, version)
        return found, found.labelled(label) if label else version
