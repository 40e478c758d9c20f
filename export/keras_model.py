"""A saved Keras model and its vocabulary as a SavedModel, without a run.

    python -m export.keras_model MODEL.keras VOCABULARY OUT --labels no yes --max-length 128
    python -m export.keras_model MODEL.keras VOCABULARY OUT --decoding '{"beam_size": 4}'

MODEL.keras is an `EncoderClassifier`, which takes --labels, or an `EncoderDecoder` that translates.
OUT/VERSION is written as `export.saved_model` writes it.
"""

import argparse
import json

import keras

from experiments.translate.run import source_limit
from export.fine_tuned import ClassifierModule
from export.module import write_version
from export.translator import TranslationModule
from macaron_tf import models  # noqa: F401 - registers the classes with Keras
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.decoding import BeamSearchConfig
from macaron_tf.errors import UserError, exit_on_user_error
from macaron_tf.text import PieceVocabulary


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """The command; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m export.keras_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="file that Keras saved")
    parser.add_argument("vocabulary", help="folder of the vocabulary")
    parser.add_argument("out", help="folder of the served model; versions are subfolders")
    parser.add_argument("--labels", nargs="+", help="a classifier's classes")
    parser.add_argument("--max-length", type=int, default=128, help="a classifier's longest row")
    parser.add_argument("--decoding", default="{}", help="a translator's search settings in JSON")
    options = parser.parse_args(arguments)
    try:
        config = BeamSearchConfig(**json.loads(options.decoding))
    except (ValueError, TypeError) as error:
        raise UserError(f"--decoding {options.decoding}: {error}") from error
    try:
        network = keras.saving.load_model(options.model, compile=False)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{options.model} is no model that Keras saved: {error}") from error
    vocabulary = PieceVocabulary.load(options.vocabulary)
    if options.labels:
        task = Task("task", first=("text",), labels=tuple(options.labels))
        module = ClassifierModule(network, vocabulary, task, options.max_length)
    else:
        module = TranslationModule(network, vocabulary, config, source_limit(network))
    print(write_version(module, {}, options.out))


if __name__ == "__main__":
    raise SystemExit(main())
