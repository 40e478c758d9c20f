"""Exports a model as a SavedModel that includes the vocabulary and maps texts to answers.

    python -m export.saved_model RUN OUT [--checkpoint average] [--n-best 4]

RUN is a run folder of `experiments.translate`, `finetune`, `embed`, `elmo`, `text_to_text` or
`pretrain`, or another source that `macaron_tf.load` accepts, such as `hugging-face:DIR`. The
classes in `macaron_tf.tasks` document the inputs and outputs. The command writes OUT/VERSION, the
folder layout of TensorFlow Serving. A server needs tensorflow and tensorflow_text, but not
macaron_tf.
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
    "compile a translator with XLA for requests of one line, which halves their time and adds "
    "seconds to the start of a server; TensorFlow Serving needs "
    "--xla_cpu_compilation_enabled=true",
)
BFLOAT16 = switch(
    "--bfloat16",
    "compute and store matrices in bfloat16, which is faster only if the server's CPU has "
    "bfloat16 instructions",
)
LITE = argument(
    "--lite",
    "also write the network for LiteRT, which `python -m export.serve` and `python -m "
    "export.client --local` use for small requests; int8 takes half the time of the SavedModel and "
    "changes probabilities by about 1e-3",
    choices=("fp32", "int8"),
)
ONNX = switch("--onnx", "also write the network, which takes token ids, for ONNX Runtime")
OPENVINO = switch(
    "--openvino",
    "also write the network for OpenVINO, which computes in bfloat16 on CPUs with bfloat16 unless "
    "opened with INFERENCE_PRECISION_HINT=f32",
)
CHECK = place(
    "--check SOURCE",
    "labelled examples to evaluate the network and each written file on, such as tsv:dev.tsv (see "
    "`finetune evaluate --source`)",
)


def run(options: argparse.Namespace) -> None:
    """Runs the command `export.saved_model`: exports a model as a SavedModel."""
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
    """Loads the model from `options.run`.

    Args:
        options: options of an export command. `checkpoint` names a checkpoint of the run, and
            `None` means the default checkpoint.

    Raises:
        UserError: `checkpoint` is set, but `run` is not a training run.
    """
    # Imported here so that `--help` works without TensorFlow.
    from macaron_tf.places import load, locate

    place, chosen = options.run, options.checkpoint
    if chosen and locate(place).without_recipe:
        raise UserError(
            f"{place} is not a training run and has no checkpoints: leave --checkpoint out"
        )
    return load(f"{place}@{chosen}" if chosen else place)


def search_options(options: argparse.Namespace, place: str, model) -> dict[str, object]:
    """Collects the search options that the user has set, as arguments of `Pretrained.export`.

    Args:
        options: options of an export command.
        place: source of the model, for the error message.
        model: the loaded model.

    Raises:
        UserError: a search option is set, but the model is not a translator.
    """
    from macaron_tf.tasks import Translation

    given = {name: vars(options).get(name) for name in ("n_best", "beam_size", "compile")}
    given = {name: value for name, value in given.items() if value}
    if given and not isinstance(model.task, Translation):
        flag = next(iter(given)).replace("_", "-")
        raise UserError(f"{place} is not a translator: leave --{flag} out")
    return {"compiled" if name == "compile" else name: value for name, value in given.items()}


main = single_program(
    "export.saved_model",
    __doc__,
    "export.saved_model:run",
    place("run", "folder of the training run, or another source that macaron_tf.load accepts"),
    place("out", "folder for the exported versions; the command adds the folder OUT/VERSION"),
    checkpoint(
        "checkpoint of the run: average, best, last or a step number (default: average if there is "
        "one, otherwise best)"
    ),
    count("--version N", "version to write (default: newest version + 1)", below=MAX_VERSION + 1),
    count("--n-best N", "number of translations per line (default: 1)"),
    count("--beam-size K", "beam size of a translator (default: the beam size in the recipe)"),
    argument(
        "--pooling",
        "pooling method, to export an encoder of any task as a sentence encoder",
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
