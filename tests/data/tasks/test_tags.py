"""Tests of tagged sentences in any IOB scheme, and of windows that label every word once."""

import copy
import dataclasses

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.data.tasks.tags import (
    TaggedSentences,
    as_iob2,
    encode_tagged,
    encode_words,
    read_tagged,
    scheme_of,
    word_probabilities,
)
from tests.harness import refuses

TASK = get_task("conll2003")


def test_conll_files(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text(
        "-DOCSTART- -X- -X- O\n\nEU NNP I-NP I-ORG\nsays\tO\r\n\n\nno\u00a0break O\nRome I-LOC\n"
    )
    found = read_tagged(TASK, "train", source=f"conll:{tmp_path}/{{split}}.txt")
    assert found.words == [["EU", "says"], ["no\u00a0break", "Rome"]]
    names = [[TASK.labels[tag] for tag in tags] for tags in found.labels]
    assert names == [["B-ORG", "O"], ["O", "B-LOC"]]
    for text, words in (
        ("EU B-EU\n", "line 1: the tag 'B-EU'"),
        ("a O\nEU\n", "line 2 has only 1 columns: add the tag"),
        ("\n-DOCSTART- O\n", "contains no sentences"),
    ):
        path.write_text(text)
        refuses(words, read_tagged, TASK, "train", source=f"conll:{path}")
    refuses("has no split 'dev'", read_tagged, TASK, "dev", source=f"conll:{path}")
    assert as_iob2(["I-PER", "I-LOC", "B-LOC", "I-LOC"]) == ["B-PER", "B-LOC", "B-LOC", "I-LOC"]
    assert as_iob2([]) == []


CONLL_U = (
    "# sent_id = 1\n# text = du Vitamin O\n1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tde\tde\tADP\tP\t_\t2\tcase\t_\t_\n2\tle\tle\tDET\tD\t_\t0\troot\t_\tSpaceAfter=No\n"
    "2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n3\t#\t#\tSYM\tS\t_\t0\troot\t_\t_\n"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("New York\tB-LOC\nno  \t\tO\n", "New York/B-LOC no/O"),
        ("EU \tNNP\tB-ORG \nno O\n", "EU/B-ORG no/O"),
        ("# id 5239\tdomain=en\nin _ _ O\nrome _ _ B-X\n\n# id 2 domain=en\nx _ _ O\n",
         "in/O rome/B-X | x/O"),
        ("# sent_id = 1\n# text = Vitamin O\n#newdoc id = O\na O\nb B-X\n", "a/O b/B-X"),
        ("#\tO\n#\tB-X\n\n# O\n# B-Y\n= O\n\n#win\tO\n", "#/O #/B-X | #/O #/B-Y =/O | #win/O"),
        (CONLL_U, "de/ADP le/DET #/SYM"),
    ],
)  # fmt: skip
def test_columns_and_comments(text, found, tmp_path):
    file = tmp_path / ("own.conllu" if text is CONLL_U else "own.txt")
    file.write_text(text)
    source, task = f"conll:{file}", get_task("tag", own=True)
    task = TableSettings().filled(task, source).described(task)
    read = read_tagged(task, "train", source=source)
    names = [[task.labels[tag] for tag in tags] for tags in read.labels]
    rows = [map("/".join, zip(*row, strict=True)) for row in zip(read.words, names, strict=True)]
    assert " | ".join(map(" ".join, rows)) == found


def test_schemes_of_entities():
    assert as_iob2(["B-PER", "I-LOC", "E-PER"]) == ["B-PER", "I-LOC", "E-PER"]
    for tags, scheme in (
        ("O B-PER I-PER", "BI"), ("I-PER O", "BI"), ("O B-X I-X E-X S-X", "BIES"), ("S-X", "BIES"),
        ("B-X I-X L-X U-X O", "BILU"), ("B-X M-X E-X S-X", "BMES"), ("B-X M-X E-X W-X O", "BMEW"),
        ("I-X E-X O", None), ("B-X 0", None), ("DET NOUN", None), ("B-X L-X S-X", None),
    ):  # fmt: skip
        assert scheme_of(tags.split()) == scheme, tags


def test_a_tag_that_only_iob2_has_is_refused(tmp_path):
    task = dataclasses.replace(get_task("tag", own=True), labels=("O", "I-XYZ"))
    (tmp_path / "own.txt").write_text("a O\nb I-XYZ\n")
    message = "line 2: the tag 'I-XYZ', in IOB2 'B-XYZ', is not one of O, I-XYZ"
    refuses(message, read_tagged, task, "train", source=f"conll:{tmp_path}/own.txt")


def test_tfds(tfds):
    found = read_tagged(TASK, "dev", tfds)
    assert len(found) == 3250 and sum(map(len, found.words)) == 51362
    counts = np.bincount(np.concatenate(found.labels), minlength=9)
    # CoNLL-2003's published entity counts of the development set: PER, ORG, LOC, MISC.
    assert counts[1::2].tolist() == [1842, 1341, 1837, 922]
    refuses("no columns named 'tokens'", read_tagged, TASK, "train", tfds, source="tfds:glue/rte")


@pytest.mark.parametrize(
    ("max_length", "cls_last"), [(n, False) for n in (3, 4, 5, 8, 9, 30, 100)] + [(9, True)]
)
def test_no_word_is_lost(vocabulary, max_length, cls_last):
    vocabulary = copy.copy(vocabulary)
    vocabulary.cls_last = cls_last
    rng = np.random.default_rng(max_length)
    words = [
        ["".join(rng.choice(list("abcdefghij"), rng.integers(1, 12))) for _ in range(count)]
        for count in (*rng.integers(1, 30, 20), 0, 1)
    ]
    words[3] = ["\u200b"]
    words[4].insert(1, "\u200b")
    labels = [rng.integers(0, 9, len(row)).astype(np.int32) for row in words]
    encoded = encode_tagged(vocabulary, TaggedSentences(words, labels), max_length)
    assert encoded.rows.lengths.max() <= max_length
    flat = np.array([word for row in words for word in row])
    seen = flat != "\u200b"
    assert (encoded.positions.rows[~seen] == -1).all()
    assert (encoded.positions.columns[~seen] == -1).all()
    place = (encoded.rows.offsets[encoded.positions.rows] + encoded.positions.columns)[seen]
    initials = [vocabulary.words.index(word[0]) for word in flat[seen]]
    assert encoded.rows.ids[place].tolist() == initials
    np.testing.assert_array_equal(encoded.labels.ids[place], 1 + np.concatenate(labels)[seen])
    # Each word is labelled once, and nothing else is labelled.
    assert (encoded.labels.ids > 0).sum() == seen.sum()
    assert encoded.splits[-1] == len(flat)
    # If a sentence has several windows, each word has a quarter of a window as context on both
    # sides.
    room = max_length - 2
    sizes = [np.array([len(word.strip("\u200b")) for word in row], int) for row in words]
    left = np.concatenate([np.cumsum(row) - row for row in sizes])[seen]
    right = np.concatenate([np.full(len(row), row.sum() - 1) for row in sizes])[seen] - left
    column = encoded.positions.columns[seen] - (not cls_last)
    assert (column >= np.minimum(left, room // 4 - 1)).all()
    assert (room - 1 - column >= np.minimum(right, room // 4 - 1)).all()


def test_batches_carry_a_label_for_each_id(vocabulary):
    words = [["ab", "c"], ["d"], ["e", "fgh", "i"]]
    labels = [np.array(tags, np.int32) for tags in ([0, 8], [3], [1, 2, 0])]
    encoded = encode_tagged(vocabulary, TaggedSentences(words, labels), 16)
    data = ExampleBatches(encoded, 4)
    (batch,) = data.dataset(repeat=False).as_numpy_iterator()
    assert batch["label"].shape == batch["token_ids"].shape == (4, 8)
    found = {tuple(row) for row in batch["label"].tolist()}
    assert found == {
        (0, 1, 0, 9, 0, 0, 0, 0),
        (0, 4, 0, 0, 0, 0, 0, 0),
        (0, 2, 3, 0, 0, 1, 0, 0),
        (0,) * 8,
    }
    assert batch["weight"].sum() == 3
    element = data.dataset(repeat=False).element_spec["label"]
    assert element.shape == (4, 8) and element.dtype == tf.int32


def test_a_word_without_a_piece_is_outside(vocabulary):
    words = tf.ragged.constant([["a", "\u200b"], ["\u200b"]])
    inputs, positions = encode_words(vocabulary, words, 8)
    assert inputs["token_ids"].shape == (2, 3)
    logits = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    found = word_probabilities(tf.constant(logits), positions).numpy()
    np.testing.assert_allclose(found[0], scipy.special.softmax(logits[0, 1]), rtol=1e-5)
    assert found[1:].tolist() == [[1, 0, 0, 0]] * 2
    found = word_probabilities(tf.constant(logits), positions, outside=2).numpy()
    assert found[1:].tolist() == [[0, 0, 1, 0]] * 2
    refuses("max_length=2", lambda: encode_tagged(vocabulary, TaggedSentences([["a"]], None), 2))
    refuses("no example", lambda: encode_tagged(vocabulary, TaggedSentences([], None), 8))
