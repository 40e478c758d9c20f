"""A run as a SavedModel: strings in, strings out, the vocabulary inside.

    python -m export.saved_model RUN OUT [--checkpoint average] [--n-best 4]

RUN is a run of `experiments.translate`, `finetune`, `embed`, `elmo`, `text_to_text`, or of
`pretrain` where the model continues texts, or a folder that `save_pretrained` wrote of one; or
another place of `macaron_tf.load`, such as `hugging-face:DIR`: an encoder of sentences, or a model
that writes text. Its signatures stand in the module's class: `export.translator`,
`export.fine_tuned`, `export.embedders`, `export.generator`. OUT/VERSION is written, the layout that
TensorFlow Serving watches. A server needs tensorflow and tensorflow_text and nothing of this
project.
"""

import argparse
import dataclasses
import os
from typing import Any

from etils import epath

from experiments.elmo.run import ElmoRun
from experiments.finetune.run import FinetuningRun
from experiments.pretrain.run import CAUSAL, CORRUPTING
from experiments.run import read_kind
from experiments.translate.run import TranslationRun, source_limit
from export.embedders import WordModule, sentence_module
from export.fine_tuned import fine_tuned_module
from export.generator import generator_module
from export.module import ExportedModule, write_version
from export.translator import TranslationModule
from macaron_tf.errors import UserError, exit_on_user_error
from macaron_tf.pretrained import is_library, load, run_place


def open_module(
    place: str, checkpoint: str | None = None, **decoding
) -> tuple[ExportedModule, dict[str, Any]]:
    """The model that a place holds, ready to be written, and the record of its export.

    Args:
        place: of `macaron_tf.load`.
        checkpoint: the weights of a run: "average", "best", "last" or a step; by default as its
            command chooses.
        decoding: fields of a translator's beam search to replace, such as `n_best=4`.

    Raises:
        UserError: there is no such run or checkpoint, or it cannot be exported so.
    """
    foreign = is_library(place)
    if foreign and checkpoint:
        raise UserError(f"--checkpoint: {place} is no run and has one set of weights")
    if foreign:
        kind = "pretraining" if load(place).objective in (*CAUSAL, *CORRUPTING) else "embedding"
    else:
        folder, named = run_place(place)
        place, checkpoint = str(folder), checkpoint or named
        kind = read_kind(place)
    if decoding and kind != "translation":
        flag = next(iter(decoding)).replace("_", "-")
        raise UserError(f"--{flag}: {place} is no translator, and searches nothing")
    if kind == "embedding":
        return sentence_module(place, checkpoint)
    if kind in ("pretraining", "text_to_text"):
        return generator_module(place, checkpoint)
    run = {"elmo": ElmoRun, "finetuning": FinetuningRun}.get(kind, TranslationRun).open(place)
    weights = run.checkpoint(checkpoint)
    if kind == "finetuning":
        module, facts = fine_tuned_module(run, weights)
    elif kind == "elmo":
        module, facts = WordModule(run.load_network(weights), run.vocabulary), {}
    else:
        config = dataclasses.replace(run.recipe.decoding, **decoding)
        network, facts = run.load_network(weights), {"decoding": dataclasses.asdict(config)}
        module = TranslationModule(network, run.vocabulary, config, source_limit(network))
    return module, {"run": run.path.name, "checkpoint": weights.name, **facts}


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
    raise SystemExit(main())
