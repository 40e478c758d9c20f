"""Tests of columns and classes inferred from a user's table, and of held-out table rows."""

import dataclasses
import gzip
import json

import numpy as np
import pytest

from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.examples import read_examples
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.data.tasks.tags import read_tagged
from tests.harness import refuses

CLASSIFY, MULTILABEL, REGRESS, TAG, CHOOSE = (
    get_task(name, own=True) for name in ("classify", "multilabel", "regress", "tag", "choose")
)
CHOICES = "context\tquestion\tchoice1\tchoice2\tchoice3\tlabel\n"


def filled(task, folder, content: str, name: str = "own.tsv", **settings):
    """Writes a table; returns its settings and the task that the settings define.

    Columns and classes that `settings` does not name are inferred from the content.

    Args:
        task: task whose columns and classes the table defines.
        folder: folder for the table.
        content: content of the table.
        name: file name of the table.
        settings: table settings that are not inferred.
    """
    kind = "conll" if name.endswith(".txt") else "tsv"
    data = gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()
    (folder / name).write_bytes(data)
    table = TableSettings(**settings).filled(task, f"{kind}:{folder / name}")
    return table, table.described(task)


def test_a_text_has_any_number_of_labels(tmp_path):
    text = "text\tlabel\na\ty, x\nb\t\nc\tz\n"
    _, task = filled(MULTILABEL, tmp_path, text)
    rows = [{"text": "a", "label": ["y", "x"]}, {"text": "b", "label": []}]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for source, expected in (
        ("tsv", [[1, 1, 0], [0, 0, 0], [0, 0, 1]]),
        ("jsonl", [[1, 1, 0], [0] * 3]),
    ):
        found = read_examples(task, "train", source=f"{source}:{tmp_path}/own.{source}")
        assert task.labels == ("x", "y", "z") and found.labels.tolist() == expected
    (tmp_path / "own.tsv").write_text("text\tlabel\na\tx,w\n")
    message = "line 2: 'w' in column 'label' is not one of the classes x, y, z"
    refuses(message, read_examples, task, "train", source=f"tsv:{tmp_path}/own.tsv")


@pytest.mark.parametrize(
    ("text", "settings", "first", "second"),
    [
        ("text\tlabel\na\ty\nb\tx\n", {}, ("text",), ()),
        ("label\tsentence1\tsentence2\ny\ta\tb\nx\tc\td\n", {}, ("sentence1",), ("sentence2",)),
        ("review\tlabel\na\ty\nb\tx\n", {}, ("review",), ()),
        ("stars\ta\tb\ny\tone\ttwo\nx\tone\ttwo\n", {"text": "a", "label": "stars"}, ("a",), ()),
        ("label\ta\tb\ny\tone\ttwo\nx\tone\ttwo\n", {"text": ["a", "b"]}, ("a", "b"), ()),
        ("label\ta\tb\ny\t1\t2\nx\t1\t2\n", {"text": "b", "text_b": "a"}, ("b",), ("a",)),
        ("\ufefftext\tlabel\r\na\ty\r\nb\tx\r\n", {}, ("text",), ()),
    ],
)
def test_columns_and_classes_are_those_of_the_table(text, settings, first, second, tmp_path):
    for name in ("own.tsv", "own.tsv.gz"):
        table, task = filled(CLASSIFY, tmp_path, text, name, **settings)
        assert (task.first, task.second, task.labels) == (first, second, ("x", "y"))
        examples = read_examples(task, "train", source=f"tsv:{tmp_path / name}")
        assert examples.labels.tolist() == [1, 0] and len(examples.texts) == 1 + bool(second)
        assert table.filled(CLASSIFY, f"tsv:{tmp_path / name}") == table


@pytest.mark.parametrize(
    ("task", "text", "words"),
    [
        (CLASSIFY, "", "own.tsv is empty: give a table with a header"),
        (CLASSIFY, "text\tclass\na\tx\n", "no columns named 'label' .the columns are class, te"),
        (CLASSIFY, "a\tb\tlabel\n1\t2\tx\n", "columns a, b, label contains the text"),
        (CLASSIFY, "text\tlabel\na\tx\nb\tx\n", "all labels are 'x', but two"),
        (CLASSIFY, "text\tlabel\na\tx\nb\t \n", "line 3: the label in column 'label' is empty"),
        (CLASSIFY, "\na\t".join(["text\tlabel", *map(str, range(60))]), "60 different labels"),
        (REGRESS, "text\tlabel\na\t1\nb\tNaN\n", "line 3: 'NaN' in column 'label' is not a finite"),
        (TAG, "words\ttags\na b\tX\n", "column 'tags' has not a tag for each word .1 for 2.:"),
        (CHOOSE, "context\tchoice1\tlabel\na\tb\t1\n", "has 1 choice columns and 1 classes: name"),
    ],
)
def test_bad_tables_are_one_sentence(task, text, words, tmp_path):
    refuses(words, filled, task, tmp_path, text)


ENTITIES = "Ann B-PER\nof O\nRome B-LOC\n\n" * 3


@pytest.mark.parametrize("tag", ["0", "-"])
def test_a_stray_tag_among_entities_is_refused(tag, tmp_path):
    words = rf"own.txt: the tags {tag}, .*B-.* are not all O and entities by IOB"
    refuses(words, filled, TAG, tmp_path, f"{ENTITIES}x {tag}\n", "own.txt")
    table = "words\ttags\n" + "Ann of\tB-PER O\n" * 3 + f"Ann of\tB-PER {tag}\n"
    refuses(f"own.tsv: the tags {tag}, O", filled, TAG, tmp_path, table)
    named = {"classes": ("O", tag, "B-PER", "B-LOC")}  # the classes are the user's choice
    _, task = filled(TAG, tmp_path, f"{ENTITIES}x {tag}\n", "own.txt", **named)
    assert task.labels == named["classes"]


IOB2 = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC"]


@pytest.mark.parametrize("tags", ["B-PER I-PER O B-LOC B-LOC", "I-PER I-PER O I-LOC B-LOC"])
def test_both_forms_of_iob_are_read_as_iob2(tags, tmp_path):
    words, source = ["Ann", "Lee", "saw", "Rome", "Oslo"], f"conll:{tmp_path}/own.txt"
    lines = "".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags.split(), strict=True))
    _, task = filled(TAG, tmp_path, f"{lines}\n" * 3, "own.txt")
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER") and task.metrics == ("f1",)
    for read in (task, get_task("conll2003")):
        found = read_tagged(read, "train", source=source)
        assert [read.labels[tag] for tag in found.labels[2]] == IOB2


def lines_of(tags: str) -> str:
    """Returns three sentences of a CoNLL file whose words have the tags."""
    return ("".join(f"word\t{tag}\n" for tag in tags.split()) + "\n") * 3


@pytest.mark.parametrize("tags", ["I-PER E-PER O", "B-PER L-PER S-PER"])
def test_entities_in_an_unknown_scheme_are_refused(tags, tmp_path):
    words = "own.txt: the tags .* are not all O and entities by IOB, BIOES"
    refuses(words, filled, TAG, tmp_path, lines_of(tags), "own.txt")
    _, task = filled(TAG, tmp_path, lines_of(tags), "own.txt", classes=tuple(tags.split()))
    assert len(task.labels) == 3 and task.metrics == ("accuracy",)


@pytest.mark.parametrize(
    ("tags", "labels", "metric"),
    [
        ("DET NOUN VERB", "DET NOUN VERB", "accuracy"),
        ("x-I y-I z-I", "x-I y-I z-I", "accuracy"),
        # Schemes that mark the end of an entity.
        ("B-PER E-PER O S-LOC", "O B-LOC I-LOC E-LOC S-LOC B-PER I-PER E-PER S-PER", "f1"),
        ("B-PER L-PER O U-LOC", "O B-LOC I-LOC L-LOC U-LOC B-PER I-PER L-PER U-PER", "f1"),
    ],
)
def test_other_tags_are_kept(tags, labels, metric, tmp_path):
    _, task = filled(TAG, tmp_path, lines_of(tags), "own.txt")
    assert task.labels == tuple(labels.split()) and task.metrics == (metric,)


WORDS, TAGS = ["It's", 'a"b', "Rome"], ["O", "B-PER", "B-LOC"]


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "parquet"])
def test_words_and_tags_are_lists_or_separated_by_spaces(kind, tmp_path):
    file = tmp_path / f"own.{kind}"
    records = [{"words": WORDS, "tags": TAGS}] * 3
    if kind == "jsonl":
        file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    elif kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(records), file)
    else:
        row = "\t".join(map(" ".join, (WORDS, TAGS)))
        file.write_text("\n".join(["words\ttags", row, row, row]))
    source = f"{kind}:{file}"
    task = TableSettings().filled(TAG, source).described(TAG)
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    found = read_tagged(task, "train", source=source)
    assert found.words == [WORDS] * 3
    assert [labels.tolist() for labels in found.labels] == [[0, 3, 1]] * 3


@pytest.mark.parametrize("row", ["['a' 'b']\t['O' 'O']", "a b\t[3, 0]", "a b\tO"])
def test_cells_that_do_not_fit_are_refused(row, tmp_path):
    message = "own.tsv, line 2: column 'tags' has .*: separate both by spaces, or give lists in"
    refuses(message, filled, TAG, tmp_path, f"words\ttags\n{row}\n")


def test_choices_are_numbered_columns(tmp_path):
    text = f"{CHOICES}a\tb\tc\td\te\t3\nf\tg\th\ti\t\t1\n"
    table, task = filled(CHOOSE, tmp_path, text)
    assert (task.first, task.question, task.labels) == (("context",), ("question",), tuple("123"))
    examples = read_examples(task, "train", source=f"tsv:{tmp_path}/own.tsv")
    assert examples.texts == (["a", "f"], ["c", "h"], ["d", "i"], ["e", ""])
    assert examples.questions == ["b", "g"] and examples.labels.tolist() == [2, 0]
    assert table.filled(CHOOSE, f"tsv:{tmp_path}/own.tsv") == table
    numbers = range(12, 0, -1)  # choices are ordered by number, whatever the order of columns
    header, cells = (map(name.format, numbers) for name in ("choice{}", "c{}"))
    text = "\t".join([*header, "context", "label\n"]) + "\t".join([*cells, "a", "10\n"])
    _, task = filled(CHOOSE, tmp_path, text)
    examples = read_examples(task, "train", source=f"tsv:{tmp_path}/own.tsv")
    assert examples.texts[1 + examples.labels[0]] == ["c10"]
    named = {"choices": ("x", "y"), "classes": ("yes", "no"), "label": "right"}
    _, task = filled(CHOOSE, tmp_path, "t\ty\tx\tright\na\tb\tc\tno\n", **named)
    assert (task.first, task.question, task.second) == (("t",), (), ("x", "y"))
    assert read_examples(task, "train", source=f"tsv:{tmp_path}/own.tsv").labels.tolist() == [1]


@pytest.mark.parametrize(
    ("task", "text", "other", "message"),
    [
        (CHOOSE, f"{CHOICES}a\tb\tc\td\te\t4\n", "", "2: '4' .* one of the classes 1, 2, 3"),
        # The labels of another table are not taken for numbers of classes.
        (CLASSIFY, "text\tlabel\na\t2\nb\t7\n", "text\tlabel\na\t1\n", "2: '1' .* classes 2, 7"),
    ],
)
def test_labels_that_are_no_classes(task, text, other, message, tmp_path):
    _, task = filled(task, tmp_path, text)
    (tmp_path / "other.tsv").write_text(other or text)
    source = f"tsv:{tmp_path}/other.tsv"
    refuses(f"other.tsv, line {message}", read_examples, task, "all", source=source)


def test_scores_are_learnt_by_mean_and_deviation(tmp_path):
    table, task = filled(REGRESS, tmp_path, "text\tlabel\na\t100\nb\t300\n")
    assert task.regression and (task.mean, task.deviation) == (200.0, 100.0)
    source = f"tsv:{tmp_path}/own.tsv"
    assert table.filled(REGRESS, source) == table
    one = dataclasses.replace(table, mean=50.0, deviation=None).filled(REGRESS, source)
    assert (one.mean, one.deviation) == (50.0, 100.0)
    other = dataclasses.replace(table, mean=None, deviation=4.0).filled(REGRESS, source)
    assert (other.mean, other.deviation) == (200.0, 4.0)


def test_a_like_share_of_every_class_is_held_out_by_the_seed(capsys):
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    held = TableSettings(held_out=0.2).held_out_mask(labels, "tsv:x")
    assert np.bincount(labels[held]).tolist() == [12, 6, 2]
    assert "tsv:x: 20 of 100 examples are held out" in capsys.readouterr().err
    np.testing.assert_array_equal(held, TableSettings(held_out=0.2).held_out_mask(labels, ""))
    assert (held != TableSettings(held_out=0.2, seed=2).held_out_mask(labels, "")).any()
    message = "data.table.held_out=0.1 of 3 leaves a part empty"
    refuses(message, TableSettings().held_out_mask, labels[:3], "x")


def test_scores_of_every_size_are_held_out_by_the_seed():
    scores = np.random.default_rng(0).normal(size=100)
    held = [TableSettings(held_out=0.2, seed=n).held_out_mask(scores, "x") for n in range(1, 21)]
    ranks = np.argsort(np.argsort(scores))
    for mask in held:  # one example of each five neighbours
        np.testing.assert_array_equal(np.sort(ranks[mask]) // 5, np.arange(20))
    times = np.sum(held, axis=0)
    assert times.max() < 12 and (times == 0).sum() < 10  # each example is held out sometimes


def test_scores_of_any_range_are_told_apart(tmp_path):
    lines = "".join(f"{n}\t{1_700_000_000 + n}\n" for n in range(40))
    _, task = filled(REGRESS, tmp_path, f"text\tlabel\n{lines}")
    found = read_examples(task, "train", source=f"tsv:{tmp_path}/own.tsv").labels
    np.testing.assert_array_equal(np.diff(found), 1)
    assert task.deviation == pytest.approx(np.std(np.arange(40)))
