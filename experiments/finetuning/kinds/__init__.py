"""The kinds of tasks: what fine-tuning has to know of each, in one object a kind."""

from experiments.finetuning.kinds.base import Limits, SpanLimits, TaskKind
from experiments.finetuning.kinds.choice import Choice
from experiments.finetuning.kinds.classification import Classification
from experiments.finetuning.kinds.spans import Spans
from experiments.finetuning.kinds.tags import Tags
from macaron_tf.data.tasks import Task

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
