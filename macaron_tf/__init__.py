"""Macaron Net, SwishRNN and the systems around them, on TensorFlow and Keras 3.

    import macaron_tf

    bert = macaron_tf.load("hugging-face:bert-base-uncased")
    translator = macaron_tf.build("macaron_base", vocab_size=32_000)

The import registers all layers and models with Keras, whose saved models can then be loaded. Only
within this project's commands does it wait until one of the names below is used, so that `--help`
and clients of a server answer without TensorFlow.
"""

import importlib
import sys

__version__ = "0.1.0"
__all__ = ["build", "layers", "load", "models"]


def __getattr__(name: str):
    if name == "load":
        return importlib.import_module("macaron_tf.pretrained").load
    if name == "build":
        return importlib.import_module("macaron_tf.models.catalog").build
    if name in ("keras_hub", "layers", "models"):
        return importlib.import_module(f"macaron_tf.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "keras" in sys.modules or not {"experiments", "export"} & sys.modules.keys():
    importlib.import_module("macaron_tf.models")
