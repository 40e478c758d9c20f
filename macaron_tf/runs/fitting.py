"""Fine-tuning on examples in memory, by the trainer of `macaron train`."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from etils import epath

from macaron_tf.engines.graph import columns_of
from macaron_tf.errors import UserError
from macaron_tf.io import paths
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.runs.finetuning import FinetuningRecipe
from macaron_tf.runs.starts import start_of
from macaron_tf.runs.trainer import Trainer
from macaron_tf.training.config import fine_tuning
from macaron_tf.training.locations import RECIPE

_KINDS = ("encoder", "reader")  # models that can get the head of a task, see `starts.KINDS`
_FILES = "examples"  # folder of the examples in the folder of a run


def fit_examples(
    model: ModelParts,
    folder: epath.Path,
    training: tuple[Iterable[Any], Iterable[Any]],
    validation: tuple[Iterable[Any], Iterable[Any]] | None,
    task: str | None,
    learning_rate: float,
    seed: int,
    **settings: Any,
) -> None:
    """Fine-tunes a model on texts and labels, or resumes the run in `folder`.

    The examples are saved in FOLDER/examples, so that `macaron evaluate` finds them.

    Args:
        training, validation: texts and labels; see `Pretrained.fit`. Without validation examples, a
            tenth of the training examples is held out.
        task: task on the user's own table; `None` means the task of the labels' type.
        settings: further settings of `FinetuningRecipe`.
    """
    texts, labels = [*training[0]], [*training[1]]
    task = task or _task_of(texts, labels)
    sets = {"train": _records(task, texts, labels)}
    pattern = "train"
    if validation is not None:
        pattern, sets["validation"] = "{split}", _records(task, *map(list, validation))
    start = start_of(model.card.checkpoint or model.card.title, model, _KINDS)
    longest = model.config.longest
    max_length = settings.pop("max_length", FinetuningRecipe.max_length)
    recipe = FinetuningRecipe(
        model=model.card.model,
        init=start.given,
        task=task,
        source=f"jsonl:{folder / _FILES / pattern}.jsonl",
        max_length=min(max_length, longest or max_length),
        training=fine_tuning(learning_rate, seed=seed, best_metric="score"),
        **settings,
    )
    for name, records in sets.items():
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        file, content = folder / _FILES / f"{name}.jsonl", "\n".join([*lines, ""]).encode()
        if (folder / RECIPE).exists() and not (file.exists() and paths.read_bytes(file) == content):
            raise UserError(f"{folder} is a run on other examples: choose another folder")
        paths.write_atomic(file, content)
    Trainer(recipe, folder, start=start).run()


def _task_of(texts: list[Any], labels: list[Any]) -> str:
    if labels and all(isinstance(label, float | np.floating) for label in labels):
        return "regress"
    if not any(isinstance(label, list | tuple | set | np.ndarray) for label in labels):
        return "classify"
    # Each word has a tag; a text, or a pair of texts, has any number of labels.
    return "tag" if isinstance(texts[0], list | np.ndarray) else "multilabel"


def _records(task: str, texts: list[Any], labels: list[Any]) -> list[dict[str, Any]]:
    """Returns records whose columns have the names that `TableSettings` looks for."""
    if not texts or len(texts) != len(labels):
        raise UserError(f"{len(texts)} texts have {len(labels)} labels: give each text a label")
    if task == "tag":
        columns = [{"tokens": [*words]} for words in texts]
        values: list[Any] = [[*map(str, tags)] for tags in labels]
    elif task == "choose":
        columns, values = texts, [*map(str, labels)]
    else:
        names = ("text", "text_b") if isinstance(texts[0], tuple | list) else ("text",)
        rows = zip(*columns_of(names, [texts])[0], strict=True)
        columns = [dict(zip(names, row, strict=True)) for row in rows]
        convert = {"regress": float, "multilabel": lambda names: sorted(map(str, names))}
        values = [*map(convert.get(task, str), labels)]
    return [{**row, "label": value} for row, value in zip(columns, values, strict=True)]
