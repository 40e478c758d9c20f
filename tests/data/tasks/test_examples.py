"""Tests of the task registry, of examples from TFDS and tables, and of sentence triplets."""

import gzip

import numpy as np
import pytest

from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import TASKS, Task, get_task
from macaron_tf.data.tasks.examples import read_examples, read_triplets
from tests.harness import refuses
from tests.toys.tasks import write_tfds as prepare

CLASSIFICATION = {name: task for name, task in TASKS.items() if task.kind == "classification"}


def test_metrics_are_those_of_glue_and_superglue():
    metrics = {name: task.metrics for name, task in CLASSIFICATION.items()}
    assert metrics == dict.fromkeys(CLASSIFICATION, ("accuracy",)) | {
        "cola": ("matthews",),
        "stsb": ("pearson", "spearman"),
        "mrpc": ("f1", "accuracy"),
        "qqp": ("f1", "accuracy"),
        "multirc": ("f1a", "em"),
        "cb": ("accuracy", "macro_f1"),
    }


def test_the_classes_are_those_of_the_official_builders():
    glue = pytest.importorskip("tensorflow_datasets.text.glue")
    super_glue = pytest.importorskip("tensorflow_datasets.text.super_glue")
    configs = {
        f"tfds:{name}/{config.name}": config
        for name, builder in (("glue", glue.Glue), ("super_glue", super_glue.SuperGlue))
        for config in builder.BUILDER_CONFIGS
    }
    for task in (*CLASSIFICATION.values(), TASKS["copa"]):
        if task.name in ("snli", "xnli"):  # sets without configurations
            continue
        config = configs[task.source]
        assert tuple(config.label_classes or ()) == task.labels, task.name
        features = getattr(config, "text_features", None) or config.features
        read = {*task.first, *task.question, *task.second}
        marks = {name for name in features if name.startswith(("start", "end", "span"))}
        assert read <= {*features} <= read | marks, task.name
        assert all(file.source in configs for file in task.submissions)


def test_a_misspelt_task():
    refuses("called 'sst-2': .* perhaps you meant 'sst2'", get_task, "sst-2")


SENTIMENT = Task("sentiment", first=("text",), labels=("bad", "good"))


@pytest.mark.parametrize(
    ("name", "count", "second", "mean"),
    [
        ("cola", 1301, False, 935 / 1301),
        ("sst2", 6735, False, 3741 / 6735),
        ("rte", 250, True, 120 / 250),
        ("mrpc", 408, True, 277 / 408),
        ("qnli", 450, True, 229 / 450),
        ("boolq", 400, True, 243 / 400),
        ("multirc", 1381, True, 596 / 1381),
    ],
)
def test_real_sets(name, count, second, mean, tfds):
    examples = read_examples(TASKS[name], "validation", tfds)
    assert len(examples) == len(examples.first) == len(examples.indices) == count
    assert (examples.second is not None) == second
    assert examples.labels.dtype == np.int32
    assert examples.labels.mean() == pytest.approx(mean)
    assert len(set(examples.indices)) == count
    assert (examples.groups is not None) == (name == "multirc")


def test_scores_and_questions_with_several_answers(tfds):
    examples = read_examples(TASKS["stsb"], "validation[:10]", tfds)
    assert examples.labels.dtype == np.float32 and len(examples) == 10
    assert examples.labels[0] == pytest.approx(0.4) and examples.indices[0] == 878
    assert examples.first[0].startswith("For what it's worth, dirt on the lens")
    assert examples.second[0].startswith("Regular dish washing fluid")
    examples = read_examples(TASKS["multirc"], "validation", tfds)
    assert examples.groups.shape == (1381, 2)
    assert (examples.indices[0], *examples.groups[0]) == (26740, 448, 5033)
    assert examples.second[0].endswith(
        "? the bum getting knocked in the head and the blood flowing"
    )
    assert examples.first[0].startswith("The film begins with Brick Bardo")
    # Each paragraph has one text.
    texts = {}
    for (paragraph, _), text in zip(examples.groups, examples.first, strict=True):
        assert texts.setdefault(paragraph, text) == text
    # Each question has several answers.
    assert len(np.unique(examples.groups, axis=0)) < len(examples) / 3


def test_tfds_errors(tfds, tmp_path):
    cola = TASKS["cola"]
    refuses("corresponds to no data", read_examples, cola, "train[:0]", tfds)
    refuses("no TFDS dataset 'glue/cola' in .*--d", read_examples, cola, "train", Tfds(tmp_path))
    for task, source, message in (
        (TASKS["rte"], "tfds:glue/qnli", "no field 'sentence1', only the fields idx, label, q"),
        (TASKS["mrpc"], "tfds:glue/rte", "classes entailment, not_entailment, but the task 'mrpc'"),
        (cola, "csv:x", "unknown source 'csv:x'"),
        (SENTIMENT, None, "unknown source '' of the task 'sentiment': give"),
    ):
        refuses(message, read_examples, task, "train", tfds, source)


@pytest.fixture
def read(tmp_path):
    """Returns `read(task, features, *records, split=...)`, which reads a TFDS set with records."""

    def read(name, features, *records, split="train"):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        prepare(folder, features, **{split: records})
        source = "tfds:glue/toy,glue/toy" if name == "race" else "tfds:glue/toy"
        return read_examples(TASKS[name], split, Tfds(folder), source)

    return read


def test_secret_labels_are_none(read):
    tfds = pytest.importorskip("tensorflow_datasets").features
    label = tfds.ClassLabel(names=["unacceptable", "acceptable"])
    features = {"sentence": tfds.Text(), "label": label, "idx": np.int32}
    secret, known = ({"sentence": "", "label": number, "idx": 7} for number in (-1, 1))
    examples = read("cola", features, secret, secret, split="test")
    assert examples.labels is None and examples.first == ["", ""]
    assert examples.indices.tolist() == [7, 7]
    assert read("cola", features, known, secret, split="test").labels.tolist() == [1]


@pytest.mark.parametrize("labels, kept", [([2, -1, 0], [2, 0]), ([-1, -1], None)])
def test_pairs_that_people_disagreed_on_are_left_out(read, labels, kept):
    """Pairs with the label -1, as in SNLI, are left out unless all pairs have that label."""
    tfds = pytest.importorskip("tensorflow_datasets").features
    features = {name: tfds.Text() for name in ("premise", "hypothesis")}
    features["label"] = tfds.ClassLabel(names=TASKS["snli"].labels)
    records = [{"premise": f"p{n}", "hypothesis": f"h{n}", "label": n} for n in labels]
    found = read("snli", features, *records)
    if kept is None:
        assert found.labels is None and len(found) == 2
        return
    assert found.labels.tolist() == kept and found.indices.tolist() == [0, 2]
    assert found.texts == (["p2", "p0"], ["h2", "h0"])


RACE = [
    {
        "article": "A dog sleeps.",
        "questions": ["Who?", "What?"],
        "options": [["a dog", "a cat", "", "I"], ["sleeps", "eats"]],
        "answers": ["A", "B"],
    },
    {"article": "Rain.", "questions": ["Why?"], "options": [["x", "y", "z"]], "answers": ["C"]},
]
ENDING = {"context": "He", "endings": ["runs", "sits", "eats", "is"], "label": 2}
COPA = {"premise": "It rained.", "question": "effect", "choice1": "wet", "choice2": "dry"}


def test_choices_of_official_records(read):
    """Choices are read from lists (RACE, HellaSwag) and from separate fields (COPA)."""
    tfds = pytest.importorskip("tensorflow_datasets").features
    text, texts = tfds.Text(), tfds.Sequence(tfds.Text())
    race = {"article": text, "questions": texts, "options": tfds.Sequence(texts), "answers": texts}
    found = read("race", race, *RACE)
    assert len(found) == 6 and found.labels.tolist() == [0, 1, 2] * 2
    assert found.texts[0][:3] == ["A dog sleeps."] * 2 + ["Rain."]
    assert found.questions[:3] == ["Who?", "What?", "Why?"]
    assert [choices[:3] for choices in found.texts[1:]] == [
        ["a dog", "sleeps", "x"], ["a cat", "eats", "y"], ["-", "", "z"], ["I", "", ""],
    ]  # fmt: skip
    broken = {**RACE[1], "answers": ["E"]}
    refuses("record 0: 'E' in column 'label' is not one of the", read, "race", race, broken)
    broken = {**RACE[1], "options": [["x"]]}
    refuses("record 0 has 1 of 2 to 4 choices", read, "race", race, broken)
    endings = {"context": text, "endings": texts, "label": np.int32}
    found = read("hellaswag", endings, ENDING)
    assert found.texts == (["He"], ["runs"], ["sits"], ["eats"], ["is"]) and found.labels == [2]
    assert found.questions is None
    secret = {**ENDING, "label": -1}
    assert read("hellaswag", endings, secret, split="test").labels is None
    stories = [{**ENDING, "endings": ["a", "b"], "label": label} for label in (1, 2)]
    assert read("story_cloze", endings, *stories).labels.tolist() == [0, 1]
    names = tfds.ClassLabel(names=["choice1", "choice2"])
    copa = {**dict.fromkeys(COPA, text), "label": names}
    found = read("copa", copa, {**COPA, "label": 1})
    assert found.texts == (["It rained."], ["wet"], ["dry"]) and found.labels == [1]
    assert found.questions == ["effect"]
    other = {**copa, "label": tfds.ClassLabel(names=["no", "yes"])}
    refuses("classes no, yes, but the task 'copa'", read, "copa", other, {**COPA, "label": 1})


def test_the_configurations_of_race_are_those_of_the_official_builder():
    builder = pytest.importorskip("tensorflow_datasets").builder_cls("race")
    configs = {f"race/{config.name}" for config in builder.BUILDER_CONFIGS}
    assert configs == {*TASKS["race"].source.removeprefix("tfds:").split(",")}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("p\tq\ta\tb\t\t\tC", "line 2: the correct choice, C, is empty"),
        ("p\tq\ta\tb\tc\td\tE", "line 2: 'E' in column 'label' is not one of the classes A, B"),
        ("\tq\ta\tb\tc\td\tA", "line 2: the text in column 'article' is empty"),
    ],
)
def test_a_table_of_choices(line, message, table):
    header = "article\tquestion\ta\tb\tc\td\tlabel"
    found = read_examples(TASKS["race"], "train", source=table(header, "p\tq\ta\tb\t\td\tB"))
    assert found.texts == (["p"], ["a"], ["b"], [""], ["d"]) and found.questions == ["q"]
    refuses(message, read_examples, TASKS["race"], "train", source=table(header, line))


def test_a_table(table, tmp_path):
    source = table("id\tlabel\ttext", "a\tgood\tso good", 'b\t0\tso "bad', "c\tbad\tgood")
    examples = read_examples(SENTIMENT, "train", source=source)
    assert examples.first == ["so good", 'so "bad', "good"] and examples.second is None
    assert examples.labels.tolist() == [1, 0, 0] and examples.labels.dtype == np.int32
    assert examples.indices.tolist() == [0, 1, 2] and examples.groups is None
    lines = ["sentence2\tsentence1\tlabel", "b\ta\t5", "d\tc\t 0.25"]
    (tmp_path / "dev.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    source = f"tsv:{tmp_path}/{{split}}.tsv.gz"
    examples = read_examples(TASKS["stsb"], "dev", source=source)
    assert (examples.first, examples.second) == (["a", "c"], ["b", "d"])
    assert examples.labels.tolist() == [5, 0.25] and examples.labels.dtype == np.float32
    source = table(
        "paragraph\tquestion\tanswer\tlabel",
        "p\tq\ta\t1", "p\tr\ta\t0", "s\tq\ta\tTrue", "p\tq\tb\tFalse",
    )  # fmt: skip
    examples = read_examples(TASKS["multirc"], "train", source=source)
    assert examples.second == ["q a", "r a", "q a", "q b"]
    assert examples.labels.tolist() == [1, 0, 1, 0]
    assert examples.groups.tolist() == [[0, 0], [0, 1], [1, 2], [0, 0]]


def test_a_table_that_pandas_wrote(table):
    header, *lines = '"label"," text"', 'good,"so\n""good"", so"', "bad,x", "", ""
    source = table(header, *lines, name="table.csv")
    examples = read_examples(SENTIMENT, "train", source=source)
    assert examples.first == ['so\n"good", so', "x"] and examples.labels.tolist() == [1, 0]
    source = table("label \ttext", 'good\t"so ""good"""', 'bad\t"x"', "", "\t")
    examples = read_examples(SENTIMENT, "train", source=source)
    assert examples.first == ['so "good"', '"x"'] and examples.labels.tolist() == [1, 0]


def test_a_table_without_labels(table):
    source = table("text", "so good", name="test_a.tsv").replace("test_a", "{split}")
    assert read_examples(SENTIMENT, "test_a", source=source).labels is None
    whole = table("text\tlabl", "so good\tgood")
    assert read_examples(SENTIMENT, "all", source=whole).labels is None
    message = "has no columns named 'label' .the columns are labl, text"
    refuses(message, read_examples, SENTIMENT, "train", source=whole)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["label\tbody", "good\tx"], "line 1 has no columns named 'text' .the columns are body"),
        (["label\ttext\ttext", "good\tx\tx"], "line 1 has 2 columns named 'text'"),
        (["label\ttext", "good\tx", "great\tx"], "line 3: 'great' in column 'label' is not one of"),
        (["label\ttext", "good\tx", "bad\t "], "line 3: the text in column 'text' is empty"),
        (["label\ttext", "good\tx\ty"], "line 2 has 3, not 2 columns: put one tab"),
        (["label\ttext", "Good\tx"], "'Good' .* not one of .* perhaps you meant 'good'"),
        (["label\ttext"], "contains no example"),
    ],
)
def test_bad_tables(lines, message, table):
    source = table(*lines)
    assert "table.tsv" in refuses(message, read_examples, SENTIMENT, "train", source=source)


@pytest.mark.parametrize("score", ["nan", "inf", "5.1", "-0.1", "x", ""])
def test_bad_scores(score, table):
    source = table("sentence1\tsentence2\tlabel", "a\tb\t1", f"a\tb\t{score}")
    message = "line 3: .* in column 'label' is not a number from 0 to 5"
    refuses(message, read_examples, TASKS["stsb"], "train", source=source)
    if score not in ("5.1", "-0.1"):
        free = Task("free", first=("sentence1",))
        refuses("is not a finite number", read_examples, free, "train", source=source)


def test_triplets_are_read_by_their_columns(table, tmp_path):
    source = table("id\tnegative\tanchor\tpositive", "1\tc\ta a\tb\r", "2\tf\td\te e")
    sets = read_triplets(source.replace("table", "{split}"), "table")
    assert sets.texts == (["a a", "d"], ["b", "e e"], ["c", "f"]) and sets.labels is None
    assert len(sets) == 2
    empty = table("anchor\tpositive\tnegative", "a\t \tc")
    refuses("table.tsv, line 2: the text in column 'positive'", read_triplets, empty, "train")
    refuses("of triplets: give tsv:FILE", read_triplets, "tfds:glue/stsb", "train")
    refuses("has no split 'validation'", read_triplets, f"tsv:{tmp_path}/a.tsv", "validation")
