"""A folder that only one process writes."""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

from macaron_tf.data.storage import is_remote
from macaron_tf.errors import UserError


@contextlib.contextmanager
def only_writer(folder: str | os.PathLike, activity: str) -> Iterator[None]:
    """Keeps a second process from writing into a folder; ends with the process at the latest.

    Args:
        folder: made when absent; an empty `.lock` stays in it. A bucket has no locks: nothing is
            done there.
        activity: what is done in it, such as "training", for the sentence that refuses a second.

    Raises:
        UserError: another process is at it, or the folder cannot be written.
    """
    if is_remote(folder):
        yield
        return
    folder = pathlib.Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "w")  # noqa: SIM115 (closed below, by `with file`)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; choose another place") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"another process is {activity} in {folder}: wait for it or choose another folder"
            ) from error
        yield
