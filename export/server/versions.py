"""Management of model versions: finding, loading and switching between versions."""

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
    """Finds the versions in a model's folder.

    A version is a subfolder that has a number as its name and contains `saved_model.pb`. All other
    files and folders are ignored.

    Returns:
        A dict mapping version to folder, in no particular order.

    Raises:
        OSError: `base_path` does not exist or cannot be read.
    """
    folders = {}
    for name in os.listdir(base_path):
        path = os.path.join(base_path, name)
        version = version_of(name)
        if version is not None and os.path.isfile(os.path.join(path, MODEL_FILE)):
            folders[version] = path
    return folders


def check_base_path(base_path: str) -> None:
    """Checks that a model's folder is local and contains a version.

    Raises:
        UserError: the folder is missing, is a URL, is a version itself, cannot be read, or contains
            no version.
    """
    if "://" in base_path:
        raise UserError(
            f"{base_path} is a URL, but this server reads only local folders: copy the folder to a "
            "local disk, or use TensorFlow Serving"
        )
    if not os.path.isdir(base_path):
        raise UserError(
            f"{base_path} is not a folder: give the folder of an exported model, or export a model "
            "there first"
        )
    if os.path.isfile(os.path.join(base_path, MODEL_FILE)):
        raise UserError(
            f"{base_path} is the folder of a single model version: give its parent folder, "
            f"{os.path.dirname(os.path.abspath(base_path))}"
        )
    try:
        versions = find_versions(base_path)
    except OSError as error:
        raise UserError(
            f"cannot read {base_path} ({error.strerror}): check that the folder exists and is "
            "readable"
        ) from None
    if not versions:
        raise UserError(
            f"{base_path} contains no version of a model, such as a folder "
            f"{os.path.join(base_path, '1')} with {MODEL_FILE}: give the folder of an exported "
            "model, or export a model there first"
        )


@dataclasses.dataclass
class _Failure:
    """Failure to load a version.

    The manager tries again at its first scan after `retry_at`, or when the version's files have
    changed.

    Attributes:
        fingerprint: names, sizes and modification times of the version's files.
        attempts: number of failed attempts.
        retry_at: time of the next attempt, by `time.monotonic()`.
    """

    fingerprint: Fingerprint
    attempts: int
    retry_at: float


class VersionManager:
    """Manager that serves the newest versions of a model.

    The manager regularly scans the model's folder for new versions. While a new version is loaded
    and warmed up, the old version answers requests. Then the new version takes over, and the old
    version is freed when its last request has ended. If a new version does not load, the error is
    logged, and the old version continues to answer requests. Once a version is loaded, at least one
    version stays loaded until `stop`.

    Args:
        model: the model, with its version policy and labels. The attribute `model` may be replaced
            if name and folder stay the same.
        poll_seconds: seconds between two scans of the folder.
        loader: function that loads a `Servable` from a folder and a version number.
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
        self._fingerprints: dict[int, Fingerprint] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="versions", daemon=True)

    @property
    def current(self) -> int | None:
        """Number of the version that answers requests which name neither a version nor a label.

        `None` means that no version is loaded yet.
        """
        return max(self.served, default=None)

    @property
    def served(self) -> list[int]:
        """Numbers of the loaded versions in ascending order."""
        with self._lock:
            return sorted(self._serving)

    def version_of_label(self, label: str) -> int:
        """Returns the number of the version to which a label is assigned.

        Raises:
            ServingError: INVALID_ARGUMENT if there is no such label.
        """
        if label not in self.model.labels:
            raise invalid(f"Unrecognized servable version label: {label}")
        return self.model.labels[label]

    def acquire(self, version: int | None = None) -> Servable:
        """Returns a loaded version, which stays loaded until `release` is called.

        Args:
            version: number of the version; `None` means the newest loaded version.

        Raises:
            ServingError: NOT_FOUND if the version is not served, or UNAVAILABLE if the version is
                loading. Without `version`, UNAVAILABLE if no version is loaded.
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
        """Releases a version that `acquire` returned. The version may then be unloaded."""
        with self._lock:
            self._leases[servable] -= 1
        self._close_if_idle(servable)

    def statuses(self, version: int | None = None) -> list[ModelVersionStatus]:
        """Returns the states of the versions, newest first.

        Args:
            version: number of the version whose state is returned; `None` means all versions.

        Raises:
            ServingError: NOT_FOUND if there is no such version, or UNAVAILABLE if `version` is
                `None` and no version has begun to load.
        """
        with self._lock:
            items = sorted(self._statuses.items(), reverse=True)
        statuses = [status for number, status in items if version in (None, number)]
        if not statuses:  # without `version`, this means that the server still loads other models
            name = self.model.name
            raise not_loaded(name) if version is None else no_status(name, version)
        return statuses

    def start(self) -> None:
        """Loads versions, then starts a background thread that watches for new versions."""
        self.poll()
        self._thread.start()

    def stop(self) -> None:
        """Ends the background thread and frees all versions.

        A version with requests in flight is freed when its last request has ended.
        """
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for version in self.served:
            self._retire(version)

    def poll(self) -> None:
        """Scans the folder once, loads the versions to serve, and unloads all other versions.

        If none of the versions to serve is loaded, or if the folder cannot be read, nothing is
        unloaded.
        """
        model = self.model
        try:
            folders = find_versions(model.base_path)
        except OSError as error:
            _LOG.warning("cannot read %s: %s; the loaded version is kept", model.base_path, error)
            return
        self._fingerprints = {v: value for v, value in self._fingerprints.items() if v in folders}
        with self._lock:
            for version in self._failures.keys() - folders.keys():
                del self._failures[version], self._statuses[version]
        at_once = not self._serving  # if nothing is served yet, do not wait for stable files
        chosen: list[int] = []
        for version in model.candidates(folders):
            if len(chosen) == model.latest:
                break
            folder = folders[version]
            if version in self._serving or (
                self._is_due(version, folder, at_once) and self._load(version, folder)
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
                _LOG.exception("the search for new versions failed; the server will try again")

    def _is_due(self, version: int, path: str, at_once: bool) -> bool:
        """Returns whether to load a version now.

        The result is `True` if the version's files have not changed since the last scan, and if
        enough time has passed since the last failure to load the same files.

        Args:
            version: number of the version.
            path: folder of the version.
            at_once: whether to skip the check that the files have not changed.
        """
        fingerprint = _fingerprint(path)
        is_unchanged = self._fingerprints.get(version) == fingerprint
        self._fingerprints[version] = fingerprint
        if not is_unchanged and not at_once:
            return False
        failure = self._failures.get(version)
        return (
            failure is None
            or failure.fingerprint != fingerprint
            or time.monotonic() >= failure.retry_at
        )

    def _load(self, version: int, path: str) -> bool:
        start_time, fingerprint = time.monotonic(), _fingerprint(path)
        with self._lock:
            self._statuses[version] = _status(version, "LOADING")
        try:
            servable = self._loader(path, version)
            servable.warm_up()  # only logs errors
        except Exception as error:
            failure = from_exception(error)
            attempts = self._failures[version].attempts + 1 if version in self._failures else 1
            wait = min(_MAX_RETRY_SECONDS, self._poll_seconds * 2.0**attempts)
            status = _status(version, "END", failure.code, failure.message)
            with self._lock:
                self._failures[version] = _Failure(fingerprint, attempts, time.monotonic() + wait)
                self._statuses[version] = status
            _LOG.error("%s: version %d cannot be loaded: %s", path, version, failure.message)
            return False
        with self._lock:
            self._failures.pop(version, None)
            self._leases[servable] = 0
            self._statuses[version] = _status(version, "AVAILABLE")
            self._serving[version] = servable
        seconds = time.monotonic() - start_time
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
            if version not in self._serving:  # the same version may be loaded again
                self._statuses[version] = _status(version, "END")
        servable.close()
        _LOG.info("%s: version %d is unloaded", self.model.name, version)


def _status(
    version: int, state: str, code: Code = Code.OK, message: str = ""
) -> ModelVersionStatus:
    """Builds the state of a version.

    Args:
        version: number of the version.
        state: name of a `ModelVersionStatus.State`, such as "AVAILABLE".
        code: error code, or `OK` if there was no error.
        message: error message, or "".
    """
    error = {"error_code": code.value[0], "error_message": message}
    return ModelVersionStatus(version=version, state=state, status=error)


def _fingerprint(path: str) -> Fingerprint:
    """Returns paths, sizes and modification times of all files and subfolders of a folder.

    The value changes while files are being copied into the folder.
    """
    files = []
    for folder, folders, names in os.walk(path):  # skips folders that are deleted meanwhile
        for name in folders + names:
            file = os.path.join(folder, name)
            with contextlib.suppress(OSError):  # the file was deleted, so the next value differs
                info = os.stat(file)
                files.append((file, info.st_size, info.st_mtime_ns))
    return tuple(sorted(files))
