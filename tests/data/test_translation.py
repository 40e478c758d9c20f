"""Sentence pairs: which are kept, the epochs of their batches, the cache, the errors."""

import numpy as np
import pytest

from macaron_tf.data import translation
from macaron_tf.data.translation import (
    BatchingConfig,
    BpeDropoutConfig,
    CleaningConfig,
    TranslationData,
    clean_pairs,
)
from macaron_tf.errors import UserError
from macaron_tf.text import SentencePieceVocabulary
from macaron_tf.text.normalization import NormalizationConfig
from tests.harness import refuses

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
    config = CleaningConfig(min_length=2, max_length=5, max_ratio=1.5, deduplicate=True)
    kept, removed = clean_pairs(PAIRS, config)
    assert kept.tolist() == [0]
    assert removed == {"empty": 2, "too short": 1, "too long": 1, "ratio": 1, "duplicate": 1}
    kept, removed = clean_pairs(PAIRS, CleaningConfig())
    assert kept.tolist() == [0, 3, 4, 5, 6]
    assert sum(removed.values()) == removed["empty"] == 2
    refuses("max_length=8 is less than min_length 9", CleaningConfig, min_length=9, max_length=8)
    # The ratio itself is kept.
    kept, _ = clean_pairs([("a b c", "x y"), ("a b", "x y z")], CleaningConfig(max_ratio=1.5))
    assert kept.tolist() == [0, 1]


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_tokens_are_counted(data, toy_pairs, toy_vocabulary):
    sources, targets = (toy_vocabulary.encode_lines(side) for side in zip(*toy_pairs, strict=True))
    assert data.source_tokens == sum(len(row) + 1 for row in sources)
    assert data.target_tokens == sum(len(row) + 1 for row in targets)
    summary = data.summary()
    assert summary.startswith(f"300 pairs (none removed), {data.source_tokens:,} source and ")
    assert f"{data.steps_per_epoch} steps an epoch, {data.padding_efficiency():.1%} of" in summary


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
    with pytest.raises(UserError, match="no pair to batch: removed: 1 empty"):
        TranslationData.from_pairs([("", "x")], toy_vocabulary)
    with pytest.raises(UserError, match="no pair to batch: removed: 1 no token"):
        TranslationData.from_pairs([("\x00", "\x00")], toy_vocabulary)
    few = {"batching": BatchingConfig(max_tokens=10)}
    message = "a batch of 10 tokens cannot hold a row"
    refuses(message, TranslationData.from_pairs, toy_pairs, toy_vocabulary, **few)


def write(folder, pairs):
    (folder / "all.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")


@pytest.fixture
def build(toy_pairs, toy_vocabulary, tmp_path, monkeypatch):
    """`TranslationData.build` on a file; it also counts how often the file was read."""
    write(tmp_path, toy_pairs)
    monkeypatch.setenv("MACARON_TF_CACHE", f"{tmp_path}/cache")
    reads, real = [], translation.read_pairs
    monkeypatch.setattr(
        translation,
        "read_pairs",
        lambda *args, **kwargs: reads.append(args) or real(*args, **kwargs),
    )

    def run(vocabulary=toy_vocabulary, **options):
        data = TranslationData.build(f"tsv:{tmp_path}/all.tsv", "train", vocabulary, **options)
        return data, len(reads)

    return run


def test_bpe_dropout_copies(build, toy_pairs, toy_vocabulary):
    sampling = BpeDropoutConfig(dropout=0.2, copies=3)
    data, _ = build(sampling=sampling)
    assert len(data) == 900
    assert np.bincount(data.tokens.indices).tolist() == [3] * 300
    again = translation.tokenize(toy_pairs, toy_vocabulary, CleaningConfig(), sampling)
    assert np.array_equal(again.source.ids, data.tokens.source.ids)
    other, _ = build(sampling=BpeDropoutConfig(0.2, 3, 1))
    assert not np.array_equal(other.tokens.source.offsets, data.tokens.source.offsets)


def test_cache_is_used_and_keyed(build, data, toy_pairs, toy_vocabulary, tmp_path):
    first, count = build(batching=SMALL)
    assert count == 1
    assert equal(next(first.batches(seed=1)), next(data.batches(seed=1)))
    assert build(batching=BatchingConfig(max_tokens=512))[1] == 1  # tokens know no batches
    assert build(cleaning=CleaningConfig(max_length=10))[1] == 2
    lower = NormalizationConfig(lower_case=True)
    other = SentencePieceVocabulary(toy_vocabulary.proto, lower, ("en", "de"))
    assert build(other)[1] == 3
    other = SentencePieceVocabulary(toy_vocabulary.proto, languages=("de", "en"))
    assert build(other)[1] == 4
    write(tmp_path, toy_pairs[:200])
    shorter, count = build()
    assert count == 5 and len(shorter) == 200


def test_damaged_cache_is_made_again(build, tmp_path):
    first, _ = build()
    (path,) = tmp_path.glob("cache/tokens/*.tokens")
    path.write_bytes(path.read_bytes()[:-5])
    again, count = build()
    assert count == 2
    assert equal(next(first.batches()), next(again.batches()))
    assert build()[1] == 2


def test_errors_leave_no_cache(build, tmp_path):
    with pytest.raises(UserError, match=r"no pair of tsv:.*, split 'train', is left after clean"):
        build(cleaning=CleaningConfig(min_length=100))
    (tmp_path / "all.tsv").unlink()
    refuses("cannot read", build)
    assert not (tmp_path / "cache").exists()


def test_real_corpus_is_batched_well(real_pairs, real_vocabulary):
    data = TranslationData.from_pairs(
        real_pairs, real_vocabulary, batching=BatchingConfig(max_tokens=512)
    )
    assert data.padding_efficiency() > 0.8
