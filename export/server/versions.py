"""The versions of a model: found on disk, loaded in the background, switched under load."""

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
    """Complete versions under `base_path`: {number: folder}.

    A version is a folder named by an integer that holds `saved_model.pb`. Others (a copy in
    progress under another name, notes, hidden files) are ignored.
    """
    found = {}
    for name in os.listdir(base_path):
        path = os.path.join(base_path, name)
        number = version_of(name)
        if number is not None and os.path.isfile(os.path.join(path, MODEL_FILE)):
            found[number] = path
    return found


def check_base_path(base_path: str) -> None:
    """Raises a UserError where a folder is missing, remote, itself a version, or holds none."""
    if "://" in base_path:
        raise UserError(
            f"{base_path} is in a bucket: copy it to a local folder, or serve it with TensorFlow "
            "Serving, which reads buckets"
        )
    if not os.path.isdir(base_path):
        raise UserError(f"{base_path} is not a folder; export a model there first")
    if os.path.isfile(os.path.join(base_path, MODEL_FILE)):
        raise UserError(f"{base_path} is one version of a model; give the folder that holds it")
    try:
        found = find_versions(base_path)
    except OSError as error:
        raise UserError(f"cannot read {base_path}: {error.strerror}") from None
    if not found:
        raise UserError(
            f"{base_path} holds no version of a model: a version is a folder named by a number "
            f"that contains {MODEL_FILE}, such as {os.path.join(base_path, '1', MODEL_FILE)}"
        )


@dataclasses.dataclass
class _Failure:
    """A version that did not load: tried again when its files change, or after a while."""

    fingerprint: Fingerprint
    attempts: int
    retry_at: float


class VersionManager:
    """Serves the versions of a model that its policy chooses; of these, the newest that load.

    A new version is loaded and warmed up while the old one answers; then new requests go to the
    new one, and the old one is freed when its last request has ended. A version that does not
    load is reported, and the old one keeps serving. The last version is never dropped.

    Args:
        model: its name, folder, policy and labels; may be set to another of that name and folder.
        poll_seconds: between scans of the folder.
        loader: makes a `Servable` from (folder, version).
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
        """The version that answers requests without one; None before the first load."""
        return max(self.served, default=None)

    @property
    def served(self) -> list[int]:
        """The loaded versions, the oldest first."""
        with self._lock:
            return sorted(self._serving)

    def labelled(self, label: str) -> int:
        """The version that a label names; a ServingError where there is no such label."""
        if label not in self.model.labels:
            raise invalid(f"Unrecognized servable version label: {label}")
        return self.model.labels[label]

    def acquire(self, version: int | None = None) -> Servable:
        """Keeps a version loaded for one request, until its `release`; None is the current one.

        Raises:
            ServingError: NOT_FOUND for a version not served, UNAVAILABLE for one being loaded.
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
        """Ends what `acquire` began."""
        with self._lock:
            self._leases[servable] -= 1
        self._close_if_idle(servable)

    def statuses(self, version: int | None = None) -> list[ModelVersionStatus]:
        """States of one version, or of all, newest first; a ServingError where there is none."""
        with self._lock:
            statuses = sorted(self._statuses.items(), reverse=True)
        known = [status for number, status in statuses if version in (None, number)]
        if not known:  # of any version: the models before it load
            name = self.model.name
            raise not_loaded(name) if version is None else no_status(name, version)
        return known

    def start(self) -> None:
        """Loads the chosen versions, then watches for others in the background."""
        self.poll()
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch and frees the model; call it after the last request."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for version in self.served:
            self._retire(version)

    def poll(self) -> None:
        """Scans the folder once, loads the chosen versions and drops the others."""
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
        at_once = not self._serving  # nothing is served yet: do not wait for copies to settle
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
        """Whether to try a version now: its files are stable and its retry time has come."""
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
            servable.warm_up()  # logs its own failures; they do not keep a version from serving
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
    """A version's state, and the error that ended it."""
    error = {"error_code": code.value[0], "error_message": message}
    return ModelVersionStatus(version=version, state=state, status=error)


def _fingerprint(path: str) -> Fingerprint:
    """Names, sizes and times of all files: changes while a copy is in progress."""
    files = []
    for folder, folders, names in os.walk(path):  # passes over a folder that is removed meanwhile
        for name in folders + names:
            file = os.path.join(folder, name)
            with contextlib.suppress(OSError):  # removed meanwhile: the next one will differ
                info = os.stat(file)
                files.append((file, info.st_size, info.st_mtime_ns))
    return tuple(sorted(files))
