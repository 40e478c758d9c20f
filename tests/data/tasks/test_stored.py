"""Examples stored on disk equal examples in memory."""

import mmap

import numpy as np
import pytest

from macaron_tf.data import rows as stored
from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.encoding import encode_examples
from macaron_tf.data.tasks.examples import read_examples
from macaron_tf.data.tasks.own_tables import TableSettings


@pytest.mark.parametrize("second", [False, True])
def test_examples_on_the_disk_are_those_in_memory(tmp_path, monkeypatch, vocabulary, second):
    """Stored examples and examples in memory have the same texts, ids, batches and fingerprints.

    The same rows are held out for validation.
    """
    monkeypatch.setenv("MACARON_TF_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    words = ["ä low", "new", "lower", "wide newer"]
    lines = ["label\ttext\ttext_b" if second else "label\ttext"]
    for n in range(300):
        texts = " ".join(rng.choice(words, rng.integers(1, 9))), str(rng.choice(words[2:]))
        lines.append("\t".join(["ab"[n % 2], *texts[: 1 + second]]))
    file = tmp_path / "rows.tsv"
    file.write_text("\n".join(lines))
    own, source = get_task("classify", own=True), f"tsv:{file}"
    task = TableSettings().filled(own, source).described(own)

    def found():
        examples = read_examples(task, "train", None, source)
        some = examples.take(np.arange(299, 3, -2))
        encoded = [encode_examples(vocabulary, one, 12) for one in (examples, some)]
        batches = [ExampleBatches(one, 8) for one in encoded]
        texts = [list(column) for one in (examples, some) for column in one.texts]
        given = [next(one.dataset(1, 3).as_numpy_iterator()) for one in batches]
        return encoded, texts, given, [one.fingerprint() for one in batches]

    encoded, texts, batches, prints = found()
    monkeypatch.setattr(stored, "_MAX_MEMORY_BYTES", 1 << 9)
    on_disk, same_texts, same_batches, same_prints = found()
    mapped = [isinstance(one[0].rows.ids.base, mmap.mmap) for one in (on_disk, encoded)]
    assert mapped == [True, False]
    assert texts == same_texts and prints == same_prints
    np.testing.assert_equal(batches, same_batches)
    assert not list((tmp_path / "cache").iterdir())  # the cached files are already unlinked


def test_texts_keep_what_no_encoding_has(monkeypatch, tmp_path):
    monkeypatch.setenv("MACARON_TF_CACHE", str(tmp_path))
    given = ["a", "", "\ud800", "ü\n"]

    def finished():
        texts = stored.GrowingTexts()
        for text in given:
            texts.append(text)
        return texts.finish()

    assert finished() == given
    monkeypatch.setattr(stored, "_MAX_MEMORY_BYTES", 2)
    texts = finished()
    assert isinstance(texts, stored.Texts) and list(texts) == given
    assert texts[-1] == "ü\n" and texts[1:3] == ["", "\ud800"]
    assert list(texts.take(np.array([3, 0])).take(np.array([1]))) == ["a"]
