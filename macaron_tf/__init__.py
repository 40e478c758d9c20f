"""Macaron Net, SwishRNN and related models for TensorFlow and Keras 3.

    import macaron_tf

    translator = macaron_tf.load("runs/m30k")
    translator.predict(["A man is riding a bike."])
    encoder = macaron_tf.build("swish_rnn_base")

Importing this package registers its layers and models with Keras, so that
`keras.saving.load_model` finds the classes. A command imports TensorFlow only if the command needs
TensorFlow. `--help`, for example, runs without TensorFlow.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 11):  # noqa: UP036  a checkout can be run outside its environment
    print("error: macaron_tf needs Python 3.11 or later: use a newer Python", file=sys.stderr)
    sys.exit(2)

if TYPE_CHECKING:
    from macaron_tf import layers, models, tasks
    from macaron_tf.model import load
    from macaron_tf.models.catalog import build

__version__ = "0.1.0"
__all__ = ["build", "layers", "load", "models", "tasks"]


def __getattr__(name: str):
    if name == "load":
        return importlib.import_module("macaron_tf.model").load
    if name == "build":
        return importlib.import_module("macaron_tf.models.catalog").build
    if name in ("layers", "models", "tasks"):
        return importlib.import_module(f"macaron_tf.{name}")
    errors = importlib.import_module("macaron_tf.errors")
    message = f"module {__name__!r} has no attribute {name!r}{errors.nearest(name, __all__)}"
    # `from macaron_tf import NAME` would hide the message of an AttributeError.
    raise (ImportError if name in errors.ALIASES else AttributeError)(message)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


# Whether this process runs, or is about to run, a command of this project. While Python looks up
# the module of `python -m MODULE`, sys.argv[0] is "-m".
_is_command = (
    (sys.argv[0] == "-m" and "macaron_tf" in sys.orig_argv)
    or os.path.basename(sys.argv[0]) == "macaron"
    or not {"experiments", "export"}.isdisjoint(sys.modules)
)
if "keras" in sys.modules or not _is_command:
    importlib.import_module("macaron_tf.models")
