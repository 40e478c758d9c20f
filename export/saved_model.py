"""Exports a model as a SavedModel that includes the vocabulary and maps texts to answers.

    python -m export.saved_model RUN OUT [--checkpoint average] [--n-best 4]

RUN is a run folder of `experiments.translate`, `finetune`, `embed`, `elmo`, `text_to_text` or
`pretrain`, or another source that `macaron_tf.load` accepts, such as `hugging-face:DIR`. The
classes in `macaron_tf.tasks` document the inputs and outputs. The command writes the folder
OUT/VERSION, as TensorFlow Serving expects. A server needs tensorflow and tensorflow_text, but not
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
    "compile the search of a translation model with XLA for requests with a single line. Such a "
    "request then takes half the time, a server starts some seconds later, and TensorFlow Serving "
    "needs the flag --xla_cpu_compilation_enabled=true (default: not compiled)",
)
BFLOAT16 = switch(
    "--bfloat16",
    "store weight matrices and compute matrix products in bfloat16, which is faster only if the "
    "CPU of the server has bfloat16 instructions (default: the dtype of the model)",
)
LITE = argument(
    "--lite",
    "weight type of an additional LiteRT file, which `python -m export.serve` and `python -m "
    "export.client --local` use for small requests. int8 takes half the time of the SavedModel and "
    "changes probabilities by about 1e-3 (default: no LiteRT file)",
    choices=("fp32", "int8"),
)
ONNX = switch(
    "--onnx",
    "also write an ONNX file of the network, whose inputs are token ids (default: no ONNX file)",
)
OPENVINO = switch(
    "--openvino",
    "also write the network, whose inputs are token ids, for OpenVINO. On CPUs with bfloat16 "
    "instructions, OpenVINO computes in bfloat16 unless INFERENCE_PRECISION_HINT is f32 (default: "
    "no OpenVINO file)",
)
CHECK = place(
    "--check SOURCE",
    "source of labelled examples, such as tsv:dev.tsv, in a form that `finetune evaluate --source` "
    "accepts; the command prints the scores of the model and of each exported file on the examples "
    "(default: no scores)",
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
            f"{place} is not a training run, so it has no checkpoints to choose from: leave "
            "--checkpoint out"
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
        raise UserError(
            f"{place} is not a translator, so --{flag} has no effect: leave --{flag} out"
        )
    return {"compiled" if name == "compile" else name: value for name, value in given.items()}


main = single_program(
    "export.saved_model",
    __doc__,
    "export.saved_model:run",
    place(
        "run",
        "folder of a training run, or another model that macaron_tf.load accepts, such as "
        "hugging-face:DIR",
    ),
    place("out", "folder of the model; the command adds the subfolder OUT/VERSION"),
    checkpoint(
        "checkpoint to export: average, best, last or the number of a step (default: average if "
        "there is an average, otherwise best)"
    ),
    count(
        "--version N",
        "version number to write (default: the newest version in OUT + 1)",
        below=MAX_VERSION + 1,
    ),
    count(
        "--n-best N", "number of translations per line, for a translation model only (default: 1)"
    ),
    count(
        "--beam-size K",
        "width of the beam search, for a translation model only (default: the beam size of the "
        "model)",
    ),
    argument(
        "--pooling",
        "method that pools the token vectors into a sentence vector. With this flag, the command "
        "exports a pre-trained encoder as a sentence encoder (default: the task of the model)",
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
