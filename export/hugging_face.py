"""A model as a folder that Hugging Face's transformers or sentence-transformers opens.

    python -m export.hugging_face RUN DIR [--checkpoint average]

RUN is a run or another place of `macaron_tf.load`. DIR is new, empty, or of an earlier export: it
gets config.json, model.safetensors, the tokenizer's files and a model card. A model that has no
counterpart there is refused, with the setting that has no place.
"""

import argparse

from export.saved_model import loaded
from macaron_tf.cli.arguments import checkpoint, place, single_program


def run(options: argparse.Namespace) -> None:
    """Writes the folder; see the module's text."""
    loaded(options).save_pretrained(options.out, format="hugging-face")
    print(f"exported {options.out}; in Python: macaron_tf.load('hugging-face:{options.out}')")


main = single_program(
    "export.hugging_face",
    __doc__,
    "export.hugging_face:run",
    place("run", "folder of a trained run"),
    place("out", "folder to write"),
    checkpoint("average, best, last or a step's number"),
)

if __name__ == "__main__":
    raise SystemExit(main())
