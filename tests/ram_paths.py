"""TensorFlow's file system in memory, `ram://`, in place of a bucket: it has no locks, and renames
no folder with its content; `etils.epath` takes it for one once this module is imported."""

import os
import pathlib
import posixpath

from etils import epath
from etils.epath import backend, gpath

from macaron_tf import errors
from macaron_tf.io import paths as storage

errors.STORES.add("ram")


@epath.register_path_cls("ram://")
class RamPath(gpath.PosixGPath):
    """What `epath.Path("ram://...")` makes."""

    @property
    def _uri_scheme(self):
        return "ram" if self.parts[:1] == ("ram:",) else None

    @property
    def _backend(self):
        return backend.tf_backend

    @property
    def _path_str(self):
        if self._uri_scheme:
            return "ram://" + posixpath.join(*self.parts[1:], "").rstrip("/")
        return posixpath.join(*self.parts)


def folder(tmp_path: pathlib.Path) -> str:
    """A folder of a test's own in memory, named after the one it has on the disk."""
    return f"ram://{tmp_path.parent.name}/{tmp_path.name}"


def put(source: str | os.PathLike, target: str) -> str:
    """Copies a local folder into memory; returns where it is."""
    storage.upload(source, target, last="")
    return target
