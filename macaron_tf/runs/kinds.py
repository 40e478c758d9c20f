"""The kinds of runs, by the kind of their recipe."""

import os
import pkgutil

from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.runs.run import Run, recipe_kind

# Class of the runs of each kind of recipe.
_RUNS = {
    "pretraining": "macaron_tf.runs.pretraining:PretrainingRun",
    "finetuning": "macaron_tf.runs.finetuning:FinetuningRun",
    "embedding": "macaron_tf.runs.embedding:EmbeddingRun",
    "text_to_text": "macaron_tf.runs.text_to_text:TextRun",
    "translation": "macaron_tf.runs.translation:TranslationRun",
    "elmo": "macaron_tf.runs.elmo:ElmoRun",
    "sequence": "macaron_tf.runs.sequences.run:SequenceRun",
}


def run_class(kind: str) -> type[Run]:
    """Returns the class of the runs of recipes whose `kind` is `kind`."""
    if kind not in _RUNS:
        raise UserError(f"{kind!r} is an unknown kind of recipe: choose one of {', '.join(_RUNS)}")
    return pkgutil.resolve_name(_RUNS[kind])


def open_run(path: str | os.PathLike, trust_code: bool = False) -> Run:
    """Opens the folder of a run of any kind; see `Run.open`."""
    return run_class(recipe_kind(as_path(path))).open(path, trust_code)
