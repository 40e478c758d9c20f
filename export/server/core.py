"""The steps that REST and gRPC share: find the version, check the inputs, queue the request."""

import concurrent.futures
import contextlib
from collections.abc import Callable

import numpy as np
from tensorflow_serving.apis import get_model_metadata_pb2

from export.server.batching import Batcher
from export.server.config import ServerConfig
from export.server.errors import invalid, no_status, not_found
from export.server.metrics import Metrics
from export.server.servable import Servable, Signature
from export.server.versions import Lease, VersionManager, VersionStatus

# A model's name, version (None = the current one) and label, as a request gives them.
Spec = tuple[str, int | None, str]


class ServingCore:
    """The model, its versions and its queue, behind both protocols."""

    def __init__(self, config: ServerConfig, versions: VersionManager, batcher: Batcher):
        self.config = config
        self.metrics = Metrics(config.name)
        self._versions = versions
        self._batcher = batcher

    def statuses(self, spec: Spec) -> list[VersionStatus]:
        """The states of one or all versions, newest first.

        Raises:
            ServingError: NOT_FOUND, or INVALID_ARGUMENT for a label: none can be defined here.
        """
        name, version, label = spec
        if name != self.config.name:
            raise no_status(name, version)
        _refuse_label(label)
        return self._versions.statuses(version)

    def signatures(self, spec: Spec) -> tuple[int, get_model_metadata_pb2.SignatureDefMap]:
        """A version's number and its signatures; raises as `submit`."""
        lease = self._acquire(spec)
        found = get_model_metadata_pb2.SignatureDefMap()
        for key, signature in lease.servable.signature_defs.items():
            found.signature_def[key].CopyFrom(signature)
        lease.release()
        return lease.servable.version, found

    def submit(
        self, spec: Spec, read: Callable[[Servable], tuple[Signature, dict[str, np.ndarray]]]
    ) -> tuple[concurrent.futures.Future, Servable]:
        """Queues a request; its version stays loaded until the request is done.

        Args:
            read: from the version to one of its signatures and arrays by input name, unchecked.

        Returns:
            A future of all outputs by name, and the version.

        Raises:
            ServingError: NOT_FOUND; INVALID_ARGUMENT for a label, or inputs that the signature
                does not take; UNAVAILABLE while the model loads; see also `Batcher.submit`.
        """
        lease = self._acquire(spec)
        try:
            signature, inputs = read(lease.servable)
            rows = signature.check(inputs, self.config.max_request_rows)
            future = self._batcher.submit(lease.servable, signature, inputs, rows)
        except BaseException:
            lease.release()
            raise
        future.add_done_callback(lambda _: lease.release())
        return future, lease.servable

    def measured(self, name: str, protocol: str) -> contextlib.AbstractContextManager:
        """Measures a request of "REST" or "GRPC"; not one for a model that is not here."""
        if name != self.config.name:
            return contextlib.nullcontext()
        return self.metrics.measured(protocol)

    @property
    def ready(self) -> bool:
        """Whether a version is loaded."""
        return self._versions.current is not None

    def _acquire(self, spec: Spec) -> Lease:
        name, version, label = spec
        if name != self.config.name:
            raise not_found(name, version)
        _refuse_label(label)
        return self._versions.acquire(version)


def _refuse_label(label: str) -> None:
    if label:
        raise invalid(f"Unrecognized servable version label: {label}")
