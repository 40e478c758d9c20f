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
from macaron_tf.cli.arguments import argument, checkpoint, path_argument, single_program, switch


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
    path_argument(
        "run",
        "folder of a training run, or another location that `macaron_tf.load` accepts, such as "
        "hugging-face:DIR",
    ),
    argument("repository", "repository on the Hugging Face Hub, as OWNER/NAME"),
    checkpoint(
        "checkpoint to upload: average, best, last or the number of a training step (default: "
        "average if the run has averaged weights of its newest checkpoints; otherwise best, or "
        "last if the run was never validated)"
    ),
    LICENSE,
    argument(
        "--format",
        "file format of the uploaded model. weights.h5: macaron_tf's format with weights in HDF5; "
        "safetensors: macaron_tf's format with weights in safetensors; hugging-face: the format of "
        "transformers (default: %(default)s)",
        choices=("weights.h5", "safetensors", "hugging-face"),
        default="safetensors",
    ),
    switch(
        "--private",
        "make the repository private if the command creates the repository (default: the owner's "
        "default visibility)",
    ),
)
