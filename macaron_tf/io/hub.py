"""Downloads from and uploads to Hugging Face's hub, by the package huggingface_hub."""

import functools
import pathlib
import re
from typing import Any

from macaron_tf.errors import UserError, needed

HUB = "hub"
# Files that are not downloaded, because this library does not read them.
_UNREAD = (
    "*.onnx",
    "*.msgpack",
    "*.ot",
    "*.tflite",
    "*.gguf",
    "tf_model.h5",
    "onnx/*",
    "openvino/*",
)
# Files of an earlier push, which must not stay beside those of another form.
_REPLACED = re.compile(
    r"[^/]+\.(json|py|txt|model|h5|safetensors)|(vocabulary|code|1_Pooling|2_Normalize)/.*"
)


def parse_repo(place: str) -> tuple[str, str | None]:
    """Parses `[hub:]OWNER/NAME[@REVISION]` into OWNER/NAME and the revision, or None."""
    name, _, revision = place.removeprefix(f"{HUB}:").partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{place}: write it as {HUB}:OWNER/NAME or {HUB}:OWNER/NAME@REVISION")
    return name, revision or None


@functools.cache
def downloaded(place: str) -> pathlib.Path:
    """Downloads `hub:OWNER/NAME[@REVISION]`, unless it is cached, and returns its local folder."""
    hub = _client(place)
    name, revision = parse_repo(place)
    try:
        folder = hub.snapshot_download(name, revision=revision, ignore_patterns=_UNREAD)
    except Exception as error:  # errors of the client, of HTTP, of sockets, or of the disk
        raise UserError(
            f"{place} cannot be downloaded ({_reason(error)}): check the name and the network, or "
            "copy the folder here and give hugging-face:DIR or DIR"
        ) from error
    return pathlib.Path(folder)


def check_login(place: str) -> str:
    """Checks that a model can be pushed to a place, and returns its OWNER/NAME.

    Raises:
        UserError: the place names a revision, or the user is not logged in.
    """
    hub = _client(f"pushing to {place}")
    name, revision = parse_repo(place)
    if revision:
        raise UserError(f"{place}: a push makes a new revision, so leave @{revision} out")
    if not hub.get_token():
        raise UserError(
            f"{place}: you are not logged in to the hub: run `hf auth login`, or set HF_TOKEN to a "
            "token that may write"
        )
    return name


def push(folder: pathlib.Path, place: str, private: bool | None = None) -> str:
    """Uploads a folder's files in one commit.

    Args:
        folder: the folder.
        place: `[hub:]OWNER/NAME`, a repository, which is created if it is missing.
        private: whether a new repository is private; None: the default of its owner.

    Returns:
        The repository's address.
    """
    name, hub = check_login(place), _client(place)
    api, files = hub.HfApi(), [path for path in sorted(folder.rglob("*")) if path.is_file()]
    new = {path.relative_to(folder).as_posix(): path for path in files}
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        present = api.list_repo_files(name)
        old = [one for one in present if one not in new and _REPLACED.fullmatch(one)]
        operations = [hub.CommitOperationDelete(one) for one in old]
        operations += [hub.CommitOperationAdd(one, str(path)) for one, path in new.items()]
        api.create_commit(name, operations, commit_message="Upload a model of macaron_tf")
    except Exception as error:  # see `downloaded`
        raise UserError(_refusal(place, name, error)) from error
    return str(address)


def _refusal(place: str, name: str, error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return f"{place}: the hub does not accept your token: run `hf auth login` again"
    if status in (403, 404):
        owner = name.partition("/")[0]
        return (
            f"{place}: your token may not write there (HTTP {status}): give a name of your own in "
            f"place of {owner}, or a token that may write in {owner}'s repositories"
        )
    return f"{place} cannot be pushed to ({_reason(error)}): check the network and push again"


def _client(purpose: str) -> Any:
    with needed(purpose):
        import huggingface_hub
    return huggingface_hub


def _reason(error: Exception) -> str:
    """The first sentence of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0]
