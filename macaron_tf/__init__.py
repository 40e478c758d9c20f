"""Macaron Net, SwishRNN and the systems around them, on TensorFlow and Keras 3.

    import macaron_tf

    bert = macaron_tf.load("hugging-face:bert-base-uncased")
    translator = macaron_tf.build("macaron_base", vocab_size=32_000)

The names below are imported when they are first used, so that `import macaron_tf.text` and the like
take no more time than they need. `macaron_tf.layers` and `macaron_tf.models` register their
classes for Keras's saved models.
"""

import importlib

__version__ = "0.1.0"
__all__ = ["build", "layers", "load", "models"]


def __getattr__(name: str):
    if name == "load":
        return importlib.import_module("macaron_tf.pretrained").load
    if name == "build":
        return importlib.import_module("macaron_tf.models.catalog").build
    if name in __all__:
        return importlib.import_module(f"macaron_tf.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
