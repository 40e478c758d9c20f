"""The steps that REST and gRPC share: find the version, check the inputs, queue the request."""

import concurrent.futures

import numpy as np
from tensorflow_serving.apis import get_model_metadata_pb2

from export.server.batching import Batcher
from export.server.config import ServerConfig
from export.server.errors import invalid, no_status, not_found
from export.server.servable import Signature
from export.server.versions import Lease, VersionManager, VersionStatus


class ServingCore:
    """The model, its versions and its queue, behind both protocols."""

    def __init__(self, config: ServerConfig, versions: VersionManager, batcher: Batcher):
        self.config = config
        self._versions = versions
        self._batcher = batcher

    def acquire(self, name: str, version: int | None = None, label: str = "") -> Lease:
        """Holds the version a request asks for; release it, or pass it to `submit`.

        Raises:
            ServingError: NOT_FOUND, INVALID_ARGUMENT for a label (none can be defined here),
                UNAVAILABLE while the model loads.
        """
        if name != self.config.name:
            raise not_found(name, version)
        _refuse_label(label)
        return self._versions.acquire(version)

    def statuses(
        self, name: str, version: int | None = None, label: str = ""
    ) -> list[VersionStatus]:
        """The states of one or all versions, newest first; raises as `acquire`."""
        if name != self.config.name:
            raise no_status(name, version)
        _refuse_label(label)
        return self._versions.statuses(version)

    def signatures(
        self, name: str, version: int | None = None, label: str = ""
    ) -> tuple[int, get_model_metadata_pb2.SignatureDefMap]:
        """A version's number and its signatures; raises as `acquire`."""
        lease = self.acquire(name, version, label)
        try:
            found = get_model_metadata_pb2.SignatureDefMap()
            for key, signature in lease.servable.signature_defs.items():
                found.signature_def[key].CopyFrom(signature)
            return lease.servable.version, found
        finally:
            lease.release()

    def submit(
        self, lease: Lease, signature: Signature, inputs: dict[str, np.ndarray]
    ) -> concurrent.futures.Future:
        """Queues a request, and releases its lease when it is done.

        Args:
            lease: from `acquire`; this call owns it from here on.
            signature: of the leased version.
            inputs: arrays by name, not yet checked.

        Returns:
            A future of all outputs by name.

        Raises:
            ServingError: INVALID_ARGUMENT for inputs the signature does not take;
                RESOURCE_EXHAUSTED or UNAVAILABLE from the queue.
        """
        try:
            rows = signature.check(inputs, self.config.max_request_rows)
            future = self._batcher.submit(lease.servable, signature, inputs, rows)
        except BaseException:
            lease.release()
            raise
        future.add_done_callback(lambda _: lease.release())
        return future

    @property
    def ready(self) -> bool:
        """Whether a version is loaded."""
        return self._versions.current is not None


def _refuse_label(label: str) -> None:
    if label:
        raise invalid(f"Unrecognized servable version label: {label}")
