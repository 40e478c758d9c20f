"""Export in Hugging Face's format, for `save_pretrained(DIR, format="hugging-face")`."""

import sys
from collections.abc import Callable

import numpy as np
from etils import epath

from macaron_tf.errors import UserError, needed
from macaron_tf.hub.config import json_bytes
from macaron_tf.hub.families.xlnet import XLNET, two_stream_folder
from macaron_tf.hub.write_encoder_decoders import sequence_folder
from macaron_tf.hub.write_encoders import ENCODERS, encoder_folder
from macaron_tf.hub.write_language_models import LANGUAGE_MODELS, language_folder
from macaron_tf.hub.writing import HuggingFaceFolder
from macaron_tf.models.base import Model
from macaron_tf.models.config import EncoderConfig, EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.models.model_card import CardFacts, python_block
from macaron_tf.models.segment_memory import TwoStreamModel
from macaron_tf.pretrained import Pretrained
from macaron_tf.training import checkpoints
from macaron_tf.training.state import require_disk_space

# Network classes, their configuration class, and the function that builds their folder.
_FOLDERS = (
    (ENCODERS, EncoderConfig, encoder_folder),
    (LANGUAGE_MODELS, EncoderConfig, language_folder),
    (TwoStreamModel, EncoderConfig, two_stream_folder),
    (EncoderDecoder, EncoderDecoderConfig, sequence_folder),
)

_GENERATE = """inputs = tokenizer("A text", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))"""
_GENERATORS = ("text-generation", "translation", "text2text-generation")
_COMMANDS = """`macaron_tf.load("hugging-face:DIR")` loads the folder in macaron_tf, whose
command `macaron train RECIPE RUN --init hugging-face:DIR` starts from these weights.
"""


def hugging_face_folder(model: Pretrained) -> HuggingFaceFolder:
    """Converts a model to the files of a Hugging Face model.

    Raises:
        UserError: the weights are quantized, or transformers has no counterpart for the vocabulary
            or for a part or setting of the model.
    """
    model.require_floats()
    if (
        type(model.network) in XLNET.tasks
        and model.config.positions == XLNET.fixed_settings["positions"]
    ):
        return two_stream_folder(model)
    for network_classes, config_class, make_folder in _FOLDERS:
        if isinstance(model.network, network_classes) and isinstance(model.config, config_class):
            return make_folder(model)
    description = type(model.network).__name__
    if isinstance(model.network, Model):  # other Keras networks have no configuration
        description += f" with {type(model.config).__name__}"
    raise UserError(
        f"{description} has no counterpart in Hugging Face's transformers: save the model in "
        "macaron_tf's own format, or export a SavedModel by `macaron export`"
    )


def writer(model: Pretrained, location: str) -> Callable[[epath.Path], None]:
    """Returns a function that writes a model in Hugging Face's format into an empty folder.

    The returned function also prints a note on stderr for each part of the model that the export
    leaves out or adds.

    Args:
        model: model to write.
        location: folder or Hub repository that the example code in the model card loads.

    Raises:
        UserError: safetensors is not installed, or the model cannot be converted (see
            `hugging_face_folder`).
    """
    with needed("writing model.safetensors"):
        import safetensors.numpy
    folder = hugging_face_folder(model)
    state = {name: np.ascontiguousarray(array) for name, array in folder.state.items()}
    files = {"config.json": json_bytes(folder.config), **folder.tokenizer, **folder.files}
    files[checkpoints.CARD] = _card(model.card_facts, folder, location).encode()

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
        lines.append('vectors = model.encode(["A text."])')
    else:
        lines = [f"model = {package}.{class_name}.from_pretrained({arguments})"]
        if folder.tokenizer:
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
