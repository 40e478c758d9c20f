"""Models in Hugging Face's format: the reader and the writer of folders."""

import dataclasses
import math
import pathlib
import sys
from collections.abc import Callable

import numpy as np
from etils import epath

from macaron_tf.errors import UserError, needed
from macaron_tf.hub.config import ForeignConfig, json_bytes
from macaron_tf.hub.families import FAMILIES
from macaron_tf.hub.families.macaron import MACARON_LANGUAGE, code
from macaron_tf.hub.family import LANGUAGE_CLASSES, HuggingFaceFolder, ModelFolder
from macaron_tf.hub.sentence_transformers import read_modules, with_pooling
from macaron_tf.hub.tokenizers.reading import refuse_lower_case
from macaron_tf.io.paths import read_json
from macaron_tf.models.base import Network
from macaron_tf.models.model_card import python_block, readme
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.tasks import LabelledSettings
from macaron_tf.text import WordPieceVocabulary
from macaron_tf.training import checkpoints
from macaron_tf.training.state import require_disk_space

_INSTEAD = "save the model in macaron_tf's own format, or export a SavedModel by `macaron export`"
_COMMANDS = """`macaron_tf.load("hugging-face:DIR")` loads the folder in macaron_tf, whose
command `macaron train RECIPE RUN --init hugging-face:DIR` starts from these weights.
"""


def read_hugging_face(
    directory: str | pathlib.Path,
    lower_case: bool | None = None,
) -> ModelParts:
    """Reads the folder of a model of transformers or sentence-transformers, with its heads.

    A model for sequence or token classification, multiple choice or question answering becomes the
    macaron_tf model for the same task. A head without a counterpart is left out (see
    `Card.missing_head`).

    Args:
        directory: folder with `config.json`, with `model.safetensors` or `pytorch_model.bin`, and
            with the tokenizer's files.
        lower_case: whether to lower-case text. The argument is required for a WordPiece tokenizer
            whose files lack this setting, and must be `None` otherwise.
    """
    directory = folder = pathlib.Path(directory)
    modules = None
    if (directory / "modules.json").is_file():
        # Early versions saved the encoder in the subfolder 0_Transformer.
        modules = read_modules(directory)
        folder = directory / next(iter(modules.values()))
    config = ForeignConfig(read_json(folder / "config.json"), str(folder / "config.json"))
    family = config.choice("model_type", FAMILIES)
    config.require({"quantization_config": None})
    model = family.read(ModelFolder(folder, config, lower_case))
    config.refuse_unknown()
    if not isinstance(model.vocabulary, WordPieceVocabulary):
        refuse_lower_case(lower_case, directory)
    if modules:
        return with_pooling(model, directory, modules)
    name = config.architecture
    # A model class with a head for tokens may have further weights, such as a value head.
    is_labelled = isinstance(model.settings, LabelledSettings)
    if model.card.unread and not is_labelled and not name.endswith(LANGUAGE_CLASSES):
        missing = f"the head of {name or 'the model'} ({model.card.unread[0]})"
        return model.with_card(missing_head=missing)
    return model


def writer(model: ModelParts, location: str) -> Callable[[epath.Path], None]:
    """Returns a function that writes a model in Hugging Face's format into an empty folder.

    The model is written as the first family that can express it. Families whose released models
    have the same kind of vocabulary come first. The returned function also prints a note on stderr
    for each part of the model that the export leaves out or adds.

    Args:
        location: folder or Hub repository that the example code in the model card loads.
    """
    with needed("writing model.safetensors"):
        import safetensors.numpy
    model.require_floats()
    network, vocabulary = type(model.network).__name__, type(model.vocabulary)
    if isinstance(model.network, Network):  # other Keras networks have no configuration
        network += f" with {type(model.config).__name__}"
    families = [f for f in (*FAMILIES.values(), MACARON_LANGUAGE) if f.is_tried(model)]
    families.sort(key=lambda family: vocabulary != family.vocabulary_class)  # the sort is stable
    # Number of settings that a family lacks, one of them or a part, and the family's name.
    lacking = [(math.inf, network, "transformers")]
    for family in families:
        settings = family.unsupported_settings(model.network)
        reasons = [f"{n}={v!r}" for n, v in settings.items()] or [family.missing_part(model)]
        if reasons == [""]:
            break
        lacking.append((len(settings), reasons[0], family.name))
    else:
        _, reason, name = min(lacking, key=lambda item: item[0])
        raise UserError(f"{reason} has no counterpart in Hugging Face's {name}: {_INSTEAD}")
    folder = family.write(model)
    if model.vocabulary is None:
        note = "the tokenizer is missing, because the model has no vocabulary"
        folder = dataclasses.replace(folder, notes=(*folder.notes, note))
    state = {name: np.ascontiguousarray(array) for name, array in folder.state.items()}
    files = {"config.json": json_bytes(folder.config), **folder.files}
    files |= code() if "auto_map" in folder.config else {}
    files[checkpoints.CARD] = _card(model, folder, location).encode()

    def write(directory: epath.Path) -> None:
        require_disk_space(directory, (), state.values())
        safetensors.numpy.save_file(state, directory / "model.safetensors", {"format": "pt"})
        for name, contents in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(contents)
        for note in folder.notes:
            print(f"note: {note}", file=sys.stderr)

    return write


def _card(model: ModelParts, folder: HuggingFaceFolder, location: str) -> str:
    """Returns the README.md of a folder that transformers or sentence-transformers opens."""
    class_name, package = folder.config["architectures"][0], folder.library.replace("-", "_")
    arguments = f'"{location}"'
    for auto_class, reference in folder.config.get("auto_map", {}).items():
        if reference.endswith(f".{class_name}"):  # the auto class loads the folder's Python code
            class_name, arguments = auto_class, f"{arguments}, trust_remote_code=True"
    if package == "sentence_transformers":
        lines = [f"model = {package}.SentenceTransformer({arguments})"]
        lines += ['vectors = model.encode(["A text."])']
    else:
        lines = [f"model = {package}.{class_name}.from_pretrained({arguments})"]
        if "tokenizer_config.json" in folder.files:
            lines.append(f'tokenizer = {package}.AutoTokenizer.from_pretrained("{location}")')
    return readme(
        model.card,
        folder.library,
        folder.pipeline,
        f"A `{class_name}` trained with macaron_tf.\n",
        f"## Use\n\n{python_block(f'import {package}', *lines)}",
        _COMMANDS,
    )
