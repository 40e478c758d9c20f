"""The folder of a model's versions, as files; nothing here needs TensorFlow."""

import os

from macaron_tf.errors import UserError

MODEL_FILE = "saved_model.pb"


def find_versions(base_path: str) -> dict[int, str]:
    """Complete versions under `base_path`: {number: folder}.

    A version is a folder named by an integer that holds `saved_model.pb`; others (a copy in
    progress under another name, notes, hidden files) are passed over.

    Raises:
        OSError: the folder cannot be read.
    """
    found = {}
    for name in os.listdir(base_path):
        path = os.path.join(base_path, name)
        if name.isascii() and name.isdigit() and os.path.isfile(os.path.join(path, MODEL_FILE)):
            found[int(name)] = path
    return found


def check_base_path(base_path: str) -> None:
    """Refuses a folder that cannot be served.

    Raises:
        UserError: it is missing, in a bucket, no folder, is itself a version, or holds none.
    """
    if "://" in base_path:
        raise UserError(
            f"{base_path} is in a bucket: copy it to a local folder, or serve it with TensorFlow "
            "Serving, which reads buckets"
        )
    if not os.path.isdir(base_path):
        raise UserError(f"{base_path} is not a folder; export a model there first")
    if os.path.isfile(os.path.join(base_path, MODEL_FILE)):
        raise UserError(f"{base_path} is one version of a model; give the folder that holds it")
    try:
        found = find_versions(base_path)
    except OSError as error:
        raise UserError(f"cannot read {base_path}: {error.strerror}") from None
    if not found:
        raise UserError(
            f"{base_path} holds no version of a model: a version is a folder named by a number "
            f"that contains {MODEL_FILE}, such as {os.path.join(base_path, '1', MODEL_FILE)}"
        )
