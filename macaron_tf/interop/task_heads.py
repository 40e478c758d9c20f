"""Reads and writes the heads of fine-tuned models: network, classes, and the task's description.

The layers of a head are in the table of its family, `Family.tasks`.
"""

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from macaron_tf.data.tasks.definitions import TASKS, Task, get_task
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.interop.arrays import (
    Arrays,
    Family,
    ForeignConfig,
    Table,
    TaskHead,
    entry_of,
)
from macaron_tf.interop.writing import layer_state
from macaron_tf.io.paths import refuse_damage
from macaron_tf.layers.heads import ClassificationHead
from macaron_tf.models.tasks import (
    CausalClassifier,
    EncoderChooser,
    EncoderClassifier,
    EncoderSpanReader,
    EncoderTagger,
)
from macaron_tf.pretrained import Pretrained
from macaron_tf.tasks.labelled import Limits, SpanLimits

RECORD = "macaron_tf"  # field of config.json that describes the task of a model of this library
# Kinds of tasks (see `Task`) by the class of the network.
_KINDS = {
    EncoderClassifier: "classification",
    CausalClassifier: "classification",
    EncoderTagger: "tags",
    EncoderChooser: "choice",
    EncoderSpanReader: "spans",
}
_CLASSES_OF = {  # name of the network's argument for the number of classes
    EncoderClassifier: "num_classes",
    CausalClassifier: "num_classes",
    EncoderTagger: "num_tags",
}
# These have the same names in Hugging Face's library and in ours.
HEAD_ACTIVATIONS = ("tanh", "gelu", "relu", "silu")
_CHOICES = 4  # most choices of a foreign model, which does not record their number
_LONGEST, _LONGEST_SPANS = 128, 384  # tokens of a row of foreign models, which do not record it


@dataclasses.dataclass(frozen=True)
class ReadHead:
    """The head of a task that was found in another library's folder.

    Attributes:
        kind: our class of the network.
        options: arguments of `kind` besides the configuration.
        head: the family's model for the task.
        fields: fields of `Pretrained`: the task, its labels and the results.
    """

    kind: type[keras.Model]
    options: Mapping[str, Any]
    head: TaskHead
    fields: Mapping[str, Any]


def find_head(
    family: Family,
    config: ForeignConfig,
    arrays: Arrays,
    settings: Mapping[str, Any],
    special: bool = True,
) -> ReadHead | None:
    """Finds the head that the field `architectures` names.

    Args:
        family: the model's family.
        config: its settings.
        arrays: its weights.
        settings: our settings, as `Family.read_settings` returns them.
        special: whether rows have special ids, if the folder does not describe our task.

    Returns:
        The head; None for a model without one, or, with a note on stderr, for a head that our
        models do not have.
    """
    with refuse_damage(config.where, "restore its architectures and id2label"):
        name = str((config.get("architectures") or [""])[0])
        named = {
            int(number): str(label) for number, label in (config.get("id2label") or {}).items()
        }
    kinds = {family.classes + head.ending: kind for kind, head in family.tasks.items()}
    if name not in kinds:
        return None
    kind, problem = kinds[name], config.get("problem_type")
    head = family.tasks[kind]
    entry, [matrix], _ = entry_of("head/dense/kernel", head.table)
    matrix = f"{matrix}.weight" if entry is None else matrix
    count, reason = 0, f"the weights have no {matrix}"
    if arrays.has(matrix):
        count, reason = len(arrays.arrays[matrix]), ""
    if problem == "multi_label_classification" or (problem == "regression" and count > 1):
        reason = f"no task here has problem_type={problem!r} of {count} outputs"
    elif kind is EncoderTagger and count == 1:
        reason = "a tagger has two classes or more"
    if reason:
        print(f"note: the head of {name} is not read, because {reason}", file=sys.stderr)
        return None
    labels = ()
    if kind in _CLASSES_OF and count > 1:
        labels = tuple(named.get(number, "") for number in range(count))
        if not all(labels) or len({*labels}) < count:
            labels = default_labels(count)
    options = {_CLASSES_OF[kind]: count} if kind in _CLASSES_OF else {}
    if kind is not EncoderSpanReader:
        usual = settings.get("dropout", 0.1)
        given = config.get(family.head_dropout) is not None
        options["head_dropout"] = config.number(family.head_dropout, usual) if given else usual
    if kind in (EncoderClassifier, EncoderChooser):
        known = dict(zip(HEAD_ACTIVATIONS, HEAD_ACTIVATIONS, strict=True))
        field, usual = head.activation_field, head.activation
        options["pooler_activation"] = config.choice(field, known, usual) if field else usual
    task, limits, metrics = _recorded(config, kind, labels) or (
        _task_of(config, kind, labels),
        _limits_of(kind, settings, special),
        {},
    )
    described = {"task": dataclasses.asdict(task), "limits": dataclasses.asdict(limits)}
    fields = {"labels": labels, "labelled": described, "results": {"metrics": metrics}}
    return ReadHead(kind, options, head, fields)


def _limits_of(kind: type, settings: Mapping[str, Any], special: bool) -> Limits:
    """Chooses the limits of rows for a model that another library trained."""
    longest = _LONGEST_SPANS if kind is EncoderSpanReader else _LONGEST
    longest = min(settings.get("max_length", longest), longest)
    spans = SpanLimits(max_question=min(SpanLimits.max_question, longest // 2))
    return Limits(longest, spans, causal=kind is CausalClassifier, special=special)


def default_labels(count: int) -> tuple[str, ...]:
    """Returns Hugging Face's default names of classes: LABEL_0, LABEL_1, ..."""
    return tuple(f"LABEL_{number}" for number in range(count))


def _recorded(
    config: ForeignConfig, kind: type, labels: tuple[str, ...]
) -> tuple[Task, Limits, dict[str, float]] | None:
    """Reads the task, limits and metrics that this library recorded; None: no record of this head.

    The record may be older than the head, because transformers keeps unknown fields when a model is
    trained further.
    """
    record = config.get(RECORD)
    if record is None:
        return None
    with refuse_damage(config.where, f"restore its {RECORD}, or take that out"):
        task, limits = Task(**record["task"]), Limits(**record["limits"])
        metrics = {str(name): float(value) for name, value in record["metrics"].items()}
    if task.kind != _KINDS[kind] or (kind in _CLASSES_OF and len(task.labels) != len(labels)):
        return None
    if kind in _CLASSES_OF and task.labels != labels:
        usual = task.usual_tag if task.usual_tag in labels else None
        task = dataclasses.replace(task, labels=labels, usual_tag=usual)
    return task, limits, metrics


def _task_of(config: ForeignConfig, kind: type, labels: tuple[str, ...]) -> Task:
    """Describes the task of a model that another library trained; by default it has one text."""
    if kind is EncoderSpanReader:
        return get_task("squad")
    if kind is EncoderChooser:
        numbers = tuple(str(number) for number in range(1, _CHOICES + 1))
        columns = tuple(f"choice{number}" for number in numbers)
        table = TableSettings(text=("context",), choices=columns, classes=numbers)
        return table.described(get_task("choose", own=True))
    # transformers' script for GLUE writes the name of the task.
    known = TASKS.get(config.get("finetuning_task"))
    if known and known.kind == _KINDS[kind] and len(known.labels) == len(labels):
        return dataclasses.replace(known, labels=labels)
    name = "tag" if kind is EncoderTagger else "classify" if labels else "regress"
    return TableSettings(text=("text",), classes=labels).described(get_task(name, own=True))


def head_fields(model: Pretrained, family: Family, kind: type) -> dict[str, Any]:
    """Makes the fields of `config.json` about a task's head; the inverse of `find_head`."""
    network, head = model.network, family.tasks[kind]
    fields = {**head.settings, **_record(model)}
    if kind is EncoderSpanReader:
        return fields
    chooser = kind is EncoderChooser
    fields[family.head_dropout] = (
        network.classifier.head.dropout if chooser else network.head.dropout
    )
    if head.activation_field:
        activation = pooler_activation(network)
        fields[head.activation_field] = activation
    if not chooser:
        fields |= _label_fields(model, network.head)
    if kind in (EncoderClassifier, CausalClassifier):
        several = network.head.num_classes > 1
        fields["problem_type"] = "single_label_classification" if several else "regression"
    return fields


def pooler_activation(network: EncoderClassifier | EncoderChooser) -> str:
    """Returns the name of the activation in a network's pooler."""
    if isinstance(network, EncoderChooser):
        network = network.classifier
    return network.pooler_activation


def _label_fields(model: Pretrained, head: ClassificationHead) -> dict[str, Any]:
    """Makes the fields `id2label` and `label2id` with the names of a head's classes."""
    names = model.labels or tuple(model.labelled.get("task", {}).get("labels", ()))
    if len(names) != head.num_classes:
        names = default_labels(head.num_classes)
    numbers = {name: number for number, name in enumerate(names)}
    return {"id2label": dict(enumerate(names)), "label2id": numbers}


def _record(model: Pretrained) -> dict[str, Any]:
    """Makes the field that describes the task for this library.

    Its mean and deviation are 0 and 1, because `unstandardized` makes them part of the head.
    """
    if not {"task", "limits"} <= model.labelled.keys():
        return {}
    task = {**model.labelled["task"], "mean": 0.0, "deviation": 1.0}
    metrics = model.results.get("metrics") or {}
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return {RECORD: {"task": task, "limits": model.labelled["limits"], "metrics": metrics}}


def head_state(model: Pretrained, table: Table) -> dict[str, np.ndarray]:
    """Collects the weights of a task's head, with its pooler if it has one, by PyTorch names."""
    network = model.network
    reader = network.classifier if isinstance(network, EncoderChooser) else network
    state = layer_state(reader.pooler, table) if "pooler/dense" in table else {}
    state |= layer_state(reader.head, table)
    if isinstance(network, EncoderClassifier):
        kernel, bias = unstandardized(model)
        name = table["head/dense"]
        state |= {f"{name}.weight": kernel.T, f"{name}.bias": bias}
    return state


def unstandardized(model: Pretrained) -> tuple[np.ndarray, np.ndarray]:
    """Returns a classifier's kernel `(D, C)` and bias `(C,)`, float32, for unstandardized scores.

    Our head of a regression predicts (score - mean) / deviation; the returned one predicts scores.
    """
    head = model.network.head
    kernel, bias = (value.astype("float64") for value in head.dense.get_weights())
    task = model.labelled.get("task", {}) if head.num_classes == 1 else {}
    deviation, mean = task.get("deviation", 1.0), task.get("mean", 0.0)
    return (kernel * deviation).astype("float32"), (bias * deviation + mean).astype("float32")
