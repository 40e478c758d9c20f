"""Files that are never half-written."""

import contextlib
import os
import pathlib

from macaron_tf.errors import UserError


def write_aside(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file beside its place, then renames it there.

    Args:
        path: the file; its folder is made when absent.
        content: what it will hold.

    Raises:
        UserError: the place cannot be written.
    """
    path = pathlib.Path(path)
    aside = path.parent / f".tmp-{path.name}-{os.getpid()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise UserError(f"cannot write {path}: {error.strerror}; choose another place") from error


def cache_directory() -> pathlib.Path:
    """The folder of everything that can be fetched or computed again.

    Returns:
        `$MACARON_TF_CACHE` where that is set, otherwise `~/.cache/macaron_tf`.
    """
    named = os.environ.get("MACARON_TF_CACHE")
    return pathlib.Path(named) if named else pathlib.Path.home() / ".cache" / "macaron_tf"
