"""Exports a model as a SavedModel that includes the vocabulary and maps texts to answers.

    macaron export RUN OUT [--checkpoint average] [--n-best 4]

RUN is the folder of a training run, or another location that `macaron_tf.load` accepts, such as
`hugging-face:DIR`. The classes in `macaron_tf.tasks` document the inputs and outputs. The command
writes the folder OUT/VERSION, as TensorFlow Serving expects. A server needs tensorflow and
tensorflow_text, but not macaron_tf.
"""

import argparse
import dataclasses
import json

from macaron_tf.cli.arguments import (
    CHECKPOINT,
    MODEL,
    argument,
    count,
    path_argument,
    single_program,
    switch,
)
from macaron_tf.errors import UserError
from macaron_tf.io.serving import MAX_VERSION

COMPILE = switch(
    "--compile",
    "compile a translator's beam search for requests of one sentence with XLA, which can halve the "
    "time but makes the start slower; TensorFlow Serving then needs the flag "
    "--xla_cpu_compilation_enabled=true",
)
BFLOAT16 = switch(
    "--bfloat16",
    "store weight matrices and compute matrix products in bfloat16, which is faster only on a CPU "
    "with bfloat16 instructions (default: the dtype of the model)",
)


def run(options: argparse.Namespace) -> None:
    """Runs the command `macaron export`: exports a model as a SavedModel."""
    # Imported here so that `--help` works without TensorFlow.
    from macaron_tf.engines.certificate import certificate_text

    model = load_model(options)
    if options.pooling:
        model = dataclasses.replace(model, pooling=options.pooling)
    path = model.export(
        options.out,
        options.version,
        options.bfloat16,
        options.lite,
        [name for name in ("onnx", "openvino") if vars(options)[name]],
        options.check,
        **search_options(options, options.run, model),
    )
    record = json.loads((path / "assets.extra" / "export.json").read_text())
    print(certificate_text(record), end="")
    print(f"exported {path}; serve it with: macaron serve {options.out}")


def load_model(options: argparse.Namespace):
    """Loads the model at the location `options.run`, as a `macaron_tf.Pretrained`."""
    # Imported here so that `--help` works without TensorFlow.
    from macaron_tf.model import load
    from macaron_tf.training.locations import locate

    location = options.run
    if options.checkpoint:
        if locate(location).without_recipe:
            raise UserError(f"{location} is no training run: leave --checkpoint out")
        location = f"{location}@{options.checkpoint}"
    return load(location, trust_code=options.trust_code)


def search_options(options: argparse.Namespace, location: str, model) -> dict[str, object]:
    """Returns the beam search options that the user has set, as options of `Pretrained.export`."""
    from macaron_tf.tasks import Translation

    names = [name for name in ("n_best", "beam_size", "compile") if vars(options).get(name)]
    if names and not isinstance(model.task, Translation):
        flag = names[0].replace("_", "-")
        raise UserError(f"{location} is not a translator: leave --{flag} out")
    return {"compiled" if name == "compile" else name: vars(options)[name] for name in names}


main = single_program(
    "macaron export",
    __doc__,
    "export.saved_model:run",
    MODEL,
    path_argument("out", "output folder; the exported model is written to OUT/VERSION"),
    CHECKPOINT,
    count(
        "--version N",
        "version number of the exported model (default: one more than the newest version in OUT)",
        below=MAX_VERSION + 1,
    ),
    count(
        "--n-best N",
        "number of translations of each line, for translators only (default: the recipe's setting "
        "decoding.n_best)",
    ),
    count("--beam-size K", "width of a translator's beam search (default: the model's)"),
    argument(
        "--pooling",
        "export a pre-trained encoder as a sentence encoder, whose vector is the mean or maximum "
        "of the token vectors, or (cls) that of the first token",
        choices=("mean", "max", "cls"),
    ),
    COMPILE,
    BFLOAT16,
    argument(
        "--lite",
        "also write a LiteRT file with weights of this type, which `macaron serve` uses for small "
        "requests. int8 can halve the time, and changes probabilities by about 1e-3",
        choices=("fp32", "int8"),
    ),
    switch("--onnx", "also write an ONNX file of the network, which reads token ids"),
    switch(
        "--openvino",
        "also write an OpenVINO file of the network, which reads token ids. On CPUs with bfloat16 "
        "instructions, it computes in bfloat16 unless INFERENCE_PRECISION_HINT is f32",
    ),
    path_argument(
        "--check SOURCE",
        "print the scores of the model and of each exported file on labelled examples, from a "
        "source that `evaluate --source` accepts, such as tsv:dev.tsv",
    ),
)
