"""Signatures by which a user's own runs may import the code that they name again.

RUN/code.json    {"mine:Block": "an HMAC-SHA256 of the name and of the file that it was found in"}

The key lies in the user's configuration folder. Another user or machine, a name that was not
recorded, or a module of that name in another file has no valid signature: then a command asks for
`--trust-code`. Moving or copying the folder changes nothing.
"""

import contextlib
import hmac
import json
import os
import pathlib
import secrets
import sys

import tensorflow as tf
from etils import epath

from macaron_tf import plug_ins
from macaron_tf.io import paths as storage

SIGNATURES = "code.json"


def sign_code(folder: epath.Path, *records: object) -> None:
    """Writes the signatures of the code that a folder's JSON files name; no file for none.

    Args:
        records: the contents of these files.
    """
    names = allowed_places(*records)
    signed = {name: mark for name in names if (mark := _signature(name, make_key=True))}
    if signed:
        storage.write_aside(folder / SIGNATURES, json.dumps(signed, indent=1).encode())


def allowed_places(*records: object, sources: bool = True) -> list[str]:
    """The places, `package.module:Name`, that JSON's values name and that may be imported.

    Args:
        sources: whether `python:package.module:Name`, a source of text, counts.
    """
    texts = {text for text in tf.nest.flatten(records) if isinstance(text, str)}
    texts = {text for text in texts if sources or not text.startswith("python:")}
    places = {text.removeprefix("python:").partition("(")[0] for text in texts}
    return sorted(
        place for place in places if plug_ins.is_place(place) and plug_ins.is_allowed(place)
    )


def allow_signed_code(folder: epath.Path) -> None:
    """Lets the code be imported that this user's own training recorded in a folder."""
    if not storage.is_file(folder / SIGNATURES):
        return
    signed = storage.read_json(folder / SIGNATURES, mend="remove it")
    for name, mark in signed.items():
        known = _signature(name)
        if known and hmac.compare_digest(known.encode(), str(mark).encode(errors="replace")):
            plug_ins.allow(name)


def _signature(place: str, make_key: bool = False) -> str | None:
    """The signature of a place; None where its module or the key is not there."""
    origin = plug_ins.origin_of(place)
    if not origin or not (key := _key(make_key)):
        return None
    return hmac.digest(key, f"{place}\0{origin}".encode(), "sha256").hex()


def _key(make: bool) -> bytes:
    """The user's key; empty where there is none and none can be written."""
    folder = os.environ.get("XDG_CONFIG_HOME") or pathlib.Path.home() / ".config"
    file = pathlib.Path(folder) / "macaron_tf" / "key"
    try:
        if make:
            file.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with open(descriptor, "wb") as new:
                    new.write(secrets.token_bytes(32))
        return file.read_bytes()
    except OSError as error:
        if make:
            why = f"{file} cannot be written ({error.strerror})"
            print(f"note: {why}: the run's code will need --trust-code", file=sys.stderr)
        return b""
