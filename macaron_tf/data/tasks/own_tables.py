"""Tables of the user's own: columns and classes that the table tells, and examples held out of it.

TableSettings().filled(get_task("classify", own=True), "tsv:mine.tsv")
"""

import collections
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt, Lt

from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.examples import read_examples, warn_alike
from macaron_tf.data.tasks.tables import TABLES, Table, parse_task_source
from macaron_tf.data.tasks.tags import FORMS, as_iob2, scheme_of, sentences_of, strays_among
from macaron_tf.errors import UserError
from macaron_tf.settings import Natural, Positive, Settings

# Names of a column of texts, and of the one with second texts beside it.
_TEXTS = {
    "text": "text_b",
    "text_a": "text_b",
    "sentence": "sentence2",
    "sentence1": "sentence2",
    "premise": "hypothesis",
    "question1": "question2",
}
_WORDS = dict.fromkeys(("tokens", "words", *_TEXTS), "")
# Of a choice: names of the context's column, beside which the question is `question`.
_CONTEXTS = dict.fromkeys(("context", "text", "article", "passage", "premise"), "question")
_LABELS = ("label", "tags")
_MANY = 20  # classes; more of them are suspected where few lines share one


@dataclasses.dataclass(frozen=True)
class TableSettings(Settings):
    """Columns and classes of classify, regress, tag and choose, and what is held out of a file.

    Attributes:
        text: column of the text, or several to be joined by spaces; by default the header's `text`,
            `text_a`, `sentence`, `sentence1`, `premise` or `question1` (of tags `tokens` or
            `words`, of choices `context`, `text`, `article`, `passage` or `premise`), or the only
            column beside the label's and the choices'.
        text_b: column of a second text; beside a first one that was found it is `text_b`,
            `sentence2`, `hypothesis` or `question2`, whichever belongs there; of choices the
            question that they answer, `question`.
        choices: columns of the choices; by default the header's `choice1`, `choice2` and so on. An
            example may leave some empty.
        label: column of the class, the score or the tags; by default `label` (of tags also `tags`).
        classes: names of the classes or tags, class 0 first; by default those that a set of
            TensorFlow Datasets names, or those of the training table, sorted; of choices their
            numbers from 1.
        usual_tag: of a word without a piece, such as a zero-width space, where no tag is O; by
            default the commonest of the training table.
        mean, deviation: of the scores, which a model learns as (score - mean) / deviation; by
            default of the training table.
        held_out: share of the examples that are the development set, where the file's name has no
            {split}, or the set no development split.
        seed: draws those examples.
    """

    section: ClassVar[str] = "table"

    text: tuple[str, ...] = ()
    text_b: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    label: str | None = None
    classes: tuple[str, ...] = ()
    usual_tag: str | None = None
    mean: float | None = None
    deviation: Positive | None = None
    held_out: Annotated[float, Gt(0), Lt(1)] = 0.1
    seed: Natural = 1

    def check(self) -> None:
        if len(set(self.classes)) < len(self.classes) or len(self.classes) == 1:
            raise self.error(f"classes={self.classes!r} must be two names or more, each once")
        if self.usual_tag and self.classes and self.usual_tag not in self.classes:
            raise self.error(f"usual_tag={self.usual_tag!r} is none of {', '.join(self.classes)}")

    def check_task(self, task: Task) -> None:
        """Refuses columns and classes for a task that has its own."""
        names = ("text", "text_b", "choices", "label", "classes", "mean", "deviation", "usual_tag")
        for name in names:
            if getattr(self, name) not in ((), None) and not task.own:
                raise self.error(
                    f"{name} is of the tasks classify, regress, tag and choose: {task.name} has "
                    "columns and classes of its own"
                )
        if self.choices and task.kind != "choice":
            raise self.error(f"choices={self.choices!r} are of the task choose, not {task.name}")

    def described(self, task: Task) -> Task:
        """A task with these columns and classes, where they are the user's own."""
        if not task.own:
            return task
        fields = dict(first=self.text, second=self.text_b, labels=self.classes)
        if task.kind == "choice":
            fields |= dict(question=self.text_b, second=self.choices)
        fields |= dict(label=self.label or "label", usual_tag=self.usual_tag, mean=self.mean or 0.0)
        if task.kind == "tags" and not scheme_of(self.classes):
            fields |= dict(metrics=("accuracy",))
        return dataclasses.replace(task, **fields, deviation=self.deviation or 1.0)

    def filled(self, task: Task, source: str | None, tfds: Tfds | None = None) -> "TableSettings":
        """These settings with the columns and classes that the training split of a source tells."""
        if not task.own:
            return self
        forms = FORMS if task.kind == "tags" else TABLES
        parsed = parse_task_source(task, source, *forms)
        table = None if parsed.kind == "conll" else Table(parsed, "train", tfds)
        found = self._with_columns(task, table) if table else self
        known = found.described(task)
        names = table.class_names.get(known.label) if table else None
        if task.kind == "tags":
            if names and not self.classes:
                found = _replaced(found, str(source), _tags(names))
            if found.classes and ("O" in found.classes or found.usual_tag):
                return found
            counts = _counted(sentences_of(known, parsed, "train", tfds), not found.classes)
            found = found if found.classes else _replaced(found, str(source), _tags(counts))
            usual = None if "O" in found.classes else max(sorted(counts), key=counts.get)
            return dataclasses.replace(found, usual_tag=found.usual_tag or usual)
        if task.metrics == ("pearson",):
            if self.deviation:
                return found
            scores = read_examples(known, "train", tfds, source).labels.astype(np.float64)
            if np.ptp(scores) == 0:
                raise UserError(
                    f"{source}: all {len(scores)} scores are {scores[0]:g}: give examples of "
                    "different scores"
                )
            return dataclasses.replace(
                found, mean=float(scores.mean()), deviation=float(scores.std())
            )
        if task.kind == "choice":
            count = len(found.choices)
            names = self.classes or names or tuple(map(str, range(1, count + 1)))
            if len(names) != count:
                raise UserError(
                    f"{source}: {count} columns of choices, and {len(names)} classes "
                    f"{', '.join(names)}: give as many by --set table.classes"
                )
        if self.classes:
            return found
        return _replaced(found, str(source), names or _classes(known, table))

    def _with_columns(self, task: Task, table: Table) -> "TableSettings":
        """These settings with the columns that a table's header names."""
        header = [name for name in table.header if name]
        if not header:
            raise UserError(
                f"{table.path} is empty: give a header and a line for each example, tabs between"
            )
        labels = _LABELS if task.kind == "tags" else _LABELS[:1]
        label = self.label or next((name for name in labels if name in header), labels[0])
        text, text_b, choices = self.text, self.text_b, self.choices
        if task.kind == "choice":
            choices = choices or table.choices
            if len(choices) < 2:
                raise UserError(
                    f"{table.path}: {len(choices) or 'no'} column of a choice among "
                    f"{', '.join(map(repr, header))}: name them choice1, choice2 and so on, or by "
                    '--set \'table.choices=("COLUMN", "COLUMN")\''
                )
        if not text:
            pairs = {"tags": _WORDS, "choice": _CONTEXTS}.get(task.kind, _TEXTS)
            named = [name for name in pairs if name in header]
            others = [name for name in header if name not in (label, *choices)]
            if len(named or others) != 1:
                raise UserError(
                    f"{table.path}: which column of {', '.join(map(repr, header))} "
                    "holds the text? --set table.text=COLUMN (and table.text_b, table.label)"
                )
            text = tuple(named or others)
            if not text_b and pairs.get(text[0]) in header:
                text_b = (pairs[text[0]],)
        # Refuses columns that are missing, and a table without an example.
        next(iter(table.rows((*text, *text_b, *choices, label), (*choices, label))))
        found = dict(text=text, text_b=text_b, choices=choices, label=label)
        return dataclasses.replace(self, **found)

    def held(self, labels: Sequence | np.ndarray, source: str) -> np.ndarray:
        """A mask (N,) of the examples held out: a like share of each class and score.

        Of 1 / `held_out` examples of neighbouring labels one is drawn, and examples of equal labels
        are in a drawn order.
        """
        total = len(labels)
        draws, among = np.random.default_rng(self.seed).random((2, total))
        flat = labels if isinstance(labels, np.ndarray) else np.zeros(total)
        order = np.lexsort((draws, flat))
        parts = np.floor(np.arange(total) * self.held_out).astype(int)  # of the examples in order
        starts = np.unique(parts, return_index=True)[1][: int(total * self.held_out)]
        found = np.zeros(total, bool)
        found[order[np.lexsort((among, parts))[starts]]] = True
        if not found.any() or found.all():
            raise UserError(
                f"{source} has {total} examples, of which table.held_out={self.held_out:g} leaves "
                "none to learn from or none to validate on: give more, or a file of each split "
                "with {split} in the name"
            )
        print(
            f"{source}: {found.sum():,} of {total:,} examples are held out for validation, drawn "
            f"by table.seed={self.seed} (table.held_out={self.held_out:g})",
            file=sys.stderr,
        )
        return found


def _replaced(settings: TableSettings, source: str, classes: Sequence[str]) -> TableSettings:
    if len(classes) < 2:
        raise UserError(
            f"{source}: all labels are {classes[0]!r}: give examples of two classes or more"
        )
    return dataclasses.replace(settings, classes=tuple(classes))


def _classes(task: Task, table: Table) -> list[str]:
    """The labels of a table, sorted."""
    found, rows = {}, 0
    for where, cells in table.rows((*task.first, task.label), (task.label,)):
        if not (label := cells[-1].strip()):
            raise UserError(
                f"{where}: the label in column {task.label!r} is empty; fill it in or take the "
                "line out"
            )
        found.setdefault(label, where)
        rows += 1
    if len(found) > max(_MANY, rows // 2):
        raise UserError(
            f"{table.path}: column {task.label!r} has {len(found):,} different labels in {rows:,} "
            "lines: name the column of the class by table.label, or train `regress` on scores"
        )
    warn_alike(found)
    return sorted(found)


def _counted(sentences: Iterable[tuple], checked: bool) -> collections.Counter:
    """Counts the tags of `sentences_of`, converted to IOB2.

    Args:
        checked: refuse what looks like a mistake among the tags of entities, such as one `0` for O,
            and tell of types that are met once or twice.
    """
    counts, places = collections.Counter(), {}
    for _, tags, where in sentences:
        for tag, place in zip(as_iob2(tags), where, strict=True):
            counts[tag] += 1
            places.setdefault(tag, place)
    if checked and (strays := strays_among(counts)):
        tag, others = strays[0], sorted({*counts} - {*strays})
        raise UserError(
            f"{places[tag]}: the tag {tag[:40]!r}, met {counts[tag]:,} time(s), is not of the kind "
            f"of {', '.join(others[:5])}: correct it, or give every tag by --set table.classes"
        )
    if checked:
        warn_alike(places)
    types = collections.Counter(tag[2:] for tag in counts.elements() if tag != "O")
    rare = [f"{tag[:40]!r} ({places[tag]})" for tag in places if 0 < types[tag[2:]] < 3]
    if checked and scheme_of(counts) and rare:
        print(f"warning: met once or twice, a misprint? {', '.join(rare[:5])}", file=sys.stderr)
    return counts


def _tags(tags: Iterable[str]) -> list[str]:
    """The classes of tags: O first and all of each type where they mark entities, or sorted."""
    if not (scheme := scheme_of(tags)):
        return sorted(tags)
    types = sorted({tag[2:] for tag in tags} - {""})
    return ["O", *(f"{begins}-{kind}" for kind in types for begins in scheme)]
