"""TensorFlow's in-memory file system `ram://`, which the tests use in place of a bucket.

It has no locks and cannot rename a folder that has content. Importing this module registers
`ram://` with `etils.epath`.
"""

import os
import pathlib
import posixpath

from etils import epath
from etils.epath import backend, gpath

from macaron_tf import errors
from macaron_tf.io import paths as storage

errors.REMOTE_SCHEMES.add("ram")


@epath.register_path_cls("ram://")
class RamPath(gpath.PosixGPath):
    """The path class that `epath.Path("ram://...")` returns."""

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
    """Returns an in-memory folder for this test, named after `tmp_path`."""
    return f"ram://{tmp_path.parent.name}/{tmp_path.name}"


def put(source: str | os.PathLike, target: str) -> str:
    """Copies a local folder into memory; returns `target`."""
    storage.upload(source, target, last="")
    return target
