"""What REST and gRPC share: finding the version, checking, batching, waiting."""

import concurrent.futures

import numpy as np

from export.server.batching import Batcher
from export.server.config import ServerConfig
from export.server.errors import Code, ServingError, invalid
from export.server.servable import Signature, not_found
from export.server.versions import Lease, VersionManager, VersionStatus


class ServingCore:
    """The model, its versions and its queue, behind both protocols.

    Args:
        config: the server's settings.
        versions: the version manager.
        batcher: the queue.
    """

    def __init__(self, config: ServerConfig, versions: VersionManager, batcher: Batcher):
        self.config = config
        self._versions = versions
        self._batcher = batcher

    def acquire(self, name: str, version: int | None = None, label: str = "") -> Lease:
        """Holds the version a request asks for; release it, or pass it to `submit`.

        Raises:
            ServingError: NOT_FOUND, INVALID_ARGUMENT (labels: none can be defined here, so all
                are unknown), UNAVAILABLE while the model loads.
        """
        self._check_name(name, version)
        self._check_label(label)
        return self._versions.acquire(version)

    def statuses(
        self, name: str, version: int | None = None, label: str = ""
    ) -> list[VersionStatus]:
        """The states of one or all versions, newest first; raises as `acquire`."""
        if name != self.config.name:
            which = "any versions" if version is None else f"version {version}"
            raise ServingError(Code.NOT_FOUND, f"Could not find {which} of model {name}")
        self._check_label(label)
        return self._versions.statuses(version)

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

    def _check_name(self, name: str, version: int | None) -> None:
        if name != self.config.name:
            raise not_found(name, version)

    def _check_label(self, label: str) -> None:
        if label:
            raise invalid(f"Unrecognized servable version label: {label}")


def too_late(seconds: float) -> ServingError:
    """The error of a request that did not finish in time."""
    return ServingError(Code.DEADLINE_EXCEEDED, f"the request took longer than {seconds:g} s")
