"""Request handling that REST and gRPC share: version lookup, input checks and queueing."""

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

# Name, version and label of the requested model. Without a version and label, they are None and "".
Spec = tuple[str, int | None, str]
_ALWAYS_ACCEPTED = 64 * 1024  # maximum size in bytes of a request that `Bodies` always accepts


class Bodies:
    """Counter of the bytes in RAM that all requests in flight occupy.

    Args:
        limit: maximum total size in bytes. A request of more than 64 KiB is rejected if the total
            would exceed this size.

    Attributes:
        total: number of bytes that all requests in flight occupy.
    """

    def __init__(self, limit: int):
        self.total = 0
        self._limit = limit
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def reservation(self) -> Iterator[Callable[[int], None]]:
        """Yields a function with which a request adds a number of bytes to the counter.

        The function raises a ServingError (RESOURCE_EXHAUSTED, HTTP status 503) if the request must
        be rejected. At the end of the `with` block, the bytes of the request are subtracted again.
        """
        request_bytes = 0

        def reserve(count: int) -> None:
            nonlocal request_bytes
            with self._lock:
                is_large = request_bytes + count > _ALWAYS_ACCEPTED
                if is_large and self.total + count > self._limit:
                    message = (
                        f"the requests in flight already hold {self.total} bytes, so the server "
                        "rejects further large requests: try again later"
                    )
                    raise ServingError(Code.RESOURCE_EXHAUSTED, message, http_status=503)
                self.total += count
                request_bytes += count

        try:
            yield reserve
        finally:
            with self._lock:
                self.total -= request_bytes


class ServingCore:
    """Request handler that the REST and gRPC servers share.

    Args:
        config: the server's settings.
        models: dict mapping model name to the manager of its versions. While the server runs, the
            attribute `models` may be replaced by a new dict, but the dict must not be modified in
            place.
        batcher: the queue of requests.
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
        """Returns the states of the requested version or of all versions, newest first.

        Raises:
            ServingError: NOT_FOUND for an unknown model or version, INVALID_ARGUMENT for an unknown
                label, UNAVAILABLE if `spec` names no version and no version has begun to load.
        """
        manager, version = self._resolve(spec, no_status)
        return get_model_status_pb2.GetModelStatusResponse(
            model_version_status=manager.statuses(version)
        )

    def metadata(self, spec: Spec) -> get_model_metadata_pb2.GetModelMetadataResponse:
        """Returns the version number and the signatures of the requested version.

        Raises:
            ServingError: NOT_FOUND for an unknown model or version, INVALID_ARGUMENT for an unknown
                label, UNAVAILABLE while the version loads, or if `spec` names no version and no
                version is loaded.
        """
        manager, version = self._resolve(spec, not_found)
        servable = manager.acquire(version)
        manager.release(servable)
        signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=servable.signature_defs)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name = spec[0]
        response.model_spec.version.value = servable.version
        response.metadata["signature_def"].Pack(signatures)
        return response

    def examples(self) -> dict[str, dict[str, Any]]:
        """Returns a dict mapping model name to the inputs of an example request.

        The inputs are described at `Servable.example`. Models that are still loading or have no
        signature `serving_default` are left out.
        """
        examples = {}
        for name, manager in self.models.items():
            with contextlib.suppress(ServingError):
                servable = manager.acquire()
                manager.release(servable)
                examples[name] = servable.example
        return examples

    def submit(
        self, spec: Spec, read: Callable[[Servable], tuple[Signature, dict[str, np.ndarray]]]
    ) -> tuple[concurrent.futures.Future, Servable, Signature]:
        """Queues a request, and keeps its model version loaded until the request is done.

        Args:
            spec: name, version and label of the requested model.
            read: function that decodes the request. The argument is the model version. The result
                is a signature of this version, and a dict mapping input name to array.

        Returns:
            A tuple of a future, the version, and the signature. The result of the future is a dict
            from output name to array.

        Raises:
            ServingError: NOT_FOUND for an unknown model or version, INVALID_ARGUMENT for an unknown
                label or wrong inputs, UNAVAILABLE while the model loads, or an error of `read` or
                of `Batcher.submit`.
        """
        manager, version = self._resolve(spec, not_found)
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

    def measure(self, name: str, protocol: str) -> contextlib.AbstractContextManager:
        """Returns a context manager that measures the request in its `with` block.

        See `Metrics.measure`. Requests for unknown models are not measured.

        Args:
            name: name of the model.
            protocol: "REST" or "GRPC".
        """
        if name not in self.models:
            return contextlib.nullcontext()
        return self.metrics.measure(name, protocol)

    @property
    def ready(self) -> bool:
        """Whether every model has a loaded version."""
        return all(manager.current is not None for manager in self.models.values())

    def _resolve(self, spec: Spec, error: Callable) -> tuple[VersionManager, int | None]:
        """Finds the manager of the requested model, and resolves a label to a version.

        Args:
            spec: name, version and label of the requested model.
            error: function that returns the error for an unknown model from its name and version.

        Returns:
            The manager of the model's versions, and the requested version, or `None` if `spec` has
            neither a version nor a label.

        Raises:
            ServingError: the result of `error` for an unknown model, or INVALID_ARGUMENT for an
                unknown label.
        """
        name, version, label = spec
        if (manager := self.models.get(name)) is None:
            raise error(name, version)
        return manager, manager.version_of_label(label) if label else version
