"""The files that GLUE's and SuperGLUE's servers score."""

import json
import os
from collections.abc import Sequence

import numpy as np
from etils import epath

from macaron_tf.data import storage
from macaron_tf.data.tasks import SubmissionFile, Task
from macaron_tf.errors import UserError


def write_submission(
    task: Task,
    file: SubmissionFile,
    folder: str | os.PathLike,
    predictions: Sequence[float] | np.ndarray,
    indices: np.ndarray,
    groups: np.ndarray | None = None,
) -> epath.Path:
    """Writes the predictions of a test set as its server reads them.

    GLUE: two tab-separated columns under `index` and `prediction`; SuperGLUE: a JSON object a line,
    of an example for BoolQ, of a paragraph with its questions and answers for MultiRC. All in
    ascending order of the benchmark's numbers, whatever the order given.

    Args:
        task: the task.
        file: one of its `submissions`.
        folder: where the file goes.
        predictions: (N,) classes or scores, such as `evaluation.glue.decide` makes.
        indices: (N,) the benchmark's number of each example (`Examples.indices`).
        groups: (N, 2) paragraph and question of each, for a grouped task (`Examples.groups`).

    Returns:
        The file's path.

    Raises:
        UserError: a prediction is not finite; the place cannot be written.
        ValueError: arrays of unequal length, an index twice, no groups for a grouped task.
    """
    predictions, indices = np.asarray(predictions), np.asarray(indices)
    if predictions.shape != indices.shape or indices.ndim != 1:
        raise ValueError(f"{predictions.shape} predictions for {indices.shape} indices")
    if len(np.unique(indices)) != len(indices):
        raise ValueError(f"{file.name}: an index occurs twice")
    if not np.isfinite(predictions).all():
        raise UserError(
            f"{file.name} cannot be written: a prediction is not a finite number; "
            "use a model whose training did not diverge"
        )
    if task.grouped:
        if groups is None or len(groups) != len(indices):
            raise ValueError(f"{file.name} needs the group of each example")
        lines = _paragraphs(predictions, indices, groups)
    else:
        order = np.argsort(indices)
        answers = [(int(indices[i]), _spelled(task, predictions[i])) for i in order]
        if file.name.endswith(".jsonl"):
            lines = [json.dumps({"idx": index, "label": answer}) for index, answer in answers]
        else:
            lines = ["index\tprediction"] + [f"{index}\t{answer}" for index, answer in answers]
    path = storage.as_path(folder) / file.name
    storage.write_aside(path, "".join(f"{line}\n" for line in lines).encode())
    return path


def _spelled(task: Task, prediction: float) -> str:
    if not task.regression:
        return task.server_labels[int(prediction)] if task.server_labels else str(int(prediction))
    if task.score_range is not None:
        prediction = np.clip(prediction, *task.score_range)
    return f"{prediction:.3f}"


def _paragraphs(predictions, indices, groups) -> list[str]:
    """MultiRC's nesting; the numbers of questions and answers run through the whole set."""
    paragraphs: dict[int, dict[int, list[dict]]] = {}
    for i in np.lexsort((indices, groups[:, 1], groups[:, 0])):
        paragraph, question = (int(number) for number in groups[i])
        answer = {"idx": int(indices[i]), "label": int(predictions[i])}
        paragraphs.setdefault(paragraph, {}).setdefault(question, []).append(answer)
    return [
        json.dumps(
            {
                "idx": paragraph,
                "passage": {
                    "questions": [
                        {"idx": question, "answers": answers}
                        for question, answers in questions.items()
                    ]
                },
            }
        )
        for paragraph, questions in paragraphs.items()
    ]
