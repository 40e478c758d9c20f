"""Uploads a model with its model card to Hugging Face's hub.

    python -m export.hub RUN OWNER/NAME [--checkpoint average] [--license apache-2.0]
    python -m export.hub RUN OWNER/NAME --format hugging-face

RUN is a run or another place that `macaron_tf.load` opens. The upload is one commit of the
repository, which is created if it is missing. Log in by `hf auth login` before, or set HF_TOKEN.
`macaron_tf.load("hub:OWNER/NAME")` opens the model; with `--format hugging-face`,
transformers opens it too.
"""

import argparse

from export.hugging_face import LICENSE
from export.saved_model import loaded
from macaron_tf.cli.arguments import argument, checkpoint, place, single_program, switch


def run(options: argparse.Namespace) -> None:
    """Uploads the model; see the module's docstring."""
    # Imported here so that `--help` works without TensorFlow.
    from macaron_tf.io.hub import check_login

    name = check_login(options.repository)  # before the model is read, which takes longer
    private = options.private or None
    address = loaded(options).push_to_hub(name, options.format, options.license, private)
    print(f"pushed to {address}; in Python: macaron_tf.load('hub:{name}')")


main = single_program(
    "export.hub",
    __doc__,
    "export.hub:run",
    place("run", "folder of a trained run"),
    argument("repository", "OWNER/NAME on the hub"),
    checkpoint("average, best, last or a step's number"),
    LICENSE,
    argument(
        "--format",
        "format of the files: this library's with weights as HDF5 or safetensors, or transformers'",
        choices=("weights.h5", "safetensors", "hugging-face"),
        default="safetensors",
    ),
    switch("--private", "make the repository private if it is new"),
)

if __name__ == "__main__":
    raise SystemExit(main())
