"""Writes a model as a folder for Hugging Face's transformers or sentence-transformers.

    python -m export.hugging_face RUN DIR [--checkpoint average] [--license apache-2.0]

RUN is a run or another place that `macaron_tf.load` opens. DIR is new, empty, or the folder of an
earlier export. The command writes config.json, model.safetensors, the tokenizer's files and a model
card. If transformers has no equivalent of the model, the error names the setting that is missing
there.
"""

import argparse

from export.saved_model import loaded
from macaron_tf.cli.arguments import argument, checkpoint, place, single_program

LICENSE = argument(
    "--license ID", "license of the weights in the hub's spelling, such as apache-2.0 or mit"
)


def run(options: argparse.Namespace) -> None:
    """Writes the folder; see the module's docstring."""
    loaded(options).save_pretrained(options.out, "hugging-face", options.license)
    print(f"exported {options.out}; in Python: macaron_tf.load('hugging-face:{options.out}')")


main = single_program(
    "export.hugging_face",
    __doc__,
    "export.hugging_face:run",
    place("run", "folder of a trained run"),
    place("out", "folder to write"),
    checkpoint("average, best, last or a step's number"),
    LICENSE,
)

if __name__ == "__main__":
    raise SystemExit(main())
