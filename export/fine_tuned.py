"""A fine-tuned run as a SavedModel, whatever the kind of its task."""

import os
from collections.abc import Callable, Mapping

import keras
import tensorflow as tf
from etils import epath

from experiments.finetuning.kinds.spans import THRESHOLD
from experiments.finetuning.run import FinetuningRun
from export.classifier import ClassifierModule
from export.span_reader import SpanReaderModule
from export.tagger import TaggerModule
from export.versions import write_version
from macaron_tf.errors import UserError


def _classifier(run: FinetuningRun, network: keras.Model, tuned: Mapping) -> tf.Module:
    return ClassifierModule(network, run.vocabulary, run.task, run.recipe.max_length)


def _span_reader(run: FinetuningRun, network: keras.Model, tuned: Mapping) -> tf.Module:
    threshold = tuned.get(THRESHOLD, 0.0)
    return SpanReaderModule(network, run.vocabulary, run.task, run.recipe.limits, threshold)


def _tagger(run: FinetuningRun, network: keras.Model, tuned: Mapping) -> tf.Module:
    return TaggerModule(network, run.vocabulary, run.task, run.recipe.max_length)


_MODULES: dict[str, Callable[[FinetuningRun, keras.Model, Mapping], tf.Module]] = {
    "classification": _classifier,
    "spans": _span_reader,
    "tags": _tagger,
}


def export_fine_tuned(
    run: FinetuningRun,
    out: str | os.PathLike,
    checkpoint: str | None = None,
    version: int | None = None,
) -> epath.Path:
    """Writes a run's network as a new version in a folder.

    Args:
        run: the run.
        out: the model's folder, `gs://` included, one subfolder a version; made when absent.
        checkpoint: which weights, see `FinetuningRun.checkpoint`.
        version: number of the version; by default one more than the greatest there is.

    Returns:
        The version's folder. It appears under its name only when it is whole.

    Raises:
        UserError: the run has no such checkpoint or is one of choices, the version exists, or
            `out` cannot be written.
    """
    weights = run.checkpoint(checkpoint)
    make = _MODULES.get(run.task.kind)
    if make is None:
        raise UserError(
            f"{run.path} answers {run.task.name}, whose choices no signature takes: "
            "`python -m experiments.finetune predict` answers it"
        )
    module = make(run, run.load_network(weights), run.tuned(weights))
    record = {
        "run": run.path.name,
        "checkpoint": weights.name,
        "task": run.task.name,
        "labels": list(run.task.labels),
        "max_length": run.recipe.max_length,
    }
    return write_version(module, run.vocabulary, record, out, version)
