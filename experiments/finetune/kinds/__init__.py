"""The kinds of tasks: what fine-tuning has to know of each, in one object a kind."""

from experiments.finetune.kinds.base import Limits, SpanLimits, TaskKind
from experiments.finetune.kinds.choice import Choice
from experiments.finetune.kinds.classification import Classification
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
    """What fine-tuning has to know of a task.

    Args:
        task: the task.
    """
    return KINDS[task.kind](task)
