"""Rows of causal models, and of choices."""

import numpy as np
import pytest
import tensorflow as tf

from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.choices import encode_choices, read_choices
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.encoding import encode_causal
from macaron_tf.errors import UserError
from tests.data.word_vocabulary import WordVocabulary

START, DELIMITER, EXTRACT = 2, 3, 4
A, B, C, D, E = range(5, 10)


@pytest.fixture(scope="module")
def vocabulary():
    return WordVocabulary("abcde")


def test_start_delimiter_and_extract(vocabulary):
    one = encode_causal(vocabulary, tf.constant(["a b", "c"]), None, 8)
    assert one["token_ids"].numpy().tolist() == [[START, A, B, EXTRACT], [START, C, EXTRACT, 0]]
    two = encode_causal(vocabulary, tf.constant(["a b", ""]), tf.constant(["c", "d e"]), 8)
    assert two["token_ids"].numpy().tolist() == [
        [START, A, B, DELIMITER, C, EXTRACT],
        [START, DELIMITER, D, E, EXTRACT, 0],
    ]
    assert two["segment_ids"].numpy().tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 0]]
    cut = encode_causal(vocabulary, tf.constant(["a b c d e"]), None, 5)
    assert cut["token_ids"].numpy().tolist() == [[START, A, B, C, EXTRACT]]


def write(path, lines):
    header = ["context\tending1\tending2\tlabel"]
    path.write_text("".join(f"{line}\n" for line in header + lines))
    return f"tsv:{path}"


def test_each_choice_is_a_row_of_its_context(vocabulary, tmp_path):
    task = get_task("story_cloze")
    source = write(tmp_path / "all.tsv", ["a b\tc\td e\t2", "c\ta\tb\t1", "e\td d d\ta\t1"])
    found = read_choices(task, "train", source=source)
    assert (found.contexts, found.choices) == (["a b", "c", "e"], (["c", "a", "d d d"],
                                                                  ["d e", "b", "a"]))  # fmt: skip
    assert found.labels.tolist() == [1, 0, 0]
    encoded = encode_choices(vocabulary, found, 16, causal=True)
    assert encoded.count == 2 and encoded.lengths.tolist() == [7, 5, 7]
    data = ExampleBatches(encoded, 2, shapes=1, length_multiple=1)
    assert (len(data), data.steps_per_epoch) == (3, 2)
    seen = {}
    for batch in data.evaluation_dataset().as_numpy_iterator():
        assert batch["token_ids"].shape == batch["segment_ids"].shape == (2, 2, 7)
        for number, ids, label in zip(
            batch["index"], batch["token_ids"], batch["label"], strict=True
        ):
            seen[int(number)] = ([list(row[row != 0]) for row in ids], int(label))
    assert seen.pop(-1) == ([[], []], 0)
    assert seen == {
        0: ([[START, A, B, DELIMITER, C, EXTRACT], [START, A, B, DELIMITER, D, E, EXTRACT]], 1),
        1: ([[START, C, DELIMITER, A, EXTRACT], [START, C, DELIMITER, B, EXTRACT]], 0),
        2: ([[START, E, DELIMITER, D, D, D, EXTRACT], [START, E, DELIMITER, A, EXTRACT]], 0),
    }
    assert "real" in data.summary() and np.isfinite(data.row_lengths).all()


def test_a_wrong_table_is_named(tmp_path):
    task = get_task("story_cloze")
    with pytest.raises(UserError, match="the task 'story_cloze' has no data of its own"):
        read_choices(task, "train")
    source = write(tmp_path / "all.tsv", ["a b\tc\td e\t3"])
    with pytest.raises(UserError, match="line 2: '3' in column 'label' is not one of the classes"):
        read_choices(task, "train", source=source)
