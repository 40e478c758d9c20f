"""Scores of a network and its exported files on labelled examples."""

from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.sources.names import Source
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.engines.networks import OpenedNetwork
from macaron_tf.errors import UserError
from macaron_tf.io.plug_ins import find_sources
from macaron_tf.tasks.base import TaskKind
from macaron_tf.tasks.labelled import LabelledTask
from macaron_tf.tasks.sets import SetOutputs

_BATCH_SIZE = 32  # examples in a batch


class Accuracy:
    """Labelled examples on which a task's network is scored in several engines.

    Args:
        source: source of the examples, in the form of `evaluate --source`. If the source
            has splits, such as a dataset of TensorFlow Datasets, the examples are the task's first
            validation split. Otherwise the examples are the whole file.

    Attributes:
        facts: fields `source` and `examples` (the count) for the record of an export.
    """

    def __init__(self, task: TaskKind, source: str):
        if not isinstance(task, LabelledTask):
            raise UserError(f"--check {source} needs labelled examples, which no {task.name} has")
        splits = task.task.validation_splits if Source.of(source).has_splits else ("train",)
        self._task = task
        find_sources(source)  # the user wrote the name
        self._examples = task.read(splits[0], Tfds(), source)
        self._encoded = task.encoded(task.vocabulary, self._examples, task.limits)
        self._data = ExampleBatches(self._encoded, _BATCH_SIZE)
        self.facts = {"source": source, "examples": len(self._examples)}

    def metrics(self, engine: OpenedNetwork | None = None) -> dict[str, float]:
        """Computes the metrics of an exported network, or of the network itself, which comes first.

        For rows that are too long for a LiteRT file, the exported network has the network's
        outputs.
        """
        task, outputs = self._task, SetOutputs(self._task, _BATCH_SIZE)
        if engine is None:
            logits = self._network_outputs = outputs.logits(self._data)
        else:
            logits = self._network_outputs.copy()
            for indices, batch in outputs.batches(self._data):
                selected = (indices >= 0) & engine.fits(batch)
                if selected.any():
                    found = engine.compute({name: ids[selected] for name, ids in batch.items()})
                    logits[(indices[selected], *map(slice, found.shape[1:]))] = found
        return task.measure(task.outputs(logits, self._encoded, self._examples), self._examples)
