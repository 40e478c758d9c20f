"""Exports a model as a SavedModel: from texts to answers, with the vocabulary inside.

    python -m export.saved_model RUN OUT [--checkpoint average] [--n-best 4]

RUN is a run of `experiments.translate`, `finetune`, `embed`, `elmo`, `text_to_text` or `pretrain`,
or another place that `macaron_tf.load` opens, such as `hugging-face:DIR`. The classes of tasks in
`macaron_tf.tasks` document the inputs and outputs. The command writes OUT/VERSION, the layout of
TensorFlow Serving. A server needs tensorflow and tensorflow_text, but nothing of this project.
"""

import argparse
import dataclasses
import json

from macaron_tf.cli.arguments import argument, checkpoint, count, place, single_program, switch
from macaron_tf.command_names import as_typed
from macaron_tf.errors import UserError
from macaron_tf.io.serving import MAX_VERSION

COMPILE = switch(
    "--compile",
    "compile a translator with XLA for requests of one line: they take half the time, but a "
    "server's start takes seconds more; TensorFlow Serving needs "
    "--xla_cpu_compilation_enabled=true",
)
BFLOAT16 = switch(
    "--bfloat16",
    "compute in bfloat16 and store matrices in it: faster if the server's CPU has bfloat16 "
    "instructions, otherwise slower",
)
LITE = argument(
    "--lite",
    "also write the network for LiteRT; `python -m export.serve` and `python -m export.client "
    "--local` answer small requests with it: int8 takes half the time of the SavedModel, and its "
    "probabilities differ by about 1e-3",
    choices=("fp32", "int8"),
)
ONNX = switch("--onnx", "also write the network, from ids to its outputs, for ONNX Runtime")
OPENVINO = switch(
    "--openvino",
    "also write the network for OpenVINO, which computes in bfloat16 if the CPU supports it, "
    "unless you open it with INFERENCE_PRECISION_HINT=f32",
)
CHECK = place(
    "--check SOURCE",
    "labelled examples to score the network and each file on, such as tsv:dev.tsv; in the form of "
    "`finetune evaluate --source`",
)


def run(options: argparse.Namespace) -> None:
    """Writes a new version; see the module's docstring."""
    # Imported here so that `--help` works without TensorFlow.
    from macaron_tf.engines.certificate import certificate_text

    place, model = options.run, loaded(options)
    if options.pooling:
        model = dataclasses.replace(model, pooling=options.pooling)
    search = search_options(options, place, model)
    formats = [name for name in ("onnx", "openvino") if vars(options)[name]]
    given = options.bfloat16, options.lite, formats, options.check
    path = model.export(options.out, options.version, *given, **search)
    record = json.loads((path / "assets.extra" / "export.json").read_text())
    print(certificate_text(record), end="")
    print(as_typed(f"exported {path}; serve it with: python -m export.serve {options.out}"))


def loaded(options: argparse.Namespace):
    """Loads the model at `options.run`, from the checkpoint `options.checkpoint` if it is given."""
    # Imported here so that `--help` works without TensorFlow.
    from macaron_tf.places import load, locate

    place, chosen = options.run, options.checkpoint
    if chosen and locate(place).without_recipe:
        raise UserError(f"--checkpoint: {place} is no run and has no checkpoints: leave it out")
    return load(f"{place}@{chosen}" if chosen else place)


def search_options(options: argparse.Namespace, place: str, model) -> dict[str, object]:
    """Collects the given options of a translator's search.

    Raises:
        UserError: there are some, and the model is no translator.
    """
    from macaron_tf.tasks import Translation

    given = {name: vars(options).get(name) for name in ("n_best", "beam_size", "compile")}
    given = {name: value for name, value in given.items() if value}
    if given and not isinstance(model.task, Translation):
        flag = next(iter(given)).replace("_", "-")
        raise UserError(f"--{flag}: {place} is no translator: leave the flag out")
    return {"compiled" if name == "compile" else name: value for name, value in given.items()}


main = single_program(
    "export.saved_model",
    __doc__,
    "export.saved_model:run",
    place("run", "folder of a trained run"),
    place("out", "folder of the served model; versions are subfolders"),
    checkpoint("average, best, last or a step's number"),
    count("--version N", "number of the version (default: the next)", below=MAX_VERSION + 1),
    count("--n-best N", "number of translations per line (default: 1)"),
    count("--beam-size K", "beam size of a translator's search (default: the recipe's)"),
    argument(
        "--pooling",
        "export any encoder as a sentence encoder, with this pooling",
        choices=("mean", "max", "cls"),
    ),
    COMPILE,
    BFLOAT16,
    LITE,
    ONNX,
    OPENVINO,
    CHECK,
)

if __name__ == "__main__":
    raise SystemExit(main())
