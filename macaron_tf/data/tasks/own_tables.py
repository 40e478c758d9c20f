"""Tasks on the user's own table: detection of columns and classes, and held-out examples."""

import collections
import dataclasses
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt, Lt

from macaron_tf.data.sources.names import TABLE_FORMS, join_names
from macaron_tf.data.sources.records import Records, open_records
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks import tags as tagging
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.examples import label_names, read_examples
from macaron_tf.errors import UserError
from macaron_tf.settings import Natural, Positive, ReadIf, Settings

# Keys are default names of the text column. Values are the matching names of a second text column.
_TEXT_COLUMNS = {
    **dict.fromkeys(("text", "text_a"), "text_b"),
    **dict.fromkeys(("sentence", "sentence1"), "sentence2"),
    "premise": "hypothesis",
    "question1": "question2",
}
_SENTENCE_COLUMNS = dict.fromkeys(("tokens", "words", *_TEXT_COLUMNS), "")
# Default names of the context column for multiple choice. The question column is named `question`.
_CONTEXT_COLUMNS = dict.fromkeys(("context", "text", "article", "passage", "premise"), "question")
_IF_OWN = ReadIf(lambda recipe: recipe.task_definition.own)
_IF_CHOICE = ReadIf(lambda recipe: recipe.task_definition.name == "choose")
_MAX_CLASSES = 20  # maximum number of classes, unless half the number of lines is larger


@dataclasses.dataclass(frozen=True)
class TableSettings(Settings):
    """Columns and classes of a table for the tasks classify, multilabel, regress, tag and choose.

    Attributes:
        text: column of the text. Several columns are joined by spaces. The default is the only
            column of the table among `text`, `text_a`, `sentence`, `sentence1`, `premise` and
            `question1`. In the task tag, `tokens` and `words` are also possible. In the task
            choose, the possible names are `context`, `text`, `article`, `passage` and `premise`. If
            the table has no column with these names, the default is the only column besides the
            label and the choices. A table with several such columns needs this setting.
        text_b: column of a second text, or of a question that the choices answer in the task
            choose. If `text` is not set, the default is the column that matches the text column, if
            the table has it: `text_b`, `sentence2`, `hypothesis` or `question2`, or `question` in
            the task choose. If `text` is set, the default is no second text. `predict` and exports
            call the two texts of a pair `first` and `second`.
        choices: columns of the choices (default: `choice1`, `choice2` and so on). An example may
            leave some choices empty.
        label: column of the class, the classes separated by commas (multilabel), the score or the
            tags. The default is `label`, or `tags` in the
            task tag if the table has no column `label`.
        classes: names of the classes or tags, class 0 first. By default the names come from the
            dataset of TensorFlow Datasets, the Parquet file or the saved Hugging Face dataset. If
            the source has no names, the default is the sorted labels of the training table, and 1,
            2 and so on for the task choose.
        mean: mean of the scores in regression. The model learns (score - mean) / deviation. The
            default is computed from the training table.
        deviation: standard deviation of the scores in regression. The default is computed from the
            training table.
        held_out: share of the examples that are held out for validation if the file name has no
            {split}, or if the dataset has no validation split.
        seed: seed for drawing the held-out examples.
    """

    section: ClassVar[str] = "data.table"

    text: Annotated[tuple[str, ...], _IF_OWN] = ()
    text_b: Annotated[tuple[str, ...], _IF_OWN] = ()
    choices: Annotated[tuple[str, ...], _IF_CHOICE] = ()
    label: Annotated[str | None, _IF_OWN] = None
    classes: Annotated[tuple[str, ...], _IF_OWN] = ()
    mean: Annotated[float | None, _IF_OWN] = None
    deviation: Annotated[Positive | None, _IF_OWN] = None
    held_out: Annotated[float, Gt(0), Lt(1)] = 0.1
    seed: Natural = 1

    def check(self) -> None:
        if len(set(self.classes)) < len(self.classes) or len(self.classes) == 1:
            raise self.error(f"classes={self.classes!r} must be two or more different names")

    def described(self, task: Task) -> Task:
        """Returns a copy of `task` with the columns, classes and other values of these settings.

        In the task tag, the metric is accuracy if the tags mark no entities. A task with fixed
        columns and classes is returned unchanged.
        """
        if not task.own:
            return task
        fields = dict(first=self.text, second=self.text_b, labels=self.classes)
        if task.kind == "choice":
            fields |= dict(question=self.text_b, second=self.choices)
        if task.kind == "tags" and not tagging.scheme_of(self.classes):
            fields |= dict(metrics=("accuracy",))
        scale = dict(mean=self.mean or 0.0, deviation=self.deviation or 1.0)
        return dataclasses.replace(task, **fields, **scale, label=self.label or "label")

    def filled(self, task: Task, source: str | None, tfds: Tfds | None = None) -> "TableSettings":
        """Returns a copy of these settings in which missing values come from a training table.

        Missing column names come from the header. Missing classes come from the dataset, or from
        the labels of the examples. For the task choose, missing classes are 1, 2 and so on if the
        dataset has no class names. For the task regress, a missing `mean` or `deviation` is
        computed from the scores. Settings that have a value are kept. For a task with fixed columns
        and classes, these settings are returned unchanged.
        """
        if not task.own:
            return self
        forms = tagging.TAG_FORMS if task.kind == "tags" else TABLE_FORMS
        parsed = task.parse_source(source, *forms)
        table = None if parsed.kind == "conll" else open_records(parsed, "train", tfds)
        settings = self._with_columns(task, table) if table else self
        described = settings.described(task)
        if task.metrics == ("pearson",):
            if self.mean is not None and self.deviation:
                return settings
            scores = read_examples(described, "train", tfds, source).labels.astype(np.float64)
            if np.ptp(scores) == 0 and not self.deviation:
                raise UserError(f"{source}: all {len(scores):,} scores are {scores[0]:g}")
            mean = float(scores.mean()) if self.mean is None else self.mean
            deviation = self.deviation or float(scores.std())
            return dataclasses.replace(settings, mean=mean, deviation=deviation)
        classes = self.classes or (table.class_names.get(described.label) if table else ())
        if task.kind == "tags" and not self.classes:
            sentences = () if classes else tagging.sentences_of(described, parsed, "train", tfds)
            classes = _tag_classes(classes or _tags_by_count(sentences), source)
        elif task.kind == "choice":
            count = len(settings.choices)
            classes = classes or tuple(map(str, range(1, count + 1)))
            if len(classes) != count or count < 2:
                mend = "name them choice1, choice2 and so on, or set data.table.choices"
                found = f"{source} has {count} choice columns and {len(classes)} classes"
                raise UserError(f"{found}: {mend} and as many data.table.classes")
        elif not classes:
            classes = _classes(described, table)
        if len(classes) < 2:
            raise UserError(f"{source}: all labels are {classes[0]!r}, but two classes are needed")
        return dataclasses.replace(settings, classes=tuple(classes))

    def _with_columns(self, task: Task, table: Records) -> "TableSettings":
        """Returns a copy of these settings, with missing columns from the header of `table`."""
        header = [name for name in table.fields if name]
        labels = ("label", "tags") if task.kind == "tags" else ("label",)
        label = self.label or next((name for name in labels if name in header), labels[0])
        text, text_b, choices = self.text, self.text_b, self.choices
        if task.kind == "choice" and not choices:
            found = (name for name in header if re.fullmatch(r"choice\d+", name))
            choices = tuple(sorted(found, key=lambda name: int(name[len("choice") :])))
        if not text:
            by_kind = {"tags": _SENTENCE_COLUMNS, "choice": _CONTEXT_COLUMNS}
            pairs = by_kind.get(task.kind, _TEXT_COLUMNS)
            default_names = [name for name in pairs if name in header]
            others = [name for name in header if name not in (label, *choices)]
            if len(default_names or others) != 1:
                columns = f"which of the columns {join_names(header)} contains the text"
                mend = "set data.table.text, and if needed data.table.text_b and data.table.label"
                raise UserError(f"{table.place} does not show {columns}: {mend}")
            text = tuple(default_names or others)
            if not text_b and pairs.get(text[0]) in header:
                text_b = (pairs[text[0]],)
        # Reading one row raises a UserError if a column is missing or there are no examples.
        next(table.texts((*text, *text_b, *choices, label), (*choices, label)))
        return dataclasses.replace(self, text=text, text_b=text_b, choices=choices, label=label)

    def held_out_mask(self, labels: Sequence | np.ndarray, source: str) -> np.ndarray:
        """Draws the held-out examples, stratified by class or score.

        The method prints their number to stderr.

        The examples are shuffled and then sorted by label. From every 1 / `held_out` consecutive
        examples, one example is drawn.

        Args:
            labels: N labels. If this is not a NumPy array of classes or scores, but a list with
                the tags of each sentence, the examples are not sorted.
        """
        total = len(labels)
        order_keys, choice_keys = np.random.default_rng(self.seed).random((2, total))
        has_order = isinstance(labels, np.ndarray) and labels.ndim == 1
        order = np.lexsort((order_keys, labels) if has_order else (order_keys,))
        # strata[i]: stratum of sorted example i. One example of each stratum is drawn.
        strata = np.floor(np.arange(total) * self.held_out).astype(int)
        starts = np.unique(strata, return_index=True)[1][: int(total * self.held_out)]
        is_held_out = np.zeros(total, bool)
        is_held_out[order[np.lexsort((choice_keys, strata))[starts]]] = True
        if not is_held_out.any() or is_held_out.all():
            raise UserError(f"data.table.held_out={self.held_out:g} of {total} leaves a part empty")
        count = f"{is_held_out.sum():,} of {total:,} examples are held out for validation"
        print(f"{source}: {count}, drawn by data.table.seed={self.seed}", file=sys.stderr)
        return is_held_out


def _classes(task: Task, table: Records) -> list[str]:
    """Returns the distinct labels of a table in alphabetical order."""
    found, rows = set(), 0
    for where, cells in table.texts((*task.first, task.label), (task.label,), task.several):
        labels = label_names(cells[-1]) if task.several else [cells[-1].strip()]
        if not all(labels):
            raise UserError(f"{where}: the label in column {task.label!r} is empty")
        found.update(labels)
        rows += 1
    if len(found) > max(_MAX_CLASSES, rows // 2):
        many = f"column {task.label!r} has {len(found):,} different labels"
        mend = "give --set data.table.label=COLUMN, or train the task regress"
        raise UserError(f"{table.place}: {many}: {mend}")
    return sorted(found)


def _tags_by_count(sentences: Iterable[tuple]) -> list[str]:
    """Returns the distinct tags of sentences after conversion to IOB2, the most frequent first."""
    counts = collections.Counter(tag for _, tags, _ in sentences for tag in tagging.as_iob2(tags))
    return [tag for tag, _ in counts.most_common()]


def _tag_classes(tags: Sequence[str], source: str | None) -> list[str]:
    """Returns the sorted tags, or for entities O and then all tags of each type."""
    if not any(map(tagging.ENTITY.fullmatch, tags)):
        return sorted(tags)
    if not (scheme := tagging.scheme_of(tags)):
        shown = ", ".join(tags[:-6:-1])  # mistakes are rare, so the rarest tags come first
        known = "IOB, BIOES, BILOU, BMES or BMEWO: correct them, or give data.table.classes"
        raise UserError(f"{source}: the tags {shown} are not all O and entities by {known}")
    types = sorted({tag[2:] for tag in tags if tag != "O"})
    return ["O", *(f"{prefix}-{entity_type}" for entity_type in types for prefix in scheme)]
