"""Manages the versions of a model: finds them on disk, loads them, and switches between them."""

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable

from tensorflow_serving.apis.get_model_status_pb2 import ModelVersionStatus

from export.server.errors import Code, from_exception, invalid, no_status, not_found, not_loaded
from export.server.models import ServedModel
from export.server.servable import Servable
from macaron_tf.errors import UserError
from macaron_tf.io.serving import MODEL_FILE, version_of

_MAX_RETRY_SECONDS = 60.0
_LOG = logging.getLogger(__name__)
Fingerprint = tuple[tuple[str, int, int], ...]


def find_versions(base_path: str) -> dict[int, str]:
    """Finds the complete versions of a model.

    A version is a folder whose name is a number and which contains `saved_model.pb`. Other folders
    and files are ignored, such as copies in progress under another name.

    Returns:
        The folders by version.
    """
    found = {}
    for name in os.listdir(base_path):
        path = os.path.join(base_path, name)
        number = version_of(name)
        if number is not None and os.path.isfile(os.path.join(path, MODEL_FILE)):
            found[number] = path
    return found


def check_base_path(base_path: str) -> None:
    """Raises a UserError if a folder is missing, remote, itself a version, or has no version."""
    if "://" in base_path:
        raise UserError(
            f"{base_path} is in a bucket: copy it to a local folder, or serve it with TensorFlow "
            "Serving, which reads buckets"
        )
    if not os.path.isdir(base_path):
        raise UserError(f"{base_path} is not a folder: export a model there first")
    if os.path.isfile(os.path.join(base_path, MODEL_FILE)):
        raise UserError(f"{base_path} is a version of a model: give the folder that contains it")
    try:
        found = find_versions(base_path)
    except OSError as error:
        raise UserError(
            f"cannot read {base_path} ({error.strerror}): check its permissions"
        ) from None
    if not found:
        raise UserError(
            f"{base_path} has no version of a model: export one, which is a folder such as "
            f"{os.path.join(base_path, '1')} that contains {MODEL_FILE}"
        )


@dataclasses.dataclass
class _Failure:
    """A version that did not load. It is tried again when its files change, or at `retry_at`."""

    fingerprint: Fingerprint
    attempts: int
    retry_at: float


class VersionManager:
    """Serves the newest versions of a model that its policy allows and that load.

    The old version answers while a new one is loaded and warmed up. Then requests go to the new
    one, and the old one is freed when its last request has ended. If a version does not load, the
    error is logged and the old one keeps serving. The last version is never unloaded.

    Args:
        model: the model. The attribute may be set to a model with the same name and folder and
            another policy or other labels.
        poll_seconds: seconds between scans of the folder.
        loader: makes a `Servable` from a folder and a version.
    """

    def __init__(
        self,
        model: ServedModel,
        poll_seconds: float,
        loader: Callable[[str, int], Servable] = Servable,
    ):
        self.model = model
        self._poll_seconds = poll_seconds
        self._loader = loader
        self._lock = threading.Lock()
        self._serving: dict[int, Servable] = {}
        self._leases: dict[Servable, int] = {}
        self._statuses: dict[int, ModelVersionStatus] = {}
        self._failures: dict[int, _Failure] = {}
        self._seen: dict[int, Fingerprint] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="versions", daemon=True)

    @property
    def current(self) -> int | None:
        """The version that answers requests which name none; None before one is loaded."""
        return max(self.served, default=None)

    @property
    def served(self) -> list[int]:
        """The loaded versions, oldest first."""
        with self._lock:
            return sorted(self._serving)

    def labelled(self, label: str) -> int:
        """Returns the version of a label; raises a ServingError if there is no such label."""
        if label not in self.model.labels:
            raise invalid(f"Unrecognized servable version label: {label}")
        return self.model.labels[label]

    def acquire(self, version: int | None = None) -> Servable:
        """Returns a version, and keeps it loaded until `release` is called.

        Args:
            version: the version; None: the current one.

        Raises:
            ServingError: NOT_FOUND if the version is not served, UNAVAILABLE while it loads.
        """
        with self._lock:
            newest = max(self._serving, default=None)
            servable = self._serving.get(newest if version is None else version)
            if servable is None:
                status = self._statuses.get(version)
                if version is None or (status and status.state == ModelVersionStatus.LOADING):
                    raise not_loaded(self.model.name)
                raise not_found(self.model.name, version)
            self._leases[servable] += 1
        return servable

    def release(self, servable: Servable) -> None:
        """Ends the use of a version that `acquire` returned."""
        with self._lock:
            self._leases[servable] -= 1
        self._close_if_idle(servable)

    def statuses(self, version: int | None = None) -> list[ModelVersionStatus]:
        """Returns the states of one version or of all, newest first.

        Raises:
            ServingError: there is no such version, or no version yet.
        """
        with self._lock:
            statuses = sorted(self._statuses.items(), reverse=True)
        known = [status for number, status in statuses if version in (None, number)]
        if not known:  # for any version, the server is still loading other models
            name = self.model.name
            raise not_loaded(name) if version is None else no_status(name, version)
        return known

    def start(self) -> None:
        """Loads versions, then watches the folder for others in the background."""
        self.poll()
        self._thread.start()

    def stop(self) -> None:
        """Ends the background thread and frees the model. Call it after the last request."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for version in self.served:
            self._retire(version)

    def poll(self) -> None:
        """Scans the folder once, loads the versions to serve and unloads the others."""
        model = self.model
        try:
            found = find_versions(model.base_path)
        except OSError as error:
            _LOG.warning("cannot read %s: %s; the loaded version stays", model.base_path, error)
            return
        self._seen = {v: seen for v, seen in self._seen.items() if v in found}
        with self._lock:
            for version in self._failures.keys() - found.keys():
                del self._failures[version], self._statuses[version]
        at_once = not self._serving  # if nothing is served yet, do not wait for stable files
        chosen: list[int] = []
        for version in model.candidates(found):
            if len(chosen) == model.latest:
                break
            if version in self._serving or (
                self._due(version, found[version], at_once) and self._load(version, found[version])
            ):
                chosen.append(version)
        if chosen:
            for version in self._serving.keys() - chosen:
                self._retire(version)

    def _watch(self) -> None:
        while not self._stop.wait(self._poll_seconds):
            try:
                self.poll()
            except Exception:
                _LOG.exception("looking for versions failed; trying again")

    def _due(self, version: int, path: str, at_once: bool) -> bool:
        """Whether to load a version now: its files are stable, and a retry is not too early."""
        fingerprint = _fingerprint(path)
        settled = self._seen.get(version) == fingerprint
        self._seen[version] = fingerprint
        if not settled and not at_once:
            return False
        failure = self._failures.get(version)
        return (
            failure is None
            or failure.fingerprint != fingerprint
            or time.monotonic() >= failure.retry_at
        )

    def _load(self, version: int, path: str) -> bool:
        started, fingerprint = time.monotonic(), _fingerprint(path)
        with self._lock:
            self._statuses[version] = _status(version, "LOADING")
        try:
            servable = self._loader(path, version)
            servable.warm_up()  # logs its failures, which do not prevent serving
        except Exception as error:
            failed = from_exception(error)
            attempts = self._failures[version].attempts + 1 if version in self._failures else 1
            wait = min(_MAX_RETRY_SECONDS, self._poll_seconds * 2.0**attempts)
            status = _status(version, "END", failed.code, failed.message)
            with self._lock:
                self._failures[version] = _Failure(fingerprint, attempts, time.monotonic() + wait)
                self._statuses[version] = status
            _LOG.error("%s: version %d does not load: %s", path, version, failed.message)
            return False
        with self._lock:
            self._failures.pop(version, None)
            self._leases[servable] = 0
            self._statuses[version] = _status(version, "AVAILABLE")
            self._serving[version] = servable
        seconds = time.monotonic() - started
        _LOG.info("%s: version %d serves after %.1f s", self.model.name, version, seconds)
        return True

    def _retire(self, version: int) -> None:
        with self._lock:
            servable = self._serving.pop(version)
            self._statuses[version] = _status(version, "UNLOADING")
        self._close_if_idle(servable)

    def _close_if_idle(self, servable: Servable) -> None:
        with self._lock:
            version = servable.version
            if servable is self._serving.get(version) or self._leases.get(servable) != 0:
                return
            del self._leases[servable]
            if version not in self._serving:  # it may have come back
                self._statuses[version] = _status(version, "END")
        servable.close()
        _LOG.info("%s: version %d is unloaded", self.model.name, version)


def _status(
    version: int, state: str, code: Code = Code.OK, message: str = ""
) -> ModelVersionStatus:
    """Makes the state of a version, with an error if it did not load."""
    error = {"error_code": code.value[0], "error_message": message}
    return ModelVersionStatus(version=version, state=state, status=error)


def _fingerprint(path: str) -> Fingerprint:
    """Names, sizes and times of all files, which change while a copy is in progress."""
    files = []
    for folder, folders, names in os.walk(path):  # skips folders that are removed meanwhile
        for name in folders + names:
            file = os.path.join(folder, name)
            with contextlib.suppress(OSError):  # removed meanwhile; the next fingerprint differs
                info = os.stat(file)
                files.append((file, info.st_size, info.st_mtime_ns))
    return tuple(sorted(files))
