"""Uploads a model and its model card to the Hugging Face Hub.

    macaron hub RUN OWNER/NAME [--checkpoint average] [--license apache-2.0]
    macaron hub RUN OWNER/NAME --format hugging-face

RUN is the folder of a training run, or another location that `macaron_tf.load` accepts. The upload
is one commit. If the repository does not exist, the command creates it. If it exists, the upload
replaces its model card and the files of earlier uploads. Before the first upload, log in with `hf
auth login` or set HF_TOKEN. `macaron_tf.load("hub:OWNER/NAME")` loads an uploaded model.
Transformers can also load models uploaded with `--format hugging-face`.
"""

import argparse

from export.hugging_face import LICENSE
from export.saved_model import load_model
from macaron_tf.cli.arguments import CHECKPOINT, MODEL, argument, single_program, switch


def run(options: argparse.Namespace) -> None:
    """Runs the command `macaron hub`: uploads a model."""
    # Imported here so that `--help` works without TensorFlow.
    from macaron_tf.io.hub import check_login

    name = check_login(options.repository)  # before loading the model, which takes longer
    private = options.private or None
    address = load_model(options).push_to_hub(name, options.format, options.license, private)
    print(f"pushed to {address}; in Python: macaron_tf.load('hub:{name}')")


main = single_program(
    "macaron hub",
    __doc__,
    "export.hub:run",
    MODEL,
    argument("repository", "repository on the Hugging Face Hub, as OWNER/NAME"),
    CHECKPOINT,
    LICENSE,
    argument(
        "--format",
        "file format: macaron_tf's, or that of transformers (default: safetensors)",
        choices=("weights.h5", "safetensors", "hugging-face"),
        default="safetensors",
    ),
    switch("--private", "make a new repository private (default: the owner's setting)"),
)
