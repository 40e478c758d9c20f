"""Tests of translation data: cleaning, epochs of batches, the cache and errors."""

import concurrent.futures
import resource
import shutil
import time

import filelock
import numpy as np
import pytest

from macaron_tf.data import translation
from macaron_tf.data.batches import BucketBatches
from macaron_tf.data.translation import (
    BatchingConfig,
    CleaningConfig,
    TranslationData,
    clean_pairs,
    find_repeats,
)
from macaron_tf.text import SentencePieceVocabulary
from macaron_tf.text.normalization import NormalizationConfig
from tests.harness import refuses
from tests.toys.corpora import contents

SMALL = BatchingConfig(max_tokens=200, shapes=5)


@pytest.fixture(scope="module")
def data(toy_pairs, toy_vocabulary):
    return TranslationData.from_pairs(toy_pairs, toy_vocabulary, batching=SMALL)


PAIRS = [
    ("a b c", "x y z"),
    ("", "x"),
    ("a", " \t "),
    ("a", "x"),
    ("a b c d", "x y"),
    ("a b c", "x y z"),
    ("a b c d e f", "u v w x y z"),
]


def test_each_reason_of_removal_is_counted():
    config = CleaningConfig(max_length=5, max_ratio=1.5, deduplicate=True)
    kept, removed = clean_pairs(PAIRS, config, find_repeats(PAIRS, set()))
    assert kept.tolist() == [0, 3]
    assert removed == {"empty": 2, "too long": 1, "ratio": 1, "duplicate": 1}
    kept, removed = clean_pairs(PAIRS, CleaningConfig())
    assert kept.tolist() == [0, 3, 4, 5, 6]
    assert sum(removed.values()) == removed["empty"] == 2
    # A ratio equal to the maximum is kept.
    kept, _ = clean_pairs([("a b c", "x y"), ("a b", "x y z")], CleaningConfig(max_ratio=1.5))
    assert kept.tolist() == [0, 1]


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_repeated_pairs_are_found_whatever_the_parts(size):
    pairs = [(str(n % 7), "\udc80" * (n % 3)) for n in range(50)]
    seen, found = set(), []
    for part in translation.in_chunks(pairs, size):
        found += find_repeats(part, seen).tolist()
    assert found == [pair in pairs[:n] for n, pair in enumerate(pairs)]
    assert not find_repeats([("a", "b\tc"), ("a", "b")], set()).any()


def test_tokens_are_counted(data, toy_pairs, toy_vocabulary):
    sources, targets = (toy_vocabulary.encode_lines(side) for side in zip(*toy_pairs, strict=True))
    assert data.tokens.source.size == sum(len(row) + 1 for row in sources)
    assert data.tokens.target.size == sum(len(row) + 1 for row in targets)
    assert data.summary().startswith(
        f"300 examples, {data.steps_per_epoch} steps per epoch, shapes"
    )
    assert data.summary().endswith("; none removed")


def test_index_counts_from_before_cleaning(toy_vocabulary):
    pairs = [("", "x"), ("the man", "der mann"), ("a " * 50, "a"), ("a dog", "ein hund")]
    cleaning = CleaningConfig(max_tokens=20)
    data = TranslationData.from_pairs(pairs, toy_vocabulary, cleaning=cleaning)
    batch = next(data.evaluation_dataset().as_numpy_iterator())
    assert sorted(batch["index"][batch["index"] >= 0].tolist()) == [1, 3]
    assert data.tokens.removed["too many tokens"] == 1
    assert "1 empty, 1 too many tokens" in data.summary()


def test_one_pair_or_none(toy_vocabulary, toy_pairs):
    data = TranslationData.from_pairs([("the man", "der mann")], toy_vocabulary)
    assert data.steps_per_epoch == 1
    batches = list(data.dataset(repeat=False).as_numpy_iterator())
    assert len(batches) == 1 and batches[0]["source"].any(axis=1).sum() == 1
    assert batches[0]["source"].shape == data.shapes[0]
    from_pairs, few = TranslationData.from_pairs, BatchingConfig(max_tokens=10)
    for pair, reason in ((("", "x"), "empty"), (("\x00", "\x00"), "no token")):
        message = f"is left to batch .removed: 1 {reason}.: check"
        refuses(message, from_pairs, [pair], toy_vocabulary)
    message = "a batch of 10 tokens cannot hold a sequence"
    refuses(message, from_pairs, toy_pairs, toy_vocabulary, batching=few)


def write(folder, pairs):
    (folder / "all.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")


@pytest.fixture
def build(toy_pairs, toy_vocabulary, tmp_path, monkeypatch):
    """Returns `run(vocabulary, **options)`, which builds `TranslationData` from a table of pairs.

    The function returns the data, and the number of times that the table was read so far.
    """
    write(tmp_path, toy_pairs)
    monkeypatch.setenv("MACARON_TF_CACHE", f"{tmp_path}/cache")
    reads, real = [], translation.stream_pairs
    monkeypatch.setattr(translation, "stream_pairs", lambda *a: reads.append(a) or real(*a))

    def run(vocabulary=toy_vocabulary, **options):
        data = TranslationData.build(f"tsv:{tmp_path}/all.tsv", "train", vocabulary, **options)
        return data, len(reads)

    return run


def test_cache_is_used_and_keyed(build, data, toy_pairs, toy_vocabulary, tmp_path):
    first, count = build(batching=SMALL)
    assert count == 1
    np.testing.assert_equal(next(first.batches(seed=1)), next(data.batches(seed=1)))
    assert build(batching=BatchingConfig(max_tokens=512))[1] == 1  # tokens are cached unbatched
    assert build(cleaning=CleaningConfig(max_length=10))[1] == 2
    lower = NormalizationConfig(lower_case=True)
    other = SentencePieceVocabulary(toy_vocabulary.proto, lower, ("en", "de"))
    assert build(other)[1] == 3
    other = SentencePieceVocabulary(toy_vocabulary.proto, languages=("de", "en"))
    assert build(other)[1] == 4
    write(tmp_path, toy_pairs[:200])
    shorter, count = build()
    assert count == 5 and len(shorter) == 200


def test_errors_of_the_text(build, tmp_path):
    write(tmp_path, [("", "x")] * 3)
    refuses("no pair of texts is left to batch .removed: 3 empty", build)
    (tmp_path / "all.tsv").unlink()
    refuses("cannot read", build)


@pytest.fixture
def chunks(monkeypatch):
    """Makes chunks small, so that the toy corpus has five chunks."""
    monkeypatch.setattr(translation, "CHUNK_PAIRS", 64)


def taken(tmp_path):
    """Removes the only tokens in the cache; returns their folder and the content of their files."""
    (folder,) = tmp_path.glob("cache/tokens/*")
    files = contents(folder)
    shutil.rmtree(folder)
    return folder, files


def test_many_chunks_are_one_corpus(build, chunks, toy_pairs, tmp_path, monkeypatch):
    write(tmp_path, [*toy_pairs, ("", "x"), *toy_pairs[:9], ("new", "neu")])
    options = {"batching": SMALL, "cleaning": CleaningConfig(deduplicate=True)}
    many, _ = build(processes=1, **options)
    assert many.tokens.removed["duplicate"] >= 9 and many.tokens.removed["empty"] == 1
    assert BucketBatches.fingerprint(many) == many.fingerprint()
    again, count = build(**options)
    assert count == 1
    for one, two in zip(many.batches(seed=3, repeat=False), again.batches(3), strict=False):
        np.testing.assert_equal(one, two)
    # Equal to a corpus of one chunk.
    monkeypatch.setattr(translation, "CHUNK_PAIRS", 1000)
    whole, _ = build(**options)
    assert whole.fingerprint() == many.fingerprint()
    assert whole.tokens.removed == many.tokens.removed
    np.testing.assert_equal(next(many.batches(1, 5)), next(whole.batches(1, 5)))


class Killed(BaseException):
    """An exception that simulates a killed process; `except Exception` does not catch it."""


@pytest.mark.parametrize("after", [0, 2, 4])
def test_killed_and_resumed_has_the_same_bytes(build, chunks, tmp_path, monkeypatch, after):
    build(processes=1)
    folder, whole = taken(tmp_path)
    real, made = translation.tokenize_pairs, []

    def tokenize(vocabulary, cleaning, chunk):
        made.append(0)
        if len(made) > after:
            (folder / f".tmp-part-0000{after}.rows-1").write_bytes(b"half")
            raise Killed
        return real(vocabulary, cleaning, chunk)

    monkeypatch.setattr(translation, "tokenize_pairs", tokenize)
    with pytest.raises(Killed):
        build(processes=1)
    monkeypatch.setattr(translation, "tokenize_pairs", lambda *a: made.append(0) or real(*a))
    made.clear()
    build(processes=1)
    assert len(made) == 5 - after
    assert contents(folder) == whole


@pytest.mark.parametrize("name", ["corpus.json", "train-00000.rows"])
@pytest.mark.parametrize("damage", ["remove", "cut", "flip", "empty", "dtype"])
def test_damage_is_noticed(build, chunks, tmp_path, name, damage):
    build(processes=1)
    [path] = tmp_path.glob(f"cache/tokens/*/{name}")
    content = path.read_bytes()
    changed = {"cut": content[:-1], "flip": content[:-2] + bytes([content[-2] ^ 1, content[-1]])}
    changed |= {"empty": b"", "dtype": content.replace(b"<u2", b"<u9") + b" "}
    path.unlink() if damage == "remove" else path.write_bytes(changed[damage])
    for _ in range(2):
        data, count = build(processes=1)
        assert count == 2 and len(data) == 300 and path.read_bytes() == content


def test_a_source_that_changes_is_never_mixed(build, chunks, tmp_path, monkeypatch):
    real = translation.stream_pairs

    def changing(*arguments):
        for number, pair in enumerate(real(*arguments)):
            if number == 100:
                with open(tmp_path / "all.tsv", "a", encoding="utf-8") as file:
                    file.write("one more\teins mehr\n")
            yield pair

    monkeypatch.setattr(translation, "stream_pairs", changing)
    refuses("all.tsv changed while it was being read: start again", build)
    monkeypatch.setattr(translation, "stream_pairs", real)
    data, _ = build(processes=1)
    assert len(data) == 301  # in a new cache folder
    assert len(list(tmp_path.glob("cache/tokens/*"))) == 2


def test_a_full_disk(build, chunks):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        refuses("cannot write .*File too large.*MACARON_TF_CACHE", build, processes=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(build(processes=1)[0]) == 300


def test_another_process_is_waited_for(build, tmp_path):
    first, _ = build()
    (folder,) = tmp_path.glob("cache/tokens/*")
    index = folder / "corpus.json"
    index.rename(folder / "away")  # as if the other process were still writing
    lock = filelock.FileLock(folder / ".lock")
    lock.acquire()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        second = threads.submit(build)
        time.sleep(0.3)
        assert not second.done()
        (folder / "away").rename(index)
        lock.release()
        data, count = second.result()
    assert count == 1 and data.fingerprint() == first.fingerprint()


@pytest.mark.slow
def test_processes_make_the_same_bytes(build, chunks, tmp_path):
    build(processes=1, cleaning=CleaningConfig(deduplicate=True))
    folder, whole = taken(tmp_path)
    build(processes=2, cleaning=CleaningConfig(deduplicate=True))
    assert contents(folder) == whole
