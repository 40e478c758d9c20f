"""Task types, which convert texts to a model's inputs, and the model's outputs to answers."""

from typing import Any

from macaron_tf.data.tasks.definitions import Task
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderConfig
from macaron_tf.models.base import Model
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.tasks.base import Decoding, TaskKind
from macaron_tf.tasks.classification import Classification, MultiLabel, MultipleChoice
from macaron_tf.tasks.embedding import SentenceEmbedding, WordVectors
from macaron_tf.tasks.filling import Filling
from macaron_tf.tasks.generation import Continuation, TextToText
from macaron_tf.tasks.labelled import LabelledTask, Limits, SpanLimits
from macaron_tf.tasks.question_answering import QuestionAnswering
from macaron_tf.tasks.token_classification import TokenClassification
from macaron_tf.tasks.translation import Translation

TASK_CLASSES: tuple[type[TaskKind], ...] = (
    Classification,
    MultiLabel,
    MultipleChoice,
    QuestionAnswering,
    TokenClassification,
    SentenceEmbedding,
    WordVectors,
    TextToText,
    Continuation,
    Filling,
    Translation,
)
DECODING = {cls.name: cls for cls in (TextToText, Continuation, Translation)}
_LABELLED = {cls.kind: cls for cls in TASK_CLASSES if issubclass(cls, LabelledTask)}


def labelled(task: Task, *arguments) -> LabelledTask:
    """Creates a `LabelledTask` of the subclass that supports `task.kind`."""
    if task.kind not in _LABELLED:
        kinds = ", ".join(_LABELLED)
        raise UserError(f"kind={task.kind!r} of the task {task.name} must be one of {kinds}")
    return _LABELLED[task.kind](task, *arguments)


def task_of(model: ModelParts) -> TaskKind:
    """Creates the task object by which a loaded model answers texts."""
    model.require_head()
    model.require_vocabulary()
    if model.labelled:
        with model.refuse_damage():
            task, limits = Task(**model.labelled["task"]), Limits(**model.labelled["limits"])
        metrics = model.results.get("metrics") or {}
        return labelled(task, limits, model.network, model.vocabulary, metrics)
    for task_class in TASK_CLASSES:
        if (found := task_class.of(model)) is not None:
            return found
    config = model.config if isinstance(model.network, Model) else None
    if isinstance(config, EncoderConfig) and not config.causal and config.summary != "last":
        return SentenceEmbedding.pooled(model)  # encoder without a task head
    name = model.name or model.checkpoint or "the model"
    raise UserError(
        f"{name} is a {type(model.network).__name__} without a task: fine-tune it by `macaron "
        f"train finetune:TASK RUN --init {model.checkpoint or name}`"
    )
