"""Exports a model as a SavedModel that includes the vocabulary and maps texts to answers.

    macaron export RUN OUT [--checkpoint average] [--n-best 4]

RUN is a run folder of `macaron translate`, `finetune`, `embed`, `elmo`, `text_to_text` or
`pretrain`, or another location that `macaron_tf.load` accepts, such as `hugging-face:DIR`. The
classes in `macaron_tf.tasks` document the inputs and outputs. The command writes the folder
OUT/VERSION, as TensorFlow Serving expects. A server needs tensorflow and tensorflow_text, but not
macaron_tf.
"""

import argparse
import dataclasses
import json

from macaron_tf.cli.arguments import (
    argument,
    checkpoint,
    count,
    path_argument,
    single_program,
    switch,
)
from macaron_tf.errors import UserError
from macaron_tf.io.serving import MAX_VERSION

COMPILE = switch(
    "--compile",
    "compile the beam search of a translation model with XLA for requests with a single sentence, "
    "which can then take half the time. The server takes a few seconds longer to start. "
    "TensorFlow Serving must be started with the flag --xla_cpu_compilation_enabled=true "
    "(default: not compiled)",
)
BFLOAT16 = switch(
    "--bfloat16",
    "store weight matrices and compute matrix products in bfloat16. bfloat16 is faster only if the "
    "CPU of the server has bfloat16 instructions (default: the dtype of the model)",
)
LITE = argument(
    "--lite",
    "also write a LiteRT file with weights of this type. `macaron serve` uses the "
    "LiteRT file for small requests. With int8, the LiteRT file can take half the time of the "
    "SavedModel, and probabilities change by about 1e-3 (default: no LiteRT file)",
    choices=("fp32", "int8"),
)
ONNX = switch(
    "--onnx",
    "also write an ONNX file of the network, which reads token ids instead of text (default: no "
    "ONNX file)",
)
OPENVINO = switch(
    "--openvino",
    "also write an OpenVINO file of the network, which reads token ids instead of text. On CPUs "
    "with bfloat16 instructions, OpenVINO computes in bfloat16 unless INFERENCE_PRECISION_HINT is "
    "f32 (default: no OpenVINO file)",
)
CHECK = path_argument(
    "--check SOURCE",
    "print the scores of the model and of each exported file on labelled examples. SOURCE is a "
    "source that `finetune evaluate --source` accepts, such as tsv:dev.tsv (default: no scores)",
)


def run(options: argparse.Namespace) -> None:
    """Runs the command `macaron export`: exports a model as a SavedModel."""
    # Imported here so that `--help` works without TensorFlow.
    from macaron_tf.engines.certificate import certificate_text

    location, model = options.run, load_model(options)
    if options.pooling:
        model = dataclasses.replace(model, pooling=options.pooling)
    search = search_options(options, location, model)
    formats = [name for name in ("onnx", "openvino") if vars(options)[name]]
    path = model.export(
        options.out,
        options.version,
        options.bfloat16,
        options.lite,
        formats,
        options.check,
        **search,
    )
    record = json.loads((path / "assets.extra" / "export.json").read_text())
    print(certificate_text(record), end="")
    print(f"exported {path}; serve it with: macaron serve {options.out}")


def load_model(options: argparse.Namespace):
    """Loads the model at the location `options.run`, as a `macaron_tf.Pretrained`.

    Args:
        options: options of an export command. `options.checkpoint` names a checkpoint of the run,
            and `None` means the default checkpoint.

    Raises:
        UserError: `options.checkpoint` is set, but `options.run` is not a training run, or the
            model cannot be loaded.
    """
    # Imported here so that `--help` works without TensorFlow.
    from macaron_tf.loading import load, locate

    location = options.run
    if options.checkpoint and locate(location).without_recipe:
        raise UserError(
            f"{location} is not a training run, so it has no checkpoints to choose from: leave "
            "--checkpoint out"
        )
    location = f"{location}@{options.checkpoint}" if options.checkpoint else location
    return load(location, trust_code=options.trust_code)


def search_options(options: argparse.Namespace, location: str, model) -> dict[str, object]:
    """Returns a dict of the beam search options that the user has set.

    The keys are the names of the options in `Pretrained.export`. Options at their default are left
    out.

    Args:
        options: options of an export command.
        location: location of the model, for the error message.
        model: the loaded model.

    Raises:
        UserError: a search option is set, but the model is not a translator.
    """
    from macaron_tf.tasks import Translation

    names = [name for name in ("n_best", "beam_size", "compile") if vars(options).get(name)]
    if names and not isinstance(model.task, Translation):
        flag = names[0].replace("_", "-")
        raise UserError(
            f"{location} is not a translator, so --{flag} has no effect: leave --{flag} out"
        )
    return {"compiled" if name == "compile" else name: vars(options)[name] for name in names}


main = single_program(
    "macaron export",
    __doc__,
    "export.saved_model:run",
    path_argument(
        "run",
        "folder of a training run, or another location that `macaron_tf.load` accepts, such as "
        "hugging-face:DIR",
    ),
    path_argument("out", "output folder; the exported model is written to OUT/VERSION"),
    checkpoint(
        "checkpoint to export: average, best, last or the number of a training step (default: "
        "average if the run has averaged weights of its newest checkpoints; otherwise best, or "
        "last if the run was never validated)"
    ),
    count(
        "--version N",
        "version number of the exported model (default: one more than the newest version in OUT, "
        "or 1 if OUT contains no version)",
        below=MAX_VERSION + 1,
    ),
    count(
        "--n-best N",
        "number of translations to return for each line; for translation models only (default: the "
        "setting decoding.n_best of the model, which is 1 unless its recipe sets another number)",
    ),
    count(
        "--beam-size K",
        "width of the beam search; for translation models only (default: the beam size of the "
        "model)",
    ),
    argument(
        "--pooling",
        "export a pre-trained encoder as a sentence encoder, with a method that pools the token "
        "vectors of a sentence into one vector. mean: their mean; max: their maximum; cls: the "
        "vector of the first token (default: export the model with its own task)",
        choices=("mean", "max", "cls"),
    ),
    COMPILE,
    BFLOAT16,
    LITE,
    ONNX,
    OPENVINO,
    CHECK,
)
