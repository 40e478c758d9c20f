"""Models to serve, from the command line or from a TensorFlow Serving model configuration file."""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping

from google.protobuf import text_format
from tensorflow_serving.config import file_system_storage_path_source_pb2, model_server_config_pb2

from export.server.config import ServerConfig, check_name
from macaron_tf.errors import UserError

_POLICY = (
    file_system_storage_path_source_pb2.FileSystemStoragePathSourceConfig.ServableVersionPolicy
)


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """Model to serve, with the rule that selects its versions.

    Attributes:
        name: name of the model in URLs and in gRPC requests.
        base_path: folder of the model, with a subfolder for each version.
        latest: number of newest versions to serve; `None` means all versions.
        allowed_versions: versions that may be served; `None` means all versions.
        labels: dict mapping label to version.
    """

    name: str
    base_path: str
    latest: int | None = 1
    allowed_versions: frozenset[int] | None = None
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def candidates(self, versions: Iterable[int]) -> list[int]:
        """Returns the elements of `versions` that may be served, newest first.

        The server loads the versions in this order until `latest` versions are loaded.

        Args:
            versions: versions in the model's folder.
        """
        allowed = self.allowed_versions
        return sorted((v for v in versions if allowed is None or v in allowed), reverse=True)


def served_models(config: ServerConfig) -> list[ServedModel]:
    """Returns the models to serve.

    Raises:
        UserError: the model configuration file is not valid (see `read_model_config`).
    """
    if config.model_config_file is None:
        return [ServedModel(config.name, config.base_path)]
    return read_model_config(config.model_config_file)


def read_model_config(path: str) -> list[ServedModel]:
    """Reads a TensorFlow Serving model configuration file.

    Args:
        path: path of a `ModelServerConfig` in protocol buffer text format.

    Raises:
        UserError: the file cannot be read or parsed, lists no model, or has a field with an
            unsupported value. The message names the file, and the line or the model.
    """
    try:
        with open(path, "rb") as file:
            text = file.read().decode()
        parsed = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    except OSError as error:
        raise UserError(
            f"--model-config-file {path} cannot be read ({error.strerror}): check the path"
        ) from None
    except ValueError as error:
        raise UserError(
            f"--model-config-file {path} is not a UTF-8 text file ({error}): write the file in "
            "protocol buffer text format"
        ) from None
    except text_format.ParseError as error:
        reason = re.sub(r"^\d+:\d+ : ", "", " ".join(str(error).split()))
        raise UserError(
            f"line {error.GetLine()} of --model-config-file {path} is not valid protobuf text "
            f"format ({reason}): correct the line"
        ) from None
    if not parsed.model_config_list.config:
        raise UserError(
            f"--model-config-file {path} lists no model: write model_config_list {{ config {{ "
            'name: "NAME" base_path: "/FOLDER" model_platform: "tensorflow" } }'
        )
    models: dict[str, ServedModel] = {}
    for position, entry in enumerate(parsed.model_config_list.config, 1):
        try:
            model = _read_model(entry)
            if model.name in models:
                raise UserError("another model has the same name: give each model its own name")
        except UserError as error:
            where = f"the model {entry.name!r}" if entry.name else f"config {position}"
            raise UserError(f"--model-config-file {path}, {where}: {error}") from None
        models[model.name] = model
    return list(models.values())


def _read_model(entry: model_server_config_pb2.ModelConfig) -> ServedModel:
    """Converts a `config` entry of the file to a `ServedModel`.

    Raises:
        UserError: a field has an unsupported value. The message names the field.
    """
    if not entry.name:
        raise UserError("the name is empty: give a name, which becomes part of the URLs")
    check_name(entry.name, "name")
    if not os.path.isabs(entry.base_path) and "://" not in entry.base_path:
        raise UserError(
            f"base_path {entry.base_path!r} is not an absolute path: write a path that begins "
            "with /"
        )
    model_type = model_server_config_pb2.ModelType.Name(entry.model_type).lower()
    platform = entry.model_platform or model_type
    if platform != "tensorflow":
        raise UserError(
            f'model_platform {platform!r} is not supported: write model_platform: "tensorflow"'
        )
    if entry.HasField("logging_config"):
        raise UserError("this server does not log requests: leave the field logging_config out")
    latest, allowed = _read_policy(entry.model_version_policy)
    for label, version in entry.version_labels.items():
        if not label or "/" in label or ":" in label:
            raise UserError(
                f"the label {label!r} in version_labels cannot be part of a URL: give a "
                "non-empty label without the characters / and :"
            )
        if version < 0:
            raise UserError(
                f"the label {label!r} in version_labels points to version {version}, but version "
                "numbers must be at least 0: give the number of a version that is served"
            )
        if allowed is not None and version not in allowed:
            raise UserError(
                f"the label {label!r} in version_labels points to version {version}, which is not "
                "in model_version_policy: give another version, or add this version to the policy"
            )
    return ServedModel(entry.name, entry.base_path, latest, allowed, dict(entry.version_labels))


def _read_policy(policy: _POLICY) -> tuple[int | None, frozenset[int] | None]:
    """Converts a version policy to `latest` and `allowed_versions` of `ServedModel`.

    Raises:
        UserError: the policy `specific` lists no version or a negative number.
    """
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return None, None
    if choice == "specific":
        versions = frozenset(policy.specific.versions)
        if not versions or min(versions) < 0:
            raise UserError(
                f"`specific` in model_version_policy lists {sorted(versions) or 'no versions'}, "
                "but must list at least one version, and no negative number: correct the list"
            )
        return None, versions
    # If num_versions is not set (0), use TensorFlow Serving's default of 1.
    return max(1, policy.latest.num_versions), None
