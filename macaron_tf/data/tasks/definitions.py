"""Definitions of the fine-tuning tasks: texts, classes, metrics and submission files."""

import dataclasses

from macaron_tf.data.sources.names import TFDS_FORM, Source, parse_source
from macaron_tf.errors import UserError, nearest
from macaron_tf.settings import Positive, Settings


@dataclasses.dataclass(frozen=True)
class SubmissionFile:
    """A prediction file that a benchmark's evaluation server expects."""

    name: str
    source: str
    split: str = "test"


@dataclasses.dataclass(frozen=True)
class Task(Settings):
    """A fine-tuning task: the input fields, the classes and the metrics.

    Attributes:
        first: fields of a record that are joined by a space to form the first text. In extractive
            question answering the first text is the question. In tagging the first text is the
            sentence.
        second: fields of the second text, such as the context of a question. An empty tuple means
            that the task has one text.
        labels: class names, class 0 first. An empty tuple means regression if `kind` is
            `"classification"`.
        metrics: main metrics. The mean of these metrics is the main score.
        kind: name of a class of `macaron_tf.tasks` that reads, trains and answers the task:
            `"classification"` of one or two texts, `"multilabel"`, `"spans"`, `"tags"` or
            `"choice"`. `"classification"` includes regression. In `"multilabel"`, any number of
            classes apply to a text. `"spans"` is extractive question answering.
            `"tags"` assigns a class to each word. `"choice"` is multiple choice among the `second`
            fields.
        lists: in multiple choice, fields that hold lists in a TensorFlow Datasets record. One name
            is the field of the choices of a single question. Three names are the fields of several
            questions, their choices and their correct choices. An empty tuple means that each
            choice has a field of its own.
        source: default source of the examples, in the notation of `read_examples`,
            `read_questions` and `read_tagged`. `None` means that the user must give a source.
        validation_splits: names of the validation splits. The best model is selected by its score
            on the first of these splits.
        unanswerable: whether a question may have no answer in its context.
        server_labels: class names in submission files. An empty tuple means class indices.
        own: whether the user's table defines the columns and the classes, see
            `macaron_tf.data.tasks.own_tables`.
        mean, deviation: mean and standard deviation of the scores in regression. The model learns
            (score - mean) / deviation.

    Example:
        Task("spam", first=("subject", "body"), labels=("ham", "spam"), metrics=("f1",))
    """

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    more_metrics: tuple[str, ...] = ()
    kind: str = "classification"
    question: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    source: str | None = None
    validation_splits: tuple[str, ...] = ("validation",)
    score_range: tuple[float, float] | None = None
    unanswerable: bool = False
    symmetric: bool = False
    submissions: tuple[SubmissionFile, ...] = ()
    server_labels: tuple[str, ...] = ()
    own: bool = False
    label: str = "label"
    mean: float = 0.0
    deviation: Positive = 1.0

    @property
    def num_classes(self) -> int:
        """Number of classes, tags or choices, or 1 for a task without `labels`."""
        return len(self.labels) or 1

    @property
    def regression(self) -> bool:
        return self.kind == "classification" and not self.labels

    @property
    def several(self) -> str | None:
        """Column in which a cell names any number of classes, or `None` if it names one."""
        return self.label if self.kind == "multilabel" else None

    @property
    def outside(self) -> int:
        """Index of the tag that is predicted for words without a token: O, or the first tag."""
        return self.labels.index("O") if "O" in self.labels else 0

    def summary(self) -> str:
        """Returns the columns, up to 20 classes and the main metrics in one line."""
        columns = " + ".join((*self.first, *self.question, *self.second)) or "words"
        classes = f"{len(self.labels)} classes, {', '.join(self.labels[:20])}"
        answers = "a score" if self.regression else classes
        return f"{columns} -> {self.label}: {answers}, judged by {' and '.join(self.metrics)}"

    def parse_source(self, source: str | None, *forms: str) -> Source:
        """Parses the name of a source of examples; `None` means the default source."""
        return parse_source(source or self.source, (TFDS_FORM, *forms), f"the task {self.name!r}")

    @property
    def grouped(self) -> bool:
        """Whether a metric is MultiRC's exact match, by questions with all answers right."""
        return "em" in (*self.metrics, *self.more_metrics)


def _glue(name: str, file: str, *fields: str, **options) -> Task:
    """Makes a task of GLUE. The default fields are sentence1 and sentence2."""
    source, fields = f"tfds:glue/{name}", fields or ("sentence1", "sentence2")
    files = (SubmissionFile(file, source),)
    return Task(name, fields[:1], fields[1:], source=source, submissions=files, **options)


def _super_glue(name: str, *fields: str, config="", first=1, **options) -> Task:
    """Makes a task of SuperGLUE, with `first` of the fields in the first text."""
    source = f"tfds:super_glue/{config or name}"
    return Task(name, fields[:first], fields[first:], source=source, **options)


def _choice(name: str, source: str | None, first: str, *choices: str, **options) -> Task:
    """Makes a multiple-choice task, whose choices continue a text or answer a question."""
    return Task(name, (first,), choices, source=source, kind="choice", **options)


_ENDINGS, _FOUR = {"lists": ("endings",)}, tuple(f"ending{number}" for number in range(4))
_CHOICES, _QUESTION = ("choice1", "choice2"), ("question",)
_ACCEPTABLE = {"labels": ("unacceptable", "acceptable"), "metrics": ("matthews",)}
_ENTAILMENT = dict.fromkeys(("labels", "server_labels"), ("entailment", "not_entailment"))
_MNLI = ("entailment", "neutral", "contradiction")
_NLI = {"first": ("premise",), "second": ("hypothesis",), "labels": _MNLI}
_TWO_GENRES = {"validation_splits": ("validation_matched", "validation_mismatched")}
_IN_GLUE = {"source": "tfds:glue/mnli", "server_labels": _MNLI}
# The diagnostic set AX has no training data. A model that was trained on MNLI is evaluated on AX.
_IN_GLUE["submissions"] = (
    SubmissionFile("MNLI-m.tsv", "tfds:glue/mnli", "test_matched"),
    SubmissionFile("MNLI-mm.tsv", "tfds:glue/mnli", "test_mismatched"),
    SubmissionFile("AX.tsv", "tfds:glue/ax"),
)
_TRUTH = {"labels": ("False", "True")}
_CB = {"labels": ("entailment", "contradiction", "neutral"), "metrics": ("accuracy", "macro_f1")}
_ANSWERS = {"metrics": ("f1a", "em"), "more_metrics": ("accuracy",)}
_QUESTIONS = ("question1", "question2")
_ALIKE = {"metrics": ("f1", "accuracy"), "symmetric": True}
_SCORES = {"metrics": ("pearson", "spearman"), "score_range": (0.0, 5.0), "symmetric": True}
_TAGS = [f"{prefix}-{entity}" for entity in ("PER", "ORG", "LOC", "MISC") for prefix in "BI"]
_ENTITIES = {"metrics": ("f1",), "more_metrics": ("precision", "recall", "conlleval_f1")}
_ENTITIES |= {"source": "tfds:conll2003_ner", "validation_splits": ("dev",)}
_SPANS = {"first": _QUESTION, "second": ("context",), "kind": "spans"}
_RECORD = {"source": "tfds:super_glue/record", "metrics": ("f1", "exact")}
_SQUAD2 = [f"{part}{name}" for part in ("", "HasAns_", "NoAns_") for name in ("f1", "exact")]
_MAY_LACK = {"metrics": ("best_f1",), "more_metrics": ("best_exact", *_SQUAD2)}
_RACE = {"question": _QUESTION, "labels": tuple("ABCD"), "validation_splits": ("dev",)}
_COPA = "tfds:super_glue/copa"
_RACE["lists"] = ("questions", "options", "answers")

# Class names and class order are those of TensorFlow Datasets.
_TASKS = (
    _glue("cola", "CoLA.tsv", "sentence", **_ACCEPTABLE, more_metrics=("accuracy",)),
    _glue("sst2", "SST-2.tsv", "sentence", labels=("negative", "positive")),
    _glue("mrpc", "MRPC.tsv", labels=("not_equivalent", "equivalent"), **_ALIKE),
    _glue("qqp", "QQP.tsv", *_QUESTIONS, labels=("not_duplicate", "duplicate"), **_ALIKE),
    _glue("stsb", "STS-B.tsv", **_SCORES),
    Task("mnli", **_NLI, **_TWO_GENRES, **_IN_GLUE),
    # Bowman et al. 2015.
    Task("snli", **_NLI, source="tfds:snli"),
    # Conneau et al. 2018. Models are trained on English (MultiNLI) and evaluated in 15 languages
    # (`tfds:xnli`).
    Task("xnli", **_NLI, **_TWO_GENRES, source="tfds:multi_nli"),
    _glue("qnli", "QNLI.tsv", "question", "sentence", **_ENTAILMENT),
    _glue("rte", "RTE.tsv", **_ENTAILMENT),
    _glue("wnli", "WNLI.tsv", labels=("not_entailment", "entailment")),
    _super_glue("boolq", "passage", "question", **_TRUTH),
    _super_glue("multirc", "paragraph", "question", "answer", **_TRUTH, **_ANSWERS),
    _super_glue("cb", "premise", "hypothesis", **_CB),
    # The word, then its two sentences; a text, and then a pronoun with a noun.
    _super_glue("wic", "word", "sentence1", "sentence2", first=2, **_TRUTH),
    _super_glue("wsc", "text", "span1_text", "span2_text", config="wsc.fixed", **_TRUTH),
    # Rajpurkar et al. 2016 and 2018.
    Task("squad", **_SPANS, metrics=("f1",), more_metrics=("exact",), source="tfds:squad/v1.1"),
    Task("squad2", **_SPANS, **_MAY_LACK, source="tfds:squad/v2.0", unanswerable=True),
    # Zhang et al. 2018 (SuperGLUE). "@placeholder" in the query stands for a name in the passage.
    # Here, any span may be the answer.
    Task("record", ("query",), ("passage",), kind="spans", **_RECORD),
    # Tjong Kim Sang and De Meulder 2003.
    Task("conll2003", ("tokens",), labels=("O", *_TAGS), kind="tags", **_ENTITIES),
    # Mostafazadeh et al. 2016. TensorFlow Datasets has no training set for the Story Cloze Test.
    _choice("story_cloze", None, "context", "ending1", "ending2", labels=("1", "2"), **_ENDINGS),
    # Lai et al. 2017. Papers train on both parts, middle school and high school.
    _choice("race", "tfds:race/middle,race/high", "article", *"abcd", **_RACE),
    # Zellers et al. 2019.
    _choice("hellaswag", "tfds:hellaswag", "context", *_FOUR, labels=tuple("0123"), **_ENDINGS),
    # Roemmele et al. 2011. The question is the word "cause" or "effect".
    _choice("copa", _COPA, "premise", *_CHOICES, labels=_CHOICES, question=_QUESTION),
)
TASKS = {task.name: task for task in _TASKS}

# Tasks on the user's own table, which determines the columns and the classes.
_OWN = {"first": (), "own": True}
_CLASSES = {"metrics": ("micro_f1",), "more_metrics": ("macro_f1", "exact")}
_TABLE_TASKS = (
    Task("classify", **_OWN, more_metrics=("macro_f1",)),
    Task("multilabel", **_OWN, **_CLASSES, kind="multilabel"),
    Task("regress", **_OWN, metrics=("pearson",), more_metrics=("spearman",)),
    Task("tag", **_OWN, kind="tags", metrics=("f1",)),
    Task("choose", **_OWN, kind="choice"),
)
OWN_TASKS = {task.name: task for task in _TABLE_TASKS}


def get_task(name: str, own: bool = False) -> Task:
    """Returns the task named `name`."""
    tasks = {**TASKS, **OWN_TASKS} if own else TASKS
    if name not in tasks:
        names = ", ".join(sorted(tasks))
        raise UserError(f"no task is called {name!r}: choose one of {names}{nearest(name, tasks)}")
    return tasks[name]
