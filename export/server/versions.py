"""Management of model versions: finding, loading and switching between versions."""

import contextlib
import logging
import os
import pathlib
import threading
import time

from export.server.errors import ServingError, from_exception
from export.server.servable import Servable
from macaron_tf.errors import UserError
from macaron_tf.io.serving import MODEL_FILE, version_of

_LOG = logging.getLogger(__name__)


def find_versions(folder: str | os.PathLike) -> dict[int, pathlib.Path]:
    """Returns a model's versions: numbered subfolders with `saved_model.pb`."""
    files = pathlib.Path(folder).glob(f"*/{MODEL_FILE}")
    folders = [file.parent for file in files if file.is_file()]
    versions = {folder: version_of(folder.name) for folder in folders}
    return {version: folder for folder, version in versions.items() if version is not None}


class Versions:
    """The newest version of a model in its folder, which answers all requests.

    A thread scans the model's folder every `poll_seconds`. While a new version is loaded and warmed
    up, the old version answers requests. Then the new version takes over, and the old version is
    freed when its last request has ended. If a new version does not load, the error is logged, and
    the old version continues to answer requests until the files of the new one change. Once a
    version is loaded, one stays loaded.
    """

    def __init__(self, base_path: str, poll_seconds: float):
        self.current: Servable | None = None
        self._base_path = base_path
        self._poll_seconds = poll_seconds
        self._states: dict[int, tuple[str, str]] = {}  # TensorFlow Serving's state, error message
        self._fingerprints: dict[int, list] = {}  # files at the last scan
        self._failures: dict[int, list] = {}  # files of the versions that did not load
        self._stopped = threading.Event()

    def get(self, version: str | None = None) -> Servable:
        """Returns a version, by default the newest, which stays loaded while a request uses it."""
        current = self.current  # the thread that watches may replace it
        if current is None:
            raise ServingError(503, "the model is not loaded yet: try again later")
        if version not in (None, str(current.version)):
            message = f"version {version} is not served, only version {current.version}"
            raise ServingError(404, message)
        return current

    def states(self, version: str | None = None) -> list[tuple[int, str, str]]:
        """Returns number, state and error message of all versions or one, newest first."""
        states = sorted(self._states.copy().items(), reverse=True)
        found = [(number, *state) for number, state in states if version in (None, str(number))]
        if version is not None and not found:
            raise ServingError(404, f"the model has no version {version}: choose another version")
        return found

    def start(self) -> None:
        """Loads a version, then starts the thread that watches for new versions."""
        self.poll()
        if self.current is None:
            reasons = "; ".join(f"version {state[0]}: {state[2][:200]}" for state in self.states())
            reasons = reasons or f"it has no file such as 1/{MODEL_FILE}"
            raise UserError(
                f"no version in {self._base_path} loads ({reasons}): export a model there"
            )
        threading.Thread(target=self._watch, name="versions", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread that watches for new versions."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_seconds):
            try:
                self.poll()
            except Exception:
                _LOG.exception("the search for new versions failed; the server will try again")

    def poll(self) -> None:
        """Scans the folder once, and switches to the newest version that loads."""
        folders = find_versions(self._base_path)
        self._fingerprints = {v: value for v, value in self._fingerprints.items() if v in folders}
        for version in self._failures.keys() - folders.keys():
            del self._failures[version], self._states[version]
        for version in sorted(folders, reverse=True):
            if self.current and version == self.current.version:
                break
            if self._is_due(version, folders[version]) and self._load(version, folders[version]):
                break

    def _is_due(self, version: int, path: pathlib.Path) -> bool:
        """Returns whether to load a version now.

        Its files must not have changed since the last scan, unless no version is loaded yet. After
        a failure, they must have changed.
        """
        fingerprint = _fingerprint(path)
        is_settled = not self.current or self._fingerprints.get(version) == fingerprint
        self._fingerprints[version] = fingerprint
        return is_settled and self._failures.get(version) != fingerprint

    def _load(self, version: int, path: pathlib.Path) -> bool:
        start = time.monotonic()
        self._states[version] = ("LOADING", "")
        try:
            servable = Servable(path, version)
            servable.warm_up()  # only logs errors
        except Exception as error:  # TensorFlow's exception can have any class
            message = " ".join(str(from_exception(error)).split())
            self._failures[version] = self._fingerprints[version]
            self._states[version] = ("END", message)
            _LOG.error("%s: version %d cannot be loaded: %s", path, version, message)
            return False
        self._failures.pop(version, None)
        if self.current:
            self._states[self.current.version] = ("END", "")
        self._states[version] = ("AVAILABLE", "")
        self.current = servable  # the last request that refers to the version before frees it
        _LOG.info("version %d serves after %.1f s", version, time.monotonic() - start)
        return True


def _fingerprint(path: pathlib.Path) -> list[tuple[str, int, int]]:
    """Returns paths, sizes and modification times in a folder, which change during copying."""
    files = []
    with contextlib.suppress(OSError):  # a file was deleted meanwhile, so the next value differs
        for file in sorted(path.rglob("*")):
            files.append((str(file), file.stat().st_size, file.stat().st_mtime_ns))
    return files
