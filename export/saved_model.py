"""Exports a model as a SavedModel that includes the vocabulary and maps texts to answers.

    macaron export RUN OUT [--checkpoint average] [--n-best 4]
    macaron export MODEL.keras OUT --vocabulary DIR --labels no yes

RUN is the folder of a training run, or another location that `macaron_tf.load` accepts, such as
`hugging-face:DIR`. The classes in `macaron_tf.tasks` document the inputs and outputs. The command
writes the folder OUT/VERSION, as TensorFlow Serving expects. A server needs tensorflow and
tensorflow_text, but not macaron_tf. MODEL.keras is an `EncoderClassifier`, which needs --labels, or
an `EncoderDecoder` for translation.
"""

import argparse
import dataclasses

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
from macaron_tf.io.serving import EXTRA, MAX_VERSION, RECORD


def run(options: argparse.Namespace) -> None:
    """Runs the command `macaron export`: exports a model as a SavedModel."""
    # Imported here so that `--help` works without TensorFlow.
    from macaron_tf.engines.certificate import certificate_text
    from macaron_tf.io.paths import read_json
    from macaron_tf.tasks import CLASSIFIERS, SentenceSettings, Translation, of_classes

    model = load_model(options, options.vocabulary)
    given = {name: value for name, value in vars(options).items() if value}
    if given.keys() & {"labels", "max_length"}:
        if model.settings or not isinstance(model.network, CLASSIFIERS):
            what = f"{options.run} is no .keras file of a classifier"
            raise UserError(f"{what}: leave --labels and --max-length out")
        settings = of_classes(model, options.labels or (), options.max_length)
        model = dataclasses.replace(model, settings=settings)
    if options.pooling:
        is_encoder = isinstance(model.settings, SentenceSettings)
        settings = model.settings if is_encoder else SentenceSettings()
        settings = dataclasses.replace(settings, pooling=options.pooling)
        model = dataclasses.replace(model, settings=settings)
    search = {name: given[name] for name in ("n_best", "beam_size", "compiled") if name in given}
    if search and not isinstance(model.task, Translation):
        flag = next(iter(search)).replace("_", "-").removesuffix("d")
        raise UserError(f"{options.run} is not a translator: leave --{flag} out")
    path = model.export(
        options.out,
        options.version,
        options.bfloat16,
        options.lite,
        [name for name in ("onnx", "openvino") if vars(options)[name]],
        options.check,
        **search,
    )
    print(certificate_text(read_json(path / EXTRA / RECORD)), end="")
    print(f"exported {path}; serve it with: macaron serve {options.out}")


def load_model(options: argparse.Namespace, vocabulary: str | None = None):
    """Loads the model at the location `options.run`, as a `macaron_tf.Model`."""
    # Imported here so that `--help` works without TensorFlow.
    from macaron_tf.model import load
    from macaron_tf.training.locations import locate

    location = options.run
    if options.checkpoint:
        if locate(location).without_recipe:
            raise UserError(f"{location} is no training run: leave --checkpoint out")
        location = f"{location}@{options.checkpoint}"
    return load(location, vocabulary=vocabulary, trust_code=options.trust_code)


main = single_program(
    "macaron export",
    __doc__,
    "export.saved_model:run",
    MODEL,
    path_argument("out", "output folder; the exported model is written to OUT/VERSION"),
    CHECKPOINT,
    count("--version N", "version number (default: one more than in OUT)", below=MAX_VERSION + 1),
    count(
        "--n-best N", "number of a translator's translations of each line (default: the model's)"
    ),
    count("--beam-size K", "width of a translator's beam search (default: the model's)"),
    argument(
        "--pooling",
        "export an encoder's sentence vectors: mean or maximum of the tokens', or the first one's",
        choices=("mean", "max", "cls"),
    ),
    path_argument("--vocabulary DIR", "folder of the vocabulary of a .keras file"),
    argument("--labels NAME", "names of a classifier's classes in order of their index", nargs="+"),
    count("--max-length N", "number of tokens to which a classifier's input is cut"),
    argument(
        "--compile",
        "compile a translator's search of one sentence with XLA, which can halve the time; "
        "TensorFlow Serving then needs the flag --xla_cpu_compilation_enabled=true",
        action="store_true",
        dest="compiled",
    ),
    switch(
        "--bfloat16", "compute in bfloat16, which is faster only on CPUs with instructions for it"
    ),
    argument(
        "--lite",
        "also write a LiteRT file with weights of this type, for small requests; int8 can halve "
        "the time, and changes probabilities by about 1e-3",
        choices=("fp32", "int8"),
    ),
    switch("--onnx", "also write an ONNX file of the network, which reads token ids"),
    switch("--openvino", "also write an OpenVINO file of the network, which reads token ids"),
    path_argument(
        "--check SOURCE",
        "score the model and each file on labelled examples, such as tsv:dev.tsv",
    ),
)
