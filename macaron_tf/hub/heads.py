"""Import and export of the task heads of fine-tuned models, and of their class names."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from macaron_tf.data.tasks.definitions import TASKS, Task, get_task
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import Arrays, Table, find_entry, layer_state
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.io.paths import refuse_damage
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.models.tasks import (
    CausalClassifier,
    EncoderClassifier,
    EncoderMultipleChoice,
    EncoderQuestionAnswering,
    EncoderTokenClassifier,
)
from macaron_tf.tasks.labelled import LabelledSettings, Limits, SpanLimits

_MULTI_LABEL = "multi_label_classification"  # value of `problem_type`
_HEAD_KINDS = {"multilabel": "classification"}  # kinds of tasks with the head of another kind
_CLASSIFIER = ("ForSequenceClassification", "text-classification", "classification", "num_classes")
# Dict mapping macaron_tf's classes with a task head to the suffix of the other library's class, the
# name of the task on the Hub, `Task.kind`, and the argument for the number of classes.
CLASSES: dict[type, tuple[str, str, str, str]] = {
    EncoderClassifier: _CLASSIFIER,
    CausalClassifier: _CLASSIFIER,
    EncoderMultipleChoice: ("ForMultipleChoice", "multiple-choice", "choice", ""),
    EncoderTokenClassifier: ("ForTokenClassification", "token-classification", "tags", "num_tags"),
    EncoderQuestionAnswering: ("ForQuestionAnswering", "question-answering", "spans", ""),
}
# Classes of encoders with a task head.
HEADED = tuple(cls for cls in CLASSES if cls is not CausalClassifier)
# Activations that have the same name in Hugging Face's library and in macaron_tf.
_HEAD_ACTIVATIONS = {name: name for name in ("tanh", "gelu", "relu", "silu")}
_NUM_CHOICES = 4  # assumed number of choices, which other libraries' models do not record
# Assumed maximum lengths, which other libraries do not record.
_MAX_LENGTH, _MAX_LENGTH_SPANS = 128, 384


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """Another library's model class for a task. The head of the class has one or two layers.

    Attributes:
        class_suffix: suffix of the class name, such as "ForTokenClassification".
        pipeline: name of the task on the Hugging Face Hub; "" if the model card names no task.
        table: mapping of weight names for the layers of the head.
        has_pooler: whether the model class also contains the pooler in `Family.table`.
        activation: activation of the pooler, or after the first layer of a two-layer head.
        activation_field: field of the configuration file that names the activation. If the file
            lacks this field, the activation is `activation`. An empty string means that the
            activation is fixed.
    """

    class_suffix: str
    pipeline: str
    table: Table
    has_pooler: bool = False
    activation: str = "tanh"
    activation_field: str = ""


def text_heads(
    table: Table,
    classes: Sequence[type] = (EncoderClassifier, EncoderMultipleChoice),
    **options,
) -> dict[type, TaskHead]:
    """Heads with the same weights and `options` for several of macaron_tf's model classes."""
    return {key: TaskHead(*CLASSES[key][:2], table, **options) for key in classes}


def token_heads(
    tagger: str = "classifier",
    reader: str = "qa_outputs",
    reader_class: str = "ForQuestionAnswering",
) -> dict[type, TaskHead]:
    """Linear heads of the classes for tagging and question answering, with the given names."""
    spans = TaskHead(reader_class, "question-answering", {"head/dense": reader})
    tags = text_heads({"head/dense": tagger}, (EncoderTokenClassifier,))
    return {**tags, EncoderQuestionAnswering: spans}


@dataclasses.dataclass(frozen=True)
class ReadHead:
    """Task head of another library's model, converted to macaron_tf.

    Attributes:
        network_class: macaron_tf class of the network, such as `EncoderClassifier`.
        options: constructor arguments of `network_class` in addition to the configuration, such as
            `num_classes`.
        table: mapping of weight names for the layers of the head.
        settings: settings of the task.
    """

    network_class: type[keras.Model]
    options: Mapping[str, Any]
    table: Table
    settings: LabelledSettings | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heads:
    """Rules for the heads of another library's models.

    Attributes:
        class_prefix: prefix of the model class names, such as "Bert"; "" derives it from the type.
        tasks: dict mapping a macaron_tf model class to the other library's model class for the same
            task.
        head_dropout: field of the configuration file with the dropout rate before a head.
    """

    model_type: str = ""
    class_prefix: str = ""
    tasks: Mapping[type, TaskHead] = dataclasses.field(default_factory=dict)
    head_dropout: str = "classifier_dropout"

    def class_name(self, suffix: str) -> str:
        return (self.class_prefix or self.model_type.capitalize()) + suffix

    def find_head(
        self, config: ForeignConfig, arrays: Arrays, settings: Mapping[str, Any]
    ) -> ReadHead | None:
        """Finds the task head of the model class that the field `architectures` names.

        Args:
            settings: macaron_tf settings, as returned by `Family.read_settings`.

        Returns:
            The head, or `None` if the family has no task head for the model class.
        """
        name = config.architecture
        with refuse_damage(config.where, "correct its fields architectures and id2label"):
            labels_by_id = (config.get("id2label") or {}).items()
            class_names = {int(index): str(label) for index, label in labels_by_id}
        tasks = {self.class_name(head.class_suffix): cls for cls, head in self.tasks.items()}
        if (network_class := tasks.get(name)) is None:
            return None
        head = self.tasks[network_class]
        problem, count_argument = config.get("problem_type"), CLASSES[network_class][3]
        [kernel] = find_entry("head/dense/kernel", head.table).names
        count = len(arrays.array(kernel))
        needs_several = problem == _MULTI_LABEL or network_class is EncoderTokenClassifier
        if count > 1 if problem == "regression" else count == 1 and needs_several:
            found = f"a head of {count} outputs with problem_type={problem!r}"
            raise config.refusal(found, "a number or several classes")
        indices = range(count if count_argument and count > 1 else 0)
        labels = tuple(class_names.get(index, "") for index in indices)
        if not all(labels) or len({*labels}) < len(labels):
            labels = default_labels(count)
        options = {count_argument: count} if count_argument else {}
        if network_class is not EncoderQuestionAnswering:
            rate = settings.get("dropout", 0.1)
            options["head_dropout"] = config.number(self.head_dropout, rate)
        if network_class in (EncoderClassifier, EncoderMultipleChoice):
            options["pooler_activation"] = head.activation
            if field := head.activation_field:
                activation = config.choice(field, _HEAD_ACTIVATIONS, head.activation)
                options["pooler_activation"] = activation
        is_reader = network_class is EncoderQuestionAnswering
        max_length = _MAX_LENGTH_SPANS if is_reader else _MAX_LENGTH
        max_length = min(settings.get("max_length", max_length), max_length)
        spans = SpanLimits(max_question=min(SpanLimits.max_question, max_length // 2))
        is_causal = network_class is CausalClassifier
        # A language model's classifier reads no special tokens such as [CLS].
        limits = Limits(max_length, spans, causal=is_causal, special=not is_causal)
        task = _task_of(config, network_class, labels)
        labelled = LabelledSettings(task=task, limits=limits)
        return ReadHead(network_class, options, head.table, labelled)

    def head_fields(self, model: ModelParts) -> dict[str, Any]:
        """Returns the fields of `config.json` for a task head (the inverse of `find_head`)."""
        network, network_class = model.network, type(model.network)
        head, task = self.tasks[network_class], labelled_task(model)
        fields = {"finetuning_task": task.name} if task and task.name in TASKS else {}
        kind = task.kind if task else CLASSES[network_class][2]
        if _HEAD_KINDS.get(kind, kind) != CLASSES[network_class][2]:
            raise UserError(f"no head of transformers answers a task of kind {kind!r}")
        if network_class is EncoderQuestionAnswering:
            return fields
        is_chooser = network_class is EncoderMultipleChoice
        network = network.classifier if is_chooser else network
        layer = network.head
        fields[self.head_dropout] = layer.dropout
        if head.activation_field:
            fields[head.activation_field] = network.pooler_activation
        if not is_chooser:
            # Without one name per class in the model, the names are LABEL_0, LABEL_1, ...
            names = task.labels if task else ()
            names = names if len(names) == layer.num_classes else default_labels(layer.num_classes)
            fields["id2label"] = dict(enumerate(names))
            fields["label2id"] = {name: index for index, name in enumerate(names)}
        if network_class is EncoderClassifier:
            problem = "single_label_classification" if layer.num_classes > 1 else "regression"
            fields["problem_type"] = _MULTI_LABEL if kind == "multilabel" else problem
        return fields

    def other_activation(self, network: keras.Model) -> str | None:
        """Returns the activation of a network's pooler if the family's head does not support it."""
        head = self.tasks.get(type(network))
        network = network.classifier if isinstance(network, EncoderMultipleChoice) else network
        if head is None or not isinstance(network, EncoderClassifier):
            return None
        activation = network.pooler_activation
        supported = _HEAD_ACTIVATIONS if head.activation_field else (head.activation,)
        return None if activation in supported else activation


def default_labels(count: int) -> tuple[str, ...]:
    """Returns Hugging Face's default class names: LABEL_0, LABEL_1, ..."""
    return tuple(f"LABEL_{index}" for index in range(count))


def _task_of(config: ForeignConfig, network_class: type, labels: tuple[str, ...]) -> Task:
    """Returns the task of a model.

    If `finetuning_task` in `config.json`, which transformers' GLUE script writes too, names a task
    that fits the head, the function returns this task. Otherwise, the function returns a default
    task for the class of the network, such as SQuAD for an `EncoderQuestionAnswering`. Examples of
    a default classification or tagging task consist of one text.
    """
    is_several = config.get("problem_type") == _MULTI_LABEL
    named = None if is_several else TASKS.get(str(config.get("finetuning_task")))
    if named and named.kind == CLASSES[network_class][2] and len(named.labels) == len(labels):
        return dataclasses.replace(named, labels=labels)
    if network_class is EncoderQuestionAnswering:
        return get_task("squad")
    if network_class is EncoderMultipleChoice:
        choice_names = tuple(str(index) for index in range(1, _NUM_CHOICES + 1))
        columns = tuple(f"choice{name}" for name in choice_names)
        table = TableSettings(text=("context",), choices=columns, classes=choice_names)
        return table.described(get_task("choose", own=True))
    name = "tag" if network_class is EncoderTokenClassifier else "classify" if labels else "regress"
    name = "multilabel" if is_several else name
    return TableSettings(text=("text",), classes=labels).described(get_task(name, own=True))


def labelled_task(model: ModelParts) -> Task | None:
    """Returns the definition of a model's task, or `None` if the model has none."""
    return model.settings.task if isinstance(model.settings, LabelledSettings) else None


def head_state(model: ModelParts, table: Table) -> dict[str, np.ndarray]:
    """Returns a task head's weights, and its pooler's if `table` has it, by PyTorch name."""
    network = model.network
    classifier = network.classifier if isinstance(network, EncoderMultipleChoice) else network
    state = layer_state(classifier.pooler, table) if "pooler/dense" in table else {}
    state |= layer_state(classifier.head, table)
    if isinstance(network, EncoderClassifier):
        kernel, bias = unstandardized_weights(model)
        name = table["head/dense"]
        state |= {f"{name}.weight": kernel.T, f"{name}.bias": bias}
    return state


def unstandardized_weights(model: ModelParts) -> tuple[np.ndarray, np.ndarray]:
    """Returns the float32 kernel `(D, C)` and bias `(C,)` of a head with C outputs.

    A regression head in macaron_tf predicts (score - mean) / deviation. The returned kernel and
    bias predict the score itself.
    """
    head = model.network.head
    kernel, bias = (value.astype("float64") for value in head.dense.get_weights())
    task = labelled_task(model) if head.num_classes == 1 else None
    deviation, mean = (task.deviation, task.mean) if task else (1.0, 0.0)
    return (kernel * deviation).astype("float32"), (bias * deviation + mean).astype("float32")
