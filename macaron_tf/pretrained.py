"""`load`: a pre-trained network and its vocabulary, from wherever they are kept."""

import os
import pathlib

import keras

from macaron_tf.errors import UserError
from macaron_tf.interop import arrays
from macaron_tf.interop.encoder_decoders import MODEL_TYPES, read_encoder_decoder
from macaron_tf.interop.encoders import read_encoder, read_sentence_transformer
from macaron_tf.interop.keras_models import read_keras_hub_bert
from macaron_tf.interop.language_models import LANGUAGE_FAMILIES, read_language_model, read_xlnet
from macaron_tf.io import paths
from macaron_tf.models.pretrained import Pretrained

HUGGING_FACE, KERAS_HUB = "hugging-face", "keras-hub"


def load(
    place: str | os.PathLike, lower_case: bool | None = None, pooling: bool = True
) -> Pretrained:
    """Reads a pre-trained network with its weights, its vocabulary and how it is used.

    Args:
        place: `hugging-face:DIR` of `save_pretrained` or sentence-transformers; `keras-hub:DIR` of
            a BERT preset; or a network's `.keras` file, which holds no vocabulary.
        lower_case: whether text is lower-cased, for a Hugging Face directory of a WordPiece
            vocabulary that does not say so.
        pooling: read how a sentence-transformers model pools, and refuse an unknown way.

    Raises:
        UserError: nothing that can be read is there.

    Example:
        bert = macaron_tf.load("hugging-face:bert-base-uncased")
        classifier = bert.classifier(num_classes=2)
    """
    place = os.fspath(place)
    if is_library(place):
        folder = _library_folder(place)
        if place.startswith(KERAS_HUB):
            return read_keras_hub_bert(folder)
        return _load_hugging_face(folder, lower_case, pooling)
    if place.endswith(".keras"):
        return Pretrained(keras.saving.load_model(paths.as_path(place)))
    raise UserError(f"{place}: give hugging-face:DIR, keras-hub:DIR or a .keras file")


def is_library(place: str) -> bool:
    """Whether a place is another library's directory."""
    kind, _, directory = place.partition(":")
    return kind in (HUGGING_FACE, KERAS_HUB) and bool(directory)


def _library_folder(place: str) -> pathlib.Path:
    folder = place.partition(":")[2]
    if paths.is_remote(folder):
        raise UserError(f"{place}: copy the folder from its bucket to the disk first")
    folder = pathlib.Path(folder).expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f"{place}: there is no folder {folder}; check the path")
    return folder


def _load_hugging_face(folder: pathlib.Path, lower_case: bool | None, pooling: bool) -> Pretrained:
    config = folder / "config.json"
    kind = arrays.read_json(config).get("model_type") if config.is_file() else None
    if (folder / "modules.json").is_file() and pooling:
        return read_sentence_transformer(folder, lower_case)
    if kind in LANGUAGE_FAMILIES:
        return read_language_model(folder)
    if kind == "xlnet":
        return read_xlnet(folder)
    if kind in MODEL_TYPES:
        return read_encoder_decoder(folder)
    return read_encoder(folder, lower_case)
