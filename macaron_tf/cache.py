"""The folder of what can be fetched or computed again."""

import os
import pathlib

from macaron_tf.errors import UserError


def cache_directory() -> pathlib.Path:
    """The folder of everything that can be fetched or computed again; it is mapped into memory.

    Returns:
        `$MACARON_TF_CACHE` where that is set, otherwise `~/.cache/macaron_tf`.

    Raises:
        UserError: it is set to a place in a bucket.
    """
    named = os.environ.get("MACARON_TF_CACHE")
    if named and "://" in named:
        raise UserError(f"MACARON_TF_CACHE is {named}: the cache must be a folder on a local disk")
    return pathlib.Path(named) if named else pathlib.Path.home() / ".cache" / "macaron_tf"
