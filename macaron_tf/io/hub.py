"""Downloads from and uploads to the Hugging Face hub, with the package huggingface_hub."""

import functools
import pathlib
import re
from typing import Any

from macaron_tf.errors import UserError, first_line, needed

HUB = "hub"
# Files that are not downloaded, because this library does not read them.
_UNREAD = [f"*.{suffix}" for suffix in ("onnx", "msgpack", "ot", "tflite", "gguf")]
_UNREAD += ["tf_model.h5", "onnx/*", "openvino/*"]
# Files of an earlier push, which a new push deletes because its format may differ.
_REPLACED = re.compile(
    r"[^/]+\.(json|py|txt|model|h5|safetensors)|(vocabulary|code|1_Pooling|2_Normalize)/.*"
)


def parse_repo(location: str) -> tuple[str, str | None]:
    """Splits `[hub:]OWNER/NAME[@REVISION]` into OWNER/NAME and the revision or `None`."""
    name, _, revision = location.removeprefix(f"{HUB}:").partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{location} is not a repository: write {HUB}:OWNER/NAME[@REVISION]")
    return name, revision or None


@functools.cache
def download(location: str) -> pathlib.Path:
    """Downloads `hub:OWNER/NAME[@REVISION]` if necessary, and returns its local folder.

    Files that this project does not read, such as ONNX files, are not downloaded.
    """
    hub = _client(location)
    name, revision = parse_repo(location)
    try:
        folder = hub.snapshot_download(name, revision=revision, ignore_patterns=_UNREAD)
    except Exception as error:  # errors of the client, of HTTP, of sockets, or of the disk
        failure = f"{location} cannot be downloaded ({first_line(error).partition('. ')[0]})"
        raise UserError(f"{failure}: check the name and the network") from error
    return pathlib.Path(folder)


def check_login(location: str) -> str:
    """Checks that the user is logged in, and returns OWNER/NAME of `[hub:]OWNER/NAME`."""
    hub = _client(f"pushing to {location}")
    name, revision = parse_repo(location)
    if revision:
        raise UserError(f"{location} names a revision, but a push creates one: omit @{revision}")
    if not hub.get_token():
        raise UserError(f"pushing to {location} needs a login: run `hf auth login` or set HF_TOKEN")
    return name


def push(folder: pathlib.Path, location: str, private: bool | None = None) -> str:
    """Uploads a folder's files in one commit, and returns the URL of the repository.

    The commit also deletes model files of an earlier push that `folder` does not contain.
    `location` is `[hub:]OWNER/NAME`, which is created if needed, private by `private` or its
    owner's default.
    """
    name, hub = check_login(location), _client(location)
    api, files = hub.HfApi(), [path for path in sorted(folder.rglob("*")) if path.is_file()]
    uploads = {path.relative_to(folder).as_posix(): path for path in files}
    try:
        address = api.create_repo(name, private=private, exist_ok=True)
        remote_files = api.list_repo_files(name)
        replaced = [n for n in remote_files if n not in uploads and _REPLACED.fullmatch(n)]
        operations = [*map(hub.CommitOperationDelete, replaced)]
        operations += [hub.CommitOperationAdd(n, str(path)) for n, path in uploads.items()]
        api.create_commit(name, operations, commit_message="Upload a model of macaron_tf")
    except Exception as error:  # see `download`
        why = first_line(error).partition(". ")[0]
        mend = f"check that your token may write to {name.partition('/')[0]}, and the network"
        raise UserError(f"{location} cannot be pushed to ({why}): {mend}") from error
    return str(address)


def _client(purpose: str) -> Any:
    with needed(purpose):
        import huggingface_hub
    return huggingface_hub
