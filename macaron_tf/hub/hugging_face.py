"""Export in Hugging Face's format, for `save_pretrained(DIR, format="hugging-face")`."""

import dataclasses
import sys
from collections.abc import Callable, Sequence

import numpy as np
from etils import epath

from macaron_tf.errors import UserError, needed
from macaron_tf.hub.config import json_bytes
from macaron_tf.hub.families import FAMILIES
from macaron_tf.hub.families.macaron import MACARON_LANGUAGE
from macaron_tf.hub.family import Family
from macaron_tf.hub.writing import HuggingFaceFolder
from macaron_tf.models.base import Model
from macaron_tf.models.model_card import CardFacts, python_block
from macaron_tf.tasks.model_parts import ModelParts
from macaron_tf.training import checkpoints
from macaron_tf.training.state import require_disk_space

_INSTEAD = "save the model in macaron_tf's own format, or export a SavedModel by `macaron export`"
_GENERATE = """inputs = tokenizer("A text", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))"""
_GENERATORS = ("text-generation", "translation", "text2text-generation")
_COMMANDS = """`macaron_tf.load("hugging-face:DIR")` loads the folder in macaron_tf, whose
command `macaron train RECIPE RUN --init hugging-face:DIR` starts from these weights.
"""


def hugging_face_folder(model: ModelParts) -> HuggingFaceFolder:
    """Converts a model to the files of a Hugging Face model.

    The model is written as the first family that can express it. Families whose released models
    have the same kind of vocabulary come first.
    """
    model.require_floats()
    families = [*FAMILIES.values(), MACARON_LANGUAGE]
    families = [family for family in families if family.is_tried(model)]
    if not families:
        kind = type(model.network).__name__
        if isinstance(model.network, Model):  # other Keras networks have no configuration
            kind += f" with {type(model.config).__name__}"
        raise UserError(f"{kind} has no counterpart in Hugging Face's transformers: {_INSTEAD}")
    kind = type(model.vocabulary)
    families.sort(key=lambda family: kind != family.vocabulary_class)  # the sort is stable
    family = _find_family(families, model)
    folder = family.write(model)
    notes = [*folder.notes]
    if model.vocabulary is None:
        notes.append("the tokenizer is missing, because the model has no vocabulary")
    files = {**folder.files, **family.code()}
    return dataclasses.replace(folder, files=files, notes=tuple(notes))


def _find_family(families: Sequence[Family], model: ModelParts) -> Family:
    """Returns the first family that can express a whole model."""
    lacking = []  # number of settings that a family lacks, one of them or a part, and its name
    for family in families:
        settings = family.unsupported_settings(model.config)
        reasons = [f"{n}={v!r}" for n, v in settings.items()] or [family.missing_part(model)]
        if reasons == [""]:
            return family
        lacking.append((len(settings), reasons[0], family.name))
    _, reason, name = min(lacking, key=lambda item: item[0])
    raise UserError(
        f"{reason} has no counterpart in Hugging Face's {name}, the nearest family: {_INSTEAD}"
    )


def writer(model: ModelParts, facts: CardFacts, location: str) -> Callable[[epath.Path], None]:
    """Returns a function that writes a model in Hugging Face's format into an empty folder.

    The returned function also prints a note on stderr for each part of the model that the export
    leaves out or adds.

    Args:
        location: folder or Hub repository that the example code in the model card loads.
    """
    with needed("writing model.safetensors"):
        import safetensors.numpy
    folder = hugging_face_folder(model)
    state = {name: np.ascontiguousarray(array) for name, array in folder.state.items()}
    files = {"config.json": json_bytes(folder.config), **folder.files}
    files[checkpoints.CARD] = _card(facts, folder, location).encode()

    def write(directory: epath.Path) -> None:
        require_disk_space(directory, (), state.values())
        safetensors.numpy.save_file(state, directory / "model.safetensors", {"format": "pt"})
        for name, contents in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(contents)
        for note in folder.notes:
            print(f"note: {note}", file=sys.stderr)

    return write


def _card(facts: CardFacts, folder: HuggingFaceFolder, location: str) -> str:
    """Returns the README.md of a folder that transformers or sentence-transformers opens."""
    class_name = folder.auto_class or folder.config["architectures"][0]
    package = folder.library.replace("-", "_")
    arguments = f'"{location}"{", trust_remote_code=True" if folder.auto_class else ""}'
    if package == "sentence_transformers":
        lines = [f"model = {package}.SentenceTransformer({arguments})"]
        lines += ['vectors = model.encode(["A text."])']
    else:
        lines = [f"model = {package}.{class_name}.from_pretrained({arguments})"]
        if "tokenizer_config.json" in folder.files:
            lines.append(f'tokenizer = {package}.AutoTokenizer.from_pretrained("{location}")')
            lines += [_GENERATE] if folder.pipeline in _GENERATORS else []
    remarks = "\n".join(f"- {note}" for note in folder.notes)
    return facts.card(
        folder.library,
        folder.pipeline,
        f"A `{class_name}` trained with macaron_tf.\n",
        f"## Use\n\n{python_block(f'import {package}', *lines)}",
        _COMMANDS,
        f"## Notes\n\n{remarks}\n" if remarks else "",
    )
