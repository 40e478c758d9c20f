"""Readers of Hugging Face models: folders, and encoder-decoders in memory."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from macaron_tf.hub.config import ForeignConfig
from macaron_tf.hub.encoder_decoders import SequenceFamily, import_model
from macaron_tf.hub.families import FAMILIES
from macaron_tf.hub.family import ModelFolder
from macaron_tf.hub.sentence_transformers import check_modules, read_modules, with_pooling
from macaron_tf.hub.tokenizers.reading import read_python_vocabulary
from macaron_tf.tasks.model_parts import ModelParts


def read_hugging_face(
    directory: str | pathlib.Path,
    lower_case: bool | None = None,
    pooling: bool = True,
    in_python: bool = False,
) -> ModelParts:
    """Reads the folder of a model of transformers or sentence-transformers, with its heads.

    A model for sequence or token classification, multiple choice or question answering becomes the
    macaron_tf model for the same task. A head without a counterpart is left out (see
    `ModelParts.missing_head`).

    Args:
        directory: folder with `config.json`, with `model.safetensors` or `pytorch_model.bin`, and
            with the tokenizer's files.
        lower_case: whether to lower-case text. The argument is required for a WordPiece tokenizer
            whose files lack this setting, and must be `None` otherwise.
        pooling: whether to read the pooling of a sentence-transformers folder. With `False`, only
            its encoder is read, without a task head.
        in_python: whether the vocabulary encodes `tokenizer.json` in Python.
    """
    directory = folder = pathlib.Path(directory)
    modules = None
    if (directory / "modules.json").is_file():
        # Early versions saved the encoder in the subfolder 0_Transformer.
        modules = read_modules(directory)
        folder = directory / modules[0]["path"]
        if pooling:
            check_modules(directory, modules)
    config = ForeignConfig.of_directory(folder, FAMILIES)
    vocabulary = read_python_vocabulary(folder) if in_python else None
    family = FAMILIES[config.get("model_type")]
    model = family.read(ModelFolder(folder, config, lower_case, not modules, vocabulary))
    config.refuse_unread(family.without_effect)
    return with_pooling(model, directory, modules) if modules and pooling else model


def import_encoder_decoder(
    state: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> ModelParts:
    """Converts a Hugging Face encoder-decoder in memory to a macaron_tf model.

    `config` is the result of `to_dict` of its transformers configuration.
    """
    fields = ForeignConfig(config, "the model's configuration")
    families = {n: family for n, family in FAMILIES.items() if isinstance(family, SequenceFamily)}
    model_type = fields.choice("model_type", {name: name for name in families})
    return import_model(state, families[model_type], fields)
