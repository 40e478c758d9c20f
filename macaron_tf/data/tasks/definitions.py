"""The tasks: the texts, classes, metrics and submission files of each."""

import dataclasses
from typing import Literal

from macaron_tf.errors import UserError
from macaron_tf.settings import Settings


@dataclasses.dataclass(frozen=True)
class SubmissionFile:
    """A file that a benchmark's server expects.

    Attributes:
        source: the source of its examples, as for `read_examples`.
        split: the split of that source.
    """

    name: str
    source: str
    split: str = "test"


@dataclasses.dataclass(frozen=True)
class Task(Settings):
    """A task on one text or two.

    Attributes:
        name: its name on command lines.
        first: fields of a record that make up the first text, joined by a space; the question, or
            the words of a sentence.
        second: fields of the second text, such as a question's context; none for a task on one
            text.
        labels: names of the classes, class 0 first; empty for regression. Of tags, in IOB2, "O" is
            the first.
        metrics: the papers' metrics; their mean is the main score.
        more_metrics: others worth reporting.
        kind: `"classification"` (or regression) of a text or two, `"spans"`, an
            answer to a question that stands in a context, `"tags"`, a class for each word, or
            `"choice"`, which of the `second` fields goes with the first text.
        source: the source of its examples, as for `read_examples`, `read_questions` or
            `read_tagged`; None = always named.
        validation_splits: the development sets, the one that decides first.
        score_range: least and greatest score of a regression task; None = any.
        unanswerable: whether a question may have no answer in its context.
        symmetric: whether the order of the two texts means nothing.
        submissions: the files of its test sets.
        server_labels: the server's names of the classes; empty = their numbers.

    Example:
        Task("spam", first=("subject", "body"), labels=("ham", "spam"), metrics=("f1",))
    """

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    more_metrics: tuple[str, ...] = ()
    kind: Literal["classification", "spans", "tags", "choice"] = "classification"
    source: str | None = None
    validation_splits: tuple[str, ...] = ("validation",)
    score_range: tuple[float, float] | None = None
    unanswerable: bool = False
    symmetric: bool = False
    submissions: tuple[SubmissionFile, ...] = ()
    server_labels: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """Outputs of a model's head: the classes, or 1 for regression."""
        return len(self.labels) or 1

    @property
    def regression(self) -> bool:
        """Whether labels are scores."""
        return self.kind == "classification" and not self.labels

    @property
    def grouped(self) -> bool:
        """Whether several examples share a question and are also judged together."""
        return "em" in (*self.metrics, *self.more_metrics)


_ENTAILMENT = dict.fromkeys(("labels", "server_labels"), ("entailment", "not_entailment"))
_MNLI = ("entailment", "neutral", "contradiction")


def _glue(name: str, file: str, first="sentence1", second="sentence2", **options) -> Task:
    """A task of GLUE on two texts, or on one where `second` is None."""
    source = f"tfds:glue/{name}"
    return Task(
        name,
        (first,),
        (second,) if second else (),
        source=source,
        submissions=(SubmissionFile(file, source),),
        **options,
    )


# The order and the names of the classes are those of TensorFlow Datasets' records.
TASKS = {
    task.name: task
    for task in (
        _glue(
            "cola",
            "CoLA.tsv",
            "sentence",
            None,
            labels=("unacceptable", "acceptable"),
            metrics=("matthews",),
            more_metrics=("accuracy",),
        ),
        _glue("sst2", "SST-2.tsv", "sentence", None, labels=("negative", "positive")),
        _glue(
            "mrpc",
            "MRPC.tsv",
            labels=("not_equivalent", "equivalent"),
            metrics=("f1", "accuracy"),
            symmetric=True,
        ),
        _glue(
            "qqp",
            "QQP.tsv",
            "question1",
            "question2",
            labels=("not_duplicate", "duplicate"),
            metrics=("f1", "accuracy"),
            symmetric=True,
        ),
        _glue(
            "stsb",
            "STS-B.tsv",
            metrics=("pearson", "spearman"),
            score_range=(0.0, 5.0),
            symmetric=True,
        ),
        Task(
            "mnli",
            first=("premise",),
            second=("hypothesis",),
            labels=_MNLI,
            source="tfds:glue/mnli",
            validation_splits=("validation_matched", "validation_mismatched"),
            submissions=(
                SubmissionFile("MNLI-m.tsv", "tfds:glue/mnli", "test_matched"),
                SubmissionFile("MNLI-mm.tsv", "tfds:glue/mnli", "test_mismatched"),
                # The diagnostic set has no training data: MNLI's model answers it.
                SubmissionFile("AX.tsv", "tfds:glue/ax"),
            ),
            server_labels=_MNLI,
        ),
        _glue("qnli", "QNLI.tsv", "question", "sentence", **_ENTAILMENT),
        _glue("rte", "RTE.tsv", **_ENTAILMENT),
        _glue("wnli", "WNLI.tsv", labels=("not_entailment", "entailment")),
        Task(
            "boolq",
            first=("passage",),
            second=("question",),
            labels=("False", "True"),
            source="tfds:super_glue/boolq",
            submissions=(SubmissionFile("BoolQ.jsonl", "tfds:super_glue/boolq"),),
            server_labels=("false", "true"),
        ),
        Task(
            "multirc",
            first=("paragraph",),
            second=("question", "answer"),
            labels=("False", "True"),
            metrics=("f1a", "em"),
            more_metrics=("accuracy",),
            source="tfds:super_glue/multirc",
            submissions=(SubmissionFile("MultiRC.jsonl", "tfds:super_glue/multirc"),),
        ),
        # Rajpurkar et al. 2016 and 2018; F1 decides, of 2.0 with the threshold that suits it best.
        Task(
            "squad",
            first=("question",),
            second=("context",),
            metrics=("f1",),
            more_metrics=("exact",),
            kind="spans",
            source="tfds:squad/v1.1",
        ),
        Task(
            "squad2",
            first=("question",),
            second=("context",),
            metrics=("best_f1",),
            more_metrics=(
                "best_exact",
                "f1",
                "exact",
                "HasAns_f1",
                "HasAns_exact",
                "NoAns_f1",
                "NoAns_exact",
            ),
            kind="spans",
            source="tfds:squad/v2.0",
            unanswerable=True,
        ),
        # Tjong Kim Sang and De Meulder 2003.
        Task(
            "conll2003",
            first=("tokens",),
            labels=(
                "O",
                *(f"{begins}-{kind}" for kind in ("PER", "ORG", "LOC", "MISC") for begins in "BI"),
            ),
            metrics=("f1",),
            more_metrics=("precision", "recall", "conlleval_f1"),
            kind="tags",
            source="tfds:conll2003_ner",
            validation_splits=("dev",),
        ),
        # Mostafazadeh et al. 2016 and Lai et al. 2017; their texts are not in TensorFlow Datasets.
        Task(
            "story_cloze",
            first=("context",),
            second=("ending1", "ending2"),
            labels=("1", "2"),
            kind="choice",
        ),
        Task(
            "race",
            first=("article", "question"),
            second=("a", "b", "c", "d"),
            labels=("A", "B", "C", "D"),
            kind="choice",
        ),
    )
}


def get_task(name: str) -> Task:
    """The task of this name among `TASKS`."""
    if name not in TASKS:
        raise UserError(f"no task {name!r}: there are {', '.join(sorted(TASKS))}")
    return TASKS[name]
