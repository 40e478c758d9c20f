"""Signatures of user code in a run, so that the same user can open the run without `--trust-code`.

RUN/code.json maps each name of user code, such as `mine:Block`, to its signature. The signature is
an HMAC-SHA256 of the name and the path of the module's file, with a key in the user's configuration
folder. For another user, on another machine, or if the module is in another file, the signature is
not valid, and a command asks for `--trust-code`. The folder of the run may be moved or copied.
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
    """Signs the user code that JSON files name, and writes the signatures into code.json.

    Code whose import is not allowed is not signed. If there is nothing to sign, this function
    writes no file.

    Args:
        folder: folder of the JSON files.
        records: contents of the JSON files.
    """
    names = allowed_import_paths(*records)
    signed = {name: signature for name in names if (signature := _signature(name, make_key=True))}
    if signed:
        storage.write_atomic(folder / SIGNATURES, json.dumps(signed, indent=1).encode())


def allowed_import_paths(*records: object, sources: bool = True) -> list[str]:
    """Returns the names of user code that JSON values contain and that may be imported.

    Args:
        records: JSON values. A string that names user code has the form `package.module:Name`.
        sources: whether to include text sources, which have the form `python:package.module:Name`.

    Returns:
        The sorted names, each in the form `package.module:Name` or `FILE.py:Name`, without the
        prefix `python:` and without arguments.
    """
    texts = {text for text in tf.nest.flatten(records) if isinstance(text, str)}
    texts = {text for text in texts if sources or not text.startswith("python:")}
    candidates = {text.removeprefix("python:").partition("(")[0] for text in texts}
    return sorted(
        import_path
        for import_path in candidates
        if plug_ins.is_import_path(import_path) and plug_ins.is_allowed(import_path)
    )


def allow_signed_code(folder: epath.Path) -> None:
    """Allows imports of the user code that a folder's `code.json` signs with this user's key.

    Invalid signatures are ignored. Without `code.json`, the function does nothing.

    Raises:
        UserError: `code.json` is damaged.
    """
    if not storage.is_file(folder / SIGNATURES):
        return
    signed = storage.read_json(folder / SIGNATURES, mend="remove it")
    for name, signature in signed.items():
        expected = _signature(name)
        if expected and hmac.compare_digest(
            expected.encode(), str(signature).encode(errors="replace")
        ):
            plug_ins.allow(name)


def _signature(import_path: str, make_key: bool = False) -> str | None:
    """Returns the hexadecimal signature of `package.module:Name` or `FILE.py:Name`.

    Returns `None` if the module or file does not exist, or if the user has no key.
    """
    origin = plug_ins.origin_of(import_path)
    if not origin or not (key := _key(make_key)):
        return None
    return hmac.digest(key, f"{import_path}\0{origin}".encode(), "sha256").hex()


def _key(make: bool) -> bytes:
    """Returns the secret key with which this user signs code.

    Returns b"" if there is no key, or if the key cannot be read or created.

    Args:
        make: whether to create a missing key.
    """
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
            print(f"note: {why}: opening the run will need --trust-code", file=sys.stderr)
        return b""
