"""Tests of packing running text, sentence pairs and translations into rows."""

import collections
import itertools

import numpy as np
import pytest

from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.packing import (
    Packer,
    Row,
    pack_pairs,
    pack_rows,
    pack_translations,
    token_ids_of,
)
from macaron_tf.data.corpus.reading import features
from macaron_tf.data.rows import Store
from macaron_tf.io.paths import as_path
from macaron_tf.special import Special
from macaron_tf.text.token_rows import TokenRows
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary

CLS, SEP = 2, 3


def in_sentences(*documents: list[int]) -> list[TokenRows]:
    """Returns one document for each list of sentence lengths.

    The token ids count up from 10 through all documents.
    """
    bounds = 10 + np.cumsum([0, *map(sum, documents)])
    return [
        TokenRows(np.arange(a, b), np.unique(np.cumsum([0, *lengths])))
        for (a, b), lengths in zip(itertools.pairwise(bounds), documents, strict=True)
    ]


Rows = collections.namedtuple("Rows", "token_ids boundaries pair_label owners")


def filled(rows: list[Row], length: int) -> Rows:
    columns = (np.array([row[i] for row in rows], int) for i in (2, 3, 1))
    return Rows(token_ids_of(rows, length, Special()), *columns)


SENTENCES = ([2, 3], [1, 4, 1], [3])


@pytest.mark.parametrize(
    ("documents", "across", "whole_sentences", "expected", "owners"),
    [
        (([7], [0], [2], [6]), 0, 0, "^abc| ^def| ^g|.. ^hi|. ^jkl| ^mno|", [0, 0, 0, 2, 3, 3]),
        (([4], [1], [3], [1], [1], [9]), 1, 0, "^abcd|e| ^fgh|i|. ^j|klmn| ^opqrs|.", [0, 2, 4, 5]),
        (SENTENCES, 1, 1, "^abcde|f| ^ghijk|.. ^lmn|....", [0, 1, 2]),
        (SENTENCES, 0, 1, "^abcde|. ^fghijk| ^lmn|...", [0, 1, 2]),
        # A sentence longer than a row is cut, and its rest goes before the next sentence.
        (([2, 7, 1, 2],), 0, 1, "^ab|.. ^cdef| ^ghij| ^kl|..", [0] * 4),
        (([2, 7, 1, 2],), 1, 1, "^ab|.. ^cdef| ^ghij| ^kl|..", [0] * 4),
    ],
    ids=["doc_text", "full_text", "full_sentences", "doc_sentences", "cut", "cut across"],
)
def test_rows_of_running_text(documents, across, whole_sentences, expected, owners):
    """Rows hold the expected ids, and `owners` holds the document index of each row.

    Rows are spelt with "a" for the id 10, "b" for 11, ..., "^" for [CLS], "|" for [SEP] and "." for
    padding.
    """
    expected = expected.split()
    length = len(expected[0])
    rows = filled(pack_rows(in_sentences(*documents), length, across, whole_sentences), length)
    spelt = [[".?^|"[i] if i < 10 else chr(ord("a") + i - 10) for i in row] for row in rows[0]]
    assert list(map("".join, spelt)) == expected and rows.owners.tolist() == owners
    assert set(rows.boundaries) == {length} and set(rows.pair_label) == {0}
    assert filled(pack_rows([], length, across), length).token_ids.shape == (0, length)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("whole_sentences", [False, True])
@pytest.mark.parametrize("length", [3, 4, 17, 40])
def test_rows_hold_as_much_as_fits(across, whole_sentences, length):
    """Rows hold as many sentences as fit, or as many ids, like sentences of a single id."""
    rng = np.random.default_rng(1)
    lengths = [rng.integers(1, 30, rng.integers(0, 9)).tolist() for _ in range(60)]
    documents = in_sentences(*lengths)
    rows = filled(pack_rows(documents, length, across, whole_sentences), length).token_ids
    assert (rows[:, 0] == CLS).all()
    assert all(row[np.flatnonzero(row)[-1]] == SEP for row in rows)
    expected, row, owner = [], [], 0
    for number, document in enumerate(documents):
        offsets = document.offsets if whole_sentences else range(len(document.ids) + 1)
        for a, b in itertools.pairwise(offsets):
            sentence = document.ids[a:b].tolist()
            border = [SEP] if row and owner != number else []
            if row and (len(row + border + sentence) > length - 2 or (border and not across)):
                expected.append(row)
                row, border = [], []
            while len(sentence) > length - 2:
                expected.append(sentence[: length - 2])
                sentence = sentence[length - 2 :]
            row, owner = row + border + sentence, number
    assert [row[1 : np.flatnonzero(row)[-1]].tolist() for row in rows] == [*expected, row]


FIVES = [5] * 100  # a document with sentences of 5 ids


def document_of(number: int) -> int:
    """Returns the index of the document that contains an id of `in_sentences(FIVES, ...)`."""
    return (number - 10) // 500


def paired(documents, seed, length=64, **options) -> Rows:
    rng = np.random.default_rng(seed)
    return filled(pack_pairs(documents, length, rng, **options), length)


def halves(row: np.ndarray, boundary: int) -> tuple[np.ndarray, np.ndarray]:
    return row[1 : boundary - 1], row[boundary : np.flatnonzero(row == SEP)[-1]]


@pytest.mark.parametrize("single_sentences", [False, True])
def test_next_sentences_are_berts(single_sentences):
    # Sentences have 5 ids and pairs 61, so few chunks have a single sentence.
    rows = paired(in_sentences(*[FIVES] * 40), 1, single_sentences=single_sentences)
    assert len(rows.token_ids) > 400
    real = (rows.token_ids != 0).sum(axis=1)
    follows = np.zeros(len(real), bool)
    for number, (row, boundary) in enumerate(zip(rows.token_ids, rows.boundaries, strict=True)):
        assert row[0] == CLS and row[boundary - 1] == SEP and row[real[number] - 1] == SEP
        assert (row == SEP).sum() == 2 and (row == CLS).sum() == 1
        a, b = halves(row, boundary)
        assert len(a) and len(b)
        for half in (a, b):  # each is a span of one document
            assert (np.diff(half) == 1).all() and document_of(half[0]) == document_of(half[-1])
        same = document_of(a[0]) == document_of(b[0])
        assert document_of(a[0]) == rows.owners[number]
        assert same == (rows.pair_label[number] == 0)
        if same:
            # Between the halves lie at most the ids that trimming removed: one sentence.
            assert 0 < b[0] - a[-1] <= (1 if single_sentences else 5 + 1)
            follows[number] = True
        if single_sentences:
            assert len(a) == len(b) == 5 and a[0] % 5 == b[0] % 5 == 0
    assert abs(follows.mean() - 0.5) < (0.05 if single_sentences else 0.06)
    if not single_sentences:
        short = (real < 60).mean()  # the target is 10% of rows, plus ends of documents
        assert 0.05 < short < 0.25


def test_every_sentence_of_a_document_is_used():
    documents = in_sentences(*np.random.default_rng(2).integers(1, 21, (5, 30)).tolist())
    rows = paired(documents, 2, 512, short_probability=0.0)
    found = set(rows.token_ids[rows.token_ids >= 10].tolist())
    assert found == set(np.concatenate([d.ids for d in documents]).tolist())
    one, again, other = (paired(documents, seed, 32).token_ids for seed in (1, 1, 2))
    assert np.array_equal(one, again) and not np.array_equal(one, other)


def test_the_longer_half_is_trimmed_at_either_end():
    one = TokenRows(np.arange(10, 1010), np.array([0, 1000]))  # a book without a full stop
    two = TokenRows(np.arange(5000, 5020), np.array([0, 10, 20]))
    fronts = set()
    for seed in range(20):
        rows = paired([one, two], seed, 35, short_probability=0.0)
        a, b = halves(rows.token_ids[0], rows.boundaries[0])
        assert rows.owners[0] == 0 and rows.pair_label[0] == 1  # the other half is another document
        assert len(a) + len(b) == 32 and len(b) in (10, 16)
        assert a[0] > 10 and a[-1] < 1009
        fronts.add(int(a[0]))
    assert len(fronts) > 10


@pytest.mark.parametrize("single_sentences", [False, True])
def test_sentence_order_swaps_half_of_consecutive_segments(single_sentences):
    documents = in_sentences(*[FIVES] * 900)
    rows = paired(documents, 3, pairs="sentence_order", single_sentences=single_sentences)
    count = len(rows.token_ids)
    assert count > (44_000 if single_sentences else 7_000)
    used = collections.Counter()
    for row, boundary, label, owner in zip(*rows, strict=True):
        a, b = halves(row, boundary)[:: -1 if label else 1]
        assert len(a) and len(b)
        assert document_of(a[0]) == document_of(b[-1]) == owner
        assert (np.diff(a) == 1).all() and (np.diff(b) == 1).all()
        # Between the halves lie at most the ids that trimming removed: one sentence.
        assert 0 < b[0] - a[-1] <= 5 + 1
        if single_sentences:
            assert len(a) == len(b) == 5 and b[0] == a[-1] + 1
        used[(owner, int(a[0]))] += 1
    assert max(used.values()) == 1  # no segment is repeated
    share = rows.pair_label.mean()
    assert abs(share - 0.5) < 3 * 0.5 / np.sqrt(count)


def test_a_sentence_alone_is_cut_inside_for_its_order():
    alone = TokenRows(np.arange(10, 30), np.array([0, 20]))
    cuts, labels = collections.Counter(), []
    for seed in range(400):
        rows = paired([alone], seed, pairs="sentence_order", short_probability=0.0)
        a, b = halves(rows.token_ids[0], rows.boundaries[0])
        labels.append(int(rows.pair_label[0]))
        first, second = (b, a) if labels[-1] else (a, b)
        assert np.concatenate([first, second]).tolist() == list(range(10, 30))
        cuts[len(first)] += 1
    assert set(cuts) == set(range(1, 20))
    assert abs(np.mean(labels) - 0.5) < 0.075
    one_id = TokenRows(np.array([10]), np.array([0, 1]))
    assert paired([one_id], 0, pairs="sentence_order").token_ids.shape == (0, 64)


def test_translations_are_a_row_each_or_left_out():
    pairs = [
        TokenRows(np.arange(10, 15), np.array([0, 2, 5])),
        TokenRows(np.arange(20, 23), np.array([0, 3])),  # one side has no ids
        TokenRows(np.arange(30, 36), np.array([0, 3, 6])),  # too long
        TokenRows(np.arange(40, 42), np.array([0, 1, 2])),
    ]
    rows = filled(pack_translations(pairs, 8), 8)
    assert rows.token_ids.tolist() == [[2, 10, 11, 3, 12, 13, 14, 3], [2, 40, 3, 41, 3, 0, 0, 0]]
    assert rows.boundaries.tolist() == [4, 3] and rows.owners.tolist() == [0, 3]
    assert rows.pair_label.tolist() == [0, 0]
    assert pack_translations([], 8) == []


@pytest.fixture
def read_back(tmp_path):
    """Returns a function that writes rows to a shard, and returns their features."""

    def read_back(config: CorpusConfig, vocabulary_size: int, rows: list[Row], languages) -> dict:
        pieces = [*SPECIAL_PIECES, *map(str, range(vocabulary_size - len(SPECIAL_PIECES)))]
        packer, store = Packer(config, WordPieceVocabulary(pieces)), Store(as_path(tmp_path))
        store.add("train", packer.columns(rows, np.array(languages)))
        [shard] = store.shards.pop("train")
        columns = shard.read(store.folder)
        assert len({column.dtype for column in columns.values()}) == 1
        part = shard.read(store.folder, slice(1, None))
        np.testing.assert_equal(part, {name: column[1:] for name, column in columns.items()})
        inputs = features(columns, Special.pad)
        return {name: value.numpy().tolist() for name, value in inputs.items()}

    return read_back


@pytest.mark.parametrize("vocabulary_size", [1 << 16, 70_000])
def test_a_record_comes_back(vocabulary_size, read_back):
    config = CorpusConfig(("text:a",), sequence_length=8, pairs="next_sentence")
    top = vocabulary_size - 1
    rows = [Row([[5], [top]], 0, 3, 1), Row([[top, top], [6]], 0, 4)]
    assert read_back(config, vocabulary_size, rows, [[0, 0], [0, 0]]) == {
        "token_ids": [[2, 5, 3, top, 3, 0, 0, 0], [2, top, top, 3, 6, 3, 0, 0]],
        "segment_ids": [[0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1, 0, 0]],
        "pair_label": [1, 0],
    }


def test_a_record_of_several_languages_comes_back(read_back):
    sources = (
        CorpusSource("text:a", language="de"),
        CorpusSource("text:b", language="en"),
        CorpusSource("tsv:c", language=("en", "de")),
    )
    config = CorpusConfig(sources, sequence_length=8)
    rows = [Row([[5], [6, 7]], 0, 3), Row([[5, 6, 7, 8, 9, 10]], 1, 8)]
    assert read_back(config, 100, rows, [[1, 0], [0, 0]]) == {
        "token_ids": [[2, 5, 3, 6, 7, 3, 0, 0], [2, 5, 6, 7, 8, 9, 10, 3]],
        "segment_ids": [[0, 0, 0, 1, 1, 1, 0, 0], [0] * 8],
        "language_ids": [[1, 1, 1, 0, 0, 0, 0, 0], [0] * 8],
        "position_ids": [[0, 1, 2, 0, 1, 2, 3, 4], list(range(8))],
    }
    config = CorpusConfig(sources[:2], sequence_length=8, pairs="sentence_order")
    found = read_back(config, 100, rows, [[1, 1], [0, 0]])
    assert found["language_ids"] == [[1] * 8, [0] * 8]
    assert set(found) == {"token_ids", "segment_ids", "pair_label", "language_ids"}
