"""Exports a .keras file and a vocabulary, without a training run, as a SavedModel.

    macaron keras_model MODEL.keras VOCABULARY OUT --labels no yes --max-length 128
    macaron keras_model MODEL.keras VOCABULARY OUT --decoding '{"beam_size": 4}'

MODEL.keras is an `EncoderClassifier` or an `EncoderDecoder` for translation. A classifier needs
--labels. The command writes OUT/VERSION in the format of `macaron export`.
"""

import argparse

from export.saved_model import BFLOAT16, COMPILE, search_options
from macaron_tf.cli.arguments import argument, count, path_argument, single_program
from macaron_tf.errors import UserError, parse_json


def run(options: argparse.Namespace) -> None:
    """Runs the command `macaron keras_model`: exports a .keras file as a SavedModel."""
    # Imported here so that `--help` works without TensorFlow.
    import dataclasses

    from macaron_tf.decoding import BeamSearchConfig
    from macaron_tf.model import load
    from macaron_tf.tasks import Classification, Translation

    try:
        config = BeamSearchConfig(**parse_json(options.decoding))
    except (ValueError, TypeError) as error:
        raise UserError(
            f"--decoding {options.decoding[:200]} is not an object of settings of beam search "
            f'({error}): give one such as {{"beam_size": 4}}'
        ) from error
    labels = tuple(options.labels or ())
    model = dataclasses.replace(
        load(options.model, vocabulary=options.vocabulary, trust_code=options.trust_code),
        name="",
        labels=labels,
        max_length=options.max_length,
        decoding=dataclasses.asdict(config),
    )
    search = search_options(options, options.model, model)
    is_classifier = isinstance(model.network, Classification.networks)
    if labels and not is_classifier:
        raise UserError(f"{options.model} is not a classifier: leave --labels out")
    if not is_classifier and not isinstance(model.task, Translation):
        raise UserError(f"{options.model} is no classifier or translator: give one")
    print(model.export(options.out, bfloat16=options.bfloat16, **search))


main = single_program(
    "macaron keras_model",
    __doc__,
    "export.keras_model:run",
    path_argument("model", ".keras file of the model"),
    path_argument("vocabulary", "folder of the vocabulary with which the model was trained"),
    path_argument("out", "output folder; the exported model is written to OUT/VERSION"),
    argument("--labels NAME", "names of a classifier's classes in order of their index", nargs="+"),
    count(
        "--max-length N",
        "maximum number of tokens in a classifier's input, which is cut (default: %(default)s)",
        128,
    ),
    argument(
        "--decoding JSON",
        "settings of a translator's beam search, as a JSON object with fields of "
        "macaron_tf.decoding.BeamSearchConfig (default: %(default)s)",
        default="{}",
    ),
    COMPILE,
    BFLOAT16,
)
