"""`load`: a pre-trained network and its vocabulary, from wherever they are kept."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
from etils import epath

from macaron_tf.errors import UserError, needed
from macaron_tf.interop.arrays import read_json
from macaron_tf.interop.encoder_decoders import FAMILIES, read_encoder_decoder
from macaron_tf.interop.encoders import read_encoder, read_sentence_transformer
from macaron_tf.interop.keras_models import read_keras_hub, read_model_garden_bert
from macaron_tf.interop.language_models import LANGUAGE_FAMILIES, read_language_model, read_xlnet
from macaron_tf.io import paths
from macaron_tf.models.pretrained import RECIPE, USAGE, Pretrained
from macaron_tf.text.base import Vocabulary
from macaron_tf.training.checkpoints import MODEL, find_checkpoint, is_saved
from macaron_tf.training.state import load_network

HUGGING_FACE, KERAS_HUB, MODEL_GARDEN, HUB = "hugging-face", "keras-hub", "model-garden", "hub"
LIBRARIES = (HUGGING_FACE, KERAS_HUB, MODEL_GARDEN)
# Files on a hub that no reader here opens.
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


def load(
    place: str | os.PathLike, lower_case: bool | None = None, pooling: bool = True
) -> Pretrained:
    """Reads a pre-trained network with its weights, its vocabulary and how it is used.

    Args:
        place: one of
            - the folder of a run, with `@CHECKPOINT` where the checkpoint is not to be the default
              one (see `find_checkpoint`), or a folder that `Pretrained.save_pretrained` wrote;
            - `hugging-face:DIR` of its `save_pretrained` or sentence-transformers;
            - `keras-hub:DIR` of a BERT, RoBERTa or GPT-2 preset;
            - `model-garden:DIR` of a BERT as Model Garden publishes it;
            - `hub:OWNER/NAME[@REVISION]`, any of these on Hugging Face's hub, which is downloaded
              once, by the package huggingface_hub;
            - a network's `.keras` file, which holds no vocabulary.
        lower_case: whether text is lower-cased, for a directory of a WordPiece vocabulary that
            does not say so.
        pooling: read how a sentence-transformers model pools, and refuse an unknown way.

    Raises:
        UserError: nothing is there, or it cannot be read.

    Example:
        bert = macaron_tf.load("hugging-face:bert-base-uncased")
        classifier = bert.classifier(num_classes=2)
        bert.save_pretrained("my-bert")
    """
    place = os.fspath(place)
    if _library(place):
        return _load_library(place, lower_case, pooling)
    if place.endswith(".keras"):
        path = paths.as_path(place)
        with _refuse_network(place):
            network = keras.saving.load_model(path)
        return Pretrained(network, name=path.stem, checkpoint=place)
    return _load_run(place)


def is_library(place: str) -> bool:
    """Whether a place is of another library: its directory, or one saved here without a recipe."""
    if _library(place):
        return True
    path = run_place(place)[0]
    return is_saved(path) and not (path / RECIPE).exists()


def run_place(place: str) -> tuple[epath.Path, str | None]:
    """The folder and the checkpoint of RUN or RUN@CHECKPOINT."""
    if place.startswith(f"{HUB}:"):
        return paths.as_path(_downloaded(place)), None
    path = paths.as_path(place)
    if not path.exists() and "@" in place:
        folder, _, checkpoint = place.rpartition("@")
        return paths.as_path(folder), checkpoint
    return path, None


def _library(place: str) -> str:
    """The one of `LIBRARIES` whose directory a place is, or ""."""
    kind, _, directory = place.partition(":")
    if kind != HUB:
        return kind if kind in LIBRARIES and directory else ""
    folder = _downloaded(place)
    if is_saved(folder):
        return ""
    if (folder / "bert_config.json").is_file() and list(folder.glob("*.index")):
        return MODEL_GARDEN
    config = folder / "config.json"
    preset = config.is_file() and "registered_name" in read_json(config)
    return KERAS_HUB if preset else HUGGING_FACE


@functools.cache
def _downloaded(place: str) -> pathlib.Path:
    """The local folder of `hub:OWNER/NAME[@REVISION]`."""
    with needed("huggingface_hub", place):
        import huggingface_hub
    name, _, revision = place.removeprefix(f"{HUB}:").partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{place}: write it as {HUB}:OWNER/NAME or {HUB}:OWNER/NAME@REVISION")
    try:
        folder = huggingface_hub.snapshot_download(
            name, revision=revision or None, ignore_patterns=_UNREAD
        )
    except Exception as error:  # of the hub's client, its HTTP client, sockets and the disk
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0]
        raise UserError(
            f"{place} cannot be downloaded ({reason}): check the name and the network, or copy the "
            f"folder here and give {HUGGING_FACE}:DIR or DIR"
        ) from error
    return pathlib.Path(folder)


@contextlib.contextmanager
def _refuse_network(place: str) -> Iterator[None]:
    """Turns Keras's refusal of a network's description within the `with` into a UserError."""
    try:
        yield
    except (*paths.FILE_ERRORS, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{place} holds no network that this version can make ({reason[:200]}): check the "
            "path, or load it with the version that wrote it"
        ) from error


def _load_run(place: str) -> Pretrained:
    path, checkpoint = run_place(place)
    try:
        record = json.loads((path / MODEL).read_bytes())
    except (*paths.FILE_ERRORS, ValueError) as error:
        raise UserError(
            f"{place} is no run: it has no model.json that can be read; give the folder that a "
            "`train` command or `save_pretrained` wrote, hugging-face:DIR, keras-hub:DIR, "
            "model-garden:DIR, hub:OWNER/NAME or a .keras file"
        ) from error
    with paths.refuse_damage(path / MODEL, "restore it, or train or save the model again"):
        usage = {name: value for name, value in record["usage"].items() if name in USAGE}
        usage |= {name: tuple(usage.get(name, ())) for name in ("languages", "unread")}
        weights = find_checkpoint(path, checkpoint, record.get("save_every_steps"))
        layers = {"network": record["network"], **record.get("heads", {})}
        folder, ids = record["vocabulary"], record.get("ids")
    vocabulary = Vocabulary.load(path / folder) if folder else None
    with _refuse_network(str(path / MODEL)):
        made = {n: keras.saving.deserialize_keras_object(one) for n, one in layers.items()}
        network = made["network"]
        if not network.built:
            network.build()
    manifest = load_network(weights, network, vocabulary.hash if vocabulary else "")
    for name, head in made.items():
        if name != "network":
            with paths.local_copy(path / f"{name}.weights.h5") as copy:
                keras.saving.load_weights(head, copy)
    results = {name: manifest[name] for name in ("step", "metrics") if name in manifest}
    return Pretrained(
        **made,
        vocabulary=vocabulary,
        ids=None if ids is None else np.array(ids),
        name=place.rpartition("/")[2] if place.startswith(f"{HUB}:") else path.name,
        checkpoint=weights.name,
        recipe=_optional(path / RECIPE),
        results={**results, "scores": record.get("results", {}).get("scores") or _scores(path)},
        **usage,
    )


def _optional(path: epath.Path) -> dict[str, Any]:
    """The object in a JSON file; {} where there is no such file or another content."""
    try:
        value = json.loads(path.read_bytes())
    except (*paths.FILE_ERRORS, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _scores(run: epath.Path) -> dict[str, dict[str, float]]:
    """Metrics of the evaluations in RUN/scores, by the file's name."""
    files = sorted((run / "scores").glob("*.json")) if (run / "scores").exists() else ()
    found = {}
    for file in files:
        record = _optional(file)
        metrics = record.get("metrics", record)
        if isinstance(metrics, Mapping):
            found[file.stem] = {
                n: v for n, v in metrics.items() if isinstance(v, float) and n != "seconds"
            }
    return found


def _load_library(place: str, lower_case: bool | None, pooling: bool) -> Pretrained:
    library, _, directory = place.partition(":")
    if library == HUB:
        library, directory = _library(place), _downloaded(place)
    if paths.is_remote(directory):
        raise UserError(f"{place}: copy the folder from its bucket to the disk first")
    folder = pathlib.Path(directory).expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f"{place}: there is no folder {folder}; check the path")
    config = folder / "config.json"
    kind = read_json(config).get("model_type") if config.is_file() else None
    if library == KERAS_HUB:
        found = read_keras_hub(folder)
    elif library == MODEL_GARDEN:
        found = read_model_garden_bert(folder, _lower_case(folder, lower_case))
    elif (folder / "modules.json").is_file() and pooling:
        found = read_sentence_transformer(folder, lower_case)
    elif kind in LANGUAGE_FAMILIES:
        found = read_language_model(folder)
    elif kind == "xlnet":
        found = read_xlnet(folder)
    elif kind in FAMILIES:
        found = read_encoder_decoder(folder)
    else:
        found = read_encoder(folder, lower_case)
    name = place.rpartition("/")[2] if place.startswith(f"{HUB}:") else folder.name
    return dataclasses.replace(found, name=name, checkpoint=place)


def _lower_case(folder: pathlib.Path, given: bool | None) -> bool:
    """Whether Model Garden's BERT lower-cases: as given, or as the name of its folder says."""
    found = re.search("uncased|cased", folder.name)
    if given is None and not found:
        raise UserError(
            f"no file in {folder} says whether its text is lower-cased, nor does its name "
            "(uncased_..., cased_...): give lower_case=True or False, or --[no-]lower-case"
        )
    return given if given is not None else found[0] == "uncased"
