"""Exports a model for Hugging Face's transformers or sentence-transformers.

    macaron hugging_face RUN DIR [--checkpoint average] [--license apache-2.0]

RUN is the folder of a training run, or another location that `macaron_tf.load` accepts. DIR must be
new, empty, or the result of an earlier export. The command writes config.json, model.safetensors,
the tokenizer files, a model card and manifest.json. If transformers has no equivalent model, the
error names the setting that transformers does not support.
"""

import argparse

from export.saved_model import load_model
from macaron_tf.cli.arguments import CHECKPOINT, MODEL, argument, path_argument, single_program

LICENSE = argument(
    "--license ID", "license for the model card, such as mit (default: that of the model's files)"
)


def run(options: argparse.Namespace) -> None:
    """Runs the command `macaron hugging_face`: writes a folder that transformers can load."""
    load_model(options).save_pretrained(options.out, "hugging-face", options.license)
    print(f"exported {options.out}; in Python: macaron_tf.load('hugging-face:{options.out}')")


main = single_program(
    "macaron hugging_face",
    __doc__,
    "export.hugging_face:run",
    MODEL,
    path_argument("out", "output folder: new, empty, or the result of an earlier export"),
    CHECKPOINT,
    LICENSE,
)
