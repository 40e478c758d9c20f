"""The kinds of tasks, each with its reading, network, objective, metrics and answers."""

from experiments.finetune.kinds.base import Limits, SpanLimits, TaskKind
from experiments.finetune.kinds.classification import Choice, Classification
from experiments.finetune.kinds.spans import Spans
from experiments.finetune.kinds.tags import Tags
from macaron_tf.data.tasks.definitions import Task

__all__ = ["KINDS", "Limits", "SpanLimits", "TaskKind", "kind_of"]

KINDS: dict[str, type[TaskKind]] = {
    "classification": Classification,
    "spans": Spans,
    "tags": Tags,
    "choice": Choice,
}


def kind_of(task: Task) -> TaskKind:
    """The kind of a task, of that task."""
    return KINDS[task.kind](task)
