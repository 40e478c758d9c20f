"""Reader of trained networks: from a run, from another library's files, or from a hub."""

import contextlib
import os
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import keras
from etils import epath
from keras.src.saving.serialization_lib import SafeModeScope  # no public name

from macaron_tf.errors import UserError, first_line, parse_json
from macaron_tf.hub.hugging_face import read_hugging_face
from macaron_tf.hub.keras_models import read_model_garden_bert
from macaron_tf.hub.tokenizers.reading import GIVE_CASE, refuse_lower_case
from macaron_tf.io import paths
from macaron_tf.io.code_files import offer_code
from macaron_tf.io.hub import HUB
from macaron_tf.io.progress import Progress
from macaron_tf.models.model_parts import Card, ModelParts
from macaron_tf.special import Special
from macaron_tf.tasks import SETTINGS
from macaron_tf.text.base import Vocabulary
from macaron_tf.training import locations
from macaron_tf.training.checkpoints import MODEL, find_checkpoint
from macaron_tf.training.state import load_network

_MEND = "restore the file, or train or save the model again"


def read_model(
    location: str | os.PathLike,
    lower_case: bool | None = None,
    trust_code: bool = False,
) -> ModelParts:
    """Reads a trained network, its vocabulary and its use; see `macaron_tf.load`."""
    location = os.fspath(location)
    parsed = locations.locate(location)
    if parsed.library not in (locations.HUGGING_FACE, locations.MODEL_GARDEN):
        refuse_lower_case(lower_case, location)
    with Progress(f"loading {location}"):
        if parsed.library:
            model = _read_library(parsed, lower_case, trust_code)
            model = model.with_card(checkpoint=location)
        else:
            model = _read_native(parsed, trust_code)
    if parsed.library and model.card.unread:
        print(f"note: weights not read: {', '.join(model.card.unread)}", file=sys.stderr)
    # A folder downloaded from the hub has the revision as its name.
    on_hub = location.startswith(f"{HUB}:")
    name = location.rpartition("/")[2] if on_hub else paths.absolute(parsed.folder).name
    return model.with_card(name=name)


@contextlib.contextmanager
def _refuse_network(location: str) -> Iterator[None]:
    """Turns errors of the `with` block, which reads the network at `location`, into UserErrors."""
    try:
        yield
    except (ImportError, *paths.FILE_ERRORS, *paths.DAMAGE) as error:
        if "`safe_mode=False`" in str(error):
            advice = "to trust it, give --trust-code (trust_code=True)"
            raise UserError(f"{location} contains Python code: {advice}") from error
        found = f"has no network that this version can read ({first_line(error):.200})"
        raise UserError(f"{location} {found}: use the version that saved it") from error


def saved_network(folder: epath.Path, trust_code: bool = False) -> keras.Model:
    """Builds the network that a folder's model.json describes, without reading the weights."""
    return _build_network(folder, _read_record(folder, str(folder)), trust_code)


def _read_record(path: epath.Path, location: str) -> dict[str, Any]:
    try:
        return parse_json(paths.read_bytes(path / MODEL))
    except (UserError, ValueError) as error:
        if (path / "1" / "saved_model.pb").exists():
            raise UserError(f"{location} is an export: serve it by `macaron serve`") from error
        known = "the folder that `macaron train` or `save_pretrained` wrote, hugging-face:DIR, "
        known += "keras-hub:DIR, model-garden:DIR or hub:OWNER/NAME"
        raise UserError(f"{location} has no readable model.json: give {known}") from error


def _build_network(path: epath.Path, record: dict[str, Any], trust_code: bool) -> keras.Model:
    """Builds the network that a model.json describes."""
    if trust_code:
        offer_code(path)
    with paths.refuse_damage(path / MODEL, _MEND):
        described = record["network"]
    # The scope holds in this thread, and takes precedence over an outer scope. The argument
    # `safe_mode` would not, if a trusted module loads another folder while it is imported.
    with _refuse_network(str(path / MODEL)), SafeModeScope(not trust_code):
        network = keras.saving.deserialize_keras_object(described)
        if not network.built:
            network.build()
    return network


def _read_native(parsed: locations.Location, trust_code: bool) -> ModelParts:
    path, location = parsed.folder, parsed.argument
    record = _read_record(path, location)
    if "card" not in record:
        mend = "use the version of macaron_tf that saved it, or save the model again"
        raise UserError(f"{path / MODEL} is not of this version: {mend}")
    with paths.refuse_damage(path / MODEL, _MEND):
        settings, card = record["task"], record["card"]
        if settings is not None:
            settings = SETTINGS[settings.pop("kind")](**settings, trust_code=False)
        weights = find_checkpoint(path, parsed.checkpoint, record.get("save_every_steps"))
        folder = record["vocabulary"] and str(record["vocabulary"])
        card["special"] = Special.of(card["special"])
    vocabulary = Vocabulary.load(path / folder) if folder else None
    network = _build_network(path, record, trust_code)
    with _refuse_network(str(path / MODEL)):
        manifest = load_network(weights, network, vocabulary.hash if vocabulary else "")
    card |= {
        "checkpoint": weights.name,
        "recipe": paths.read_optional(path / locations.RECIPE),
        "results": {name: manifest[name] for name in ("step", "metrics") if name in manifest},
    }
    with paths.refuse_damage(path / MODEL, _MEND):
        return ModelParts(network, vocabulary, settings, Card(**card, trust_code=False))


def _read_library(
    parsed: locations.Location,
    lower_case: bool | None,
    trust_code: bool,
) -> ModelParts:
    folder = pathlib.Path(parsed.folder)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} for {parsed.argument}: check the path")
    if parsed.library == locations.KERAS_HUB:
        from macaron_tf.hub.keras_hub import read_preset  # KerasHub is optional

        return read_preset(folder, trust_code)
    if parsed.library == locations.MODEL_GARDEN:
        return read_model_garden_bert(folder, _lower_case(folder, lower_case))
    return read_hugging_face(folder, lower_case)


def _lower_case(folder: pathlib.Path, lower_case: bool | None) -> bool:
    """Returns whether a BERT checkpoint of Model Garden lower-cases text.

    If `lower_case` is `None`, "cased" or "uncased" in the folder's name determines the result.
    """
    match = re.search("uncased|cased", folder.name)
    if lower_case is None and not match:
        what = f"neither the files nor the name of {folder} says whether text is lower-cased"
        raise UserError(f"{what}: {GIVE_CASE}")
    return lower_case if lower_case is not None else match[0] == "uncased"
