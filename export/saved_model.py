"""A run as a SavedModel: strings in, strings out, the vocabulary inside.

    python -m export.saved_model RUN OUT [--checkpoint average] [--n-best 4]

RUN is a run of `experiments.translate`, `finetune`, `embed`, `elmo`, `text_to_text`, or of
`pretrain` where the model continues texts; or `hugging-face:DIR`, a sentence-transformers
directory. Its signatures stand in the module's class: `export.translator`, `export.fine_tuned`,
`export.embedders`, `export.generator`. OUT/VERSION is written, the layout that TensorFlow Serving
watches. A server needs tensorflow and tensorflow_text and nothing of this project.
"""

import argparse
import dataclasses
import os
import sys
from typing import Any

from etils import epath

from experiments.run import read_kind
from export.module import ExportedModule, write_version
from macaron_tf.errors import UserError, exit_on_user_error


def open_module(
    place: str, checkpoint: str | None = None, **decoding
) -> tuple[ExportedModule, dict[str, Any]]:
    """The model that a place holds, ready to be written, and the record of its export.

    Args:
        place: a run's folder, or `hugging-face:DIR`.
        checkpoint: the weights of a run: "average", "best", "last" or a step; by default as its
            command chooses.
        decoding: fields of a translator's beam search to replace, such as `n_best=4`.

    Raises:
        UserError: there is no such run or checkpoint, or it cannot be exported so.
    """
    foreign = place.startswith("hugging-face:")
    if foreign and checkpoint:
        raise UserError(f"--checkpoint: {place} is no run and has one set of weights")
    kind = "embedding" if foreign else read_kind(place)
    if kind != "translation" and decoding:
        flag = next(iter(decoding)).replace("_", "-")
        raise UserError(f"--{flag}: {place} is no translator, and searches nothing")
    # Each kind's modules are imported for its own runs only.
    if kind == "embedding":
        from export.embedders import sentence_module

        return sentence_module(place, checkpoint)
    if kind == "elmo":
        from export.embedders import word_module

        return word_module(place, checkpoint)
    if kind in ("pretraining", "text_to_text"):
        from export.generator import generator_module

        return generator_module(place, checkpoint)
    if kind == "finetuning":
        from export.fine_tuned import fine_tuned_module

        return fine_tuned_module(place, checkpoint)
    from experiments.translate.run import TranslationRun, source_limit
    from export.translator import TranslationModule

    run = TranslationRun.open(place)
    config = dataclasses.replace(run.recipe.decoding, **decoding)
    weights = run.checkpoint(checkpoint)
    network = run.load_network(weights)
    record = {
        "run": run.path.name,
        "checkpoint": weights.name,
        "decoding": dataclasses.asdict(config),
    }
    return TranslationModule(network, run.vocabulary, config, source_limit(network)), record


def export(
    place: str | os.PathLike,
    out: str | os.PathLike,
    checkpoint: str | None = None,
    version: int | None = None,
    **decoding,
) -> epath.Path:
    """Writes the model that a place holds as a new version; see `open_module`, `write_version`."""
    module, record = open_module(str(place), checkpoint, **decoding)
    return write_version(module, record, out, version)


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """The command; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m export.saved_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", help="folder of a trained run")
    parser.add_argument("out", help="folder of the served model; versions are subfolders")
    parser.add_argument(
        "--checkpoint", metavar="NAME", help="average, best, last or a step's number"
    )
    parser.add_argument("--version", type=int, help="number of the version; the next by default")
    parser.add_argument("--n-best", type=int, metavar="N", help="translations a line (default 1)")
    parser.add_argument("--beam-size", type=int, metavar="K", help="the recipe's by default")
    options = parser.parse_args(arguments)
    changes = {"n_best": options.n_best, "beam_size": options.beam_size}
    changes = {name: value for name, value in changes.items() if value is not None}
    path = export(options.run, options.out, options.checkpoint, options.version, **changes)
    print(f"exported {path}; serve it with: python -m export.serve {options.out}")


if __name__ == "__main__":
    sys.exit(main())
