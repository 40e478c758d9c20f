"""`load`: a pre-trained network and its vocabulary, from wherever they are kept."""

import dataclasses
import json
import os
import pathlib

import keras
from etils import epath

from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import read_json
from macaron_tf.interop.encoder_decoders import FAMILIES, read_encoder_decoder
from macaron_tf.interop.encoders import read_encoder, read_sentence_transformer
from macaron_tf.interop.keras_models import read_keras_hub_bert
from macaron_tf.interop.language_models import LANGUAGE_FAMILIES, read_language_model, read_xlnet
from macaron_tf.io import paths
from macaron_tf.models.pretrained import Pretrained
from macaron_tf.text.base import Vocabulary
from macaron_tf.training.checkpoints import find_checkpoint
from macaron_tf.training.state import load_network

HUGGING_FACE, KERAS_HUB = "hugging-face", "keras-hub"


def load(
    place: str | os.PathLike, lower_case: bool | None = None, pooling: bool = True
) -> Pretrained:
    """Reads a pre-trained network with its weights, its vocabulary and how it is used.

    Args:
        place: the folder of a run, with `@CHECKPOINT` where the checkpoint is not to be the default
            one (see `find_checkpoint`); `hugging-face:DIR` of `save_pretrained` or
            sentence-transformers; `keras-hub:DIR` of a BERT preset; or a network's `.keras` file,
            which holds no vocabulary.
        lower_case: whether text is lower-cased, for a Hugging Face directory of a WordPiece
            vocabulary that does not say so.
        pooling: read how a sentence-transformers model pools, and refuse an unknown way.

    Raises:
        UserError: nothing is there, or it cannot be read.

    Example:
        bert = macaron_tf.load("hugging-face:bert-base-uncased")
        classifier = bert.classifier(num_classes=2)
    """
    place = os.fspath(place)
    if is_library(place):
        return _load_library(place, lower_case, pooling)
    if place.endswith(".keras"):
        path = paths.as_path(place)
        return Pretrained(keras.saving.load_model(path), name=path.stem, checkpoint=place)
    return _load_run(place)


def is_library(place: str) -> bool:
    """Whether a place is another library's directory."""
    kind, _, directory = place.partition(":")
    return kind in (HUGGING_FACE, KERAS_HUB) and bool(directory)


def run_place(place: str) -> tuple[epath.Path, str | None]:
    """The folder and the checkpoint of RUN or RUN@CHECKPOINT."""
    path = paths.as_path(place)
    if not path.exists() and "@" in place:
        folder, _, checkpoint = place.rpartition("@")
        return paths.as_path(folder), checkpoint
    return path, None


def _load_run(place: str) -> Pretrained:
    path, checkpoint = run_place(place)
    try:
        record = json.loads((path / "model.json").read_bytes())
    except (*paths.FILE_ERRORS, ValueError) as error:
        raise UserError(
            f"{place} is no run: it has no model.json that can be read; give the folder that a "
            "`train` command wrote, hugging-face:DIR, keras-hub:DIR or a .keras file"
        ) from error
    weights = find_checkpoint(path, checkpoint, record["save_every_steps"])
    vocabulary = None
    if record["vocabulary"]:
        vocabulary = Vocabulary.load(path / record["vocabulary"])
    network = keras.saving.deserialize_keras_object(record["network"])
    if not network.built:
        network.build()
    load_network(weights, network, vocabulary.hash if vocabulary else "")
    usage = {**record["usage"], "languages": tuple(record["usage"].get("languages", ()))}
    return Pretrained(
        network, vocabulary=vocabulary, name=path.name, checkpoint=weights.name, **usage
    )


def _load_library(place: str, lower_case: bool | None, pooling: bool) -> Pretrained:
    library, _, directory = place.partition(":")
    if paths.is_remote(directory):
        raise UserError(f"{place}: copy the folder from its bucket to the disk first")
    folder = pathlib.Path(directory).expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f"{place}: there is no folder {folder}; check the path")
    config = folder / "config.json"
    kind = read_json(config).get("model_type") if config.is_file() else None
    if library == KERAS_HUB:
        found = read_keras_hub_bert(folder)
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
    return dataclasses.replace(found, name=folder.name, checkpoint=place)
