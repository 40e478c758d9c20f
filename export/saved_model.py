"""Exports a model as a SavedModel that includes the vocabulary and maps texts to answers.

    macaron export RUN OUT [--n-best 4]

RUN is the folder of a training run, or another location that `macaron_tf.load` accepts, such as
`hugging-face:DIR`. The classes in `macaron_tf.tasks` document the inputs and outputs. The command
writes the folder OUT/VERSION, as TensorFlow Serving expects. A server needs tensorflow and
tensorflow_text, but not macaron_tf.
"""

import argparse
import dataclasses

from macaron_tf.cli.arguments import (
    MODEL,
    argument,
    count,
    path_argument,
    single_program,
    switch,
)
from macaron_tf.io.serving import EXTRA, RECORD


def run(options: argparse.Namespace) -> None:
    """Runs the command `macaron export`: exports a model as a SavedModel."""
    # Imported here so that `--help` works without TensorFlow.
    from macaron_tf.engines.certificate import certificate_text
    from macaron_tf.io.paths import read_json
    from macaron_tf.model import load
    from macaron_tf.tasks import SentenceSettings

    model = load(options.run, trust_code=options.trust_code)
    if options.pooling:
        is_encoder = isinstance(model.settings, SentenceSettings)
        settings = model.settings if is_encoder else SentenceSettings()
        settings = dataclasses.replace(settings, pooling=options.pooling)
        model = dataclasses.replace(model, settings=settings)
    search = {name: n for name in ("n_best", "beam_size") if (n := getattr(options, name))}
    path = model.export(
        options.out,
        options.bfloat16,
        options.lite,
        [name for name in ("onnx", "openvino") if vars(options)[name]],
        options.check,
        **search,
    )
    print(certificate_text(read_json(path / EXTRA / RECORD)), end="")
    print(f"exported {path}; serve it with: macaron serve {options.out}")


main = single_program(
    "macaron export",
    __doc__,
    "export.saved_model:run",
    MODEL,
    path_argument("out", "output folder; the exported model is written to OUT/VERSION"),
    count(
        "--n-best N", "number of a translator's translations of each line (default: the model's)"
    ),
    count("--beam-size K", "width of a translator's beam search (default: the model's)"),
    argument(
        "--pooling",
        "export an encoder's sentence vectors: mean or maximum of the tokens', or the first one's",
        choices=("mean", "max", "cls"),
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
