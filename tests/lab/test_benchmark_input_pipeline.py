"""All implementations in the input benchmark read equal tokens and mask equally many tokens."""

import itertools

import numpy as np
import pytest

from experiments.lab.benchmarks import input_pipeline
from experiments.lab.benchmarks.harness import made_up_texts
from experiments.lab.benchmarks.input_pipeline import IGNORED_LABEL, mask_rows
from macaron_tf.text import WordPieceVocabulary

pytest.importorskip("tokenizers")
LENGTH, BATCH = 64, 32


@pytest.fixture(scope="module")
def texts():
    return list(itertools.islice(made_up_texts(), 24))


@pytest.fixture(scope="module")
def vocabulary(texts):
    return WordPieceVocabulary.train("\n".join(texts).split("\n"), 600)


@pytest.fixture(scope="module")
def work(texts, vocabulary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    return input_pipeline.Work(texts, vocabulary, LENGTH, BATCH, folder)


def test_the_contenders_read_equal_tokens_and_count_them(work):
    work.check()
    rows = np.concatenate(list(work.macaron_tf_rows()))
    assert work.tokens == (rows != 0).sum() > 10_000
    # Words of several pieces, commas and full stops occur.
    assert len(np.unique(rows)) > 300
    units = {name: run() for name, run in work.contenders(passes=3).items()}
    assert units[input_pipeline.REFERENCE] == units[input_pipeline.FROM_TEXT] == work.tokens
    assert units[input_pipeline.FROM_SHARDS] == pytest.approx(3 * work.tokens, rel=0.05)


def test_all_ask_for_as_many_tokens_and_hide_as_many(work, vocabulary):
    rows = np.concatenate(list(work.macaron_tf_rows()))
    ordinary = (~np.isin(rows, vocabulary.special.ids)).sum()
    ours = work.text_dataset(), work.masked(work.shard_rows(1))
    shares = [_shares(*_asked(_stacked(dataset.as_numpy_iterator()))) for dataset in ours]
    theirs = _stacked(work.hugging_face_batches())
    asked = theirs["labels"] != IGNORED_LABEL
    shares.append(_shares(theirs["labels"][asked], theirs["token_ids"][asked]))
    for count, hidden, kept in shares:
        # The last batch of an epoch of shards is not full.
        assert count / ordinary == pytest.approx(0.15, rel=0.08)
        assert hidden == pytest.approx(0.8, abs=0.03)
        assert kept == pytest.approx(0.1, abs=0.03)


def _stacked(batches) -> dict:
    batches = list(batches)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def _asked(batch) -> tuple[np.ndarray, np.ndarray]:
    real = batch["masked_weights"] > 0
    found = np.take_along_axis(batch["token_ids"], batch["masked_positions"], 1)
    return batch["masked_labels"][real], found[real]


def _shares(labels, found) -> tuple[int, float, float]:
    return len(labels), (found == 4).mean(), (found == labels).mean()


def test_the_peer_masks_no_special_token_and_draws_none(vocabulary):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, vocabulary.pieces, (400, 64), np.int32)
    special = np.isin(rows, vocabulary.special.ids)
    found = mask_rows(rows, vocabulary, rng)
    asked = found["labels"] != IGNORED_LABEL
    assert not asked[special].any()
    np.testing.assert_array_equal(found["labels"][asked], rows[asked])
    np.testing.assert_array_equal(found["token_ids"][~asked], rows[~asked])
    drawn = np.setdiff1d(found["token_ids"][asked], vocabulary.special.mask)
    assert not np.isin(drawn, vocabulary.special.ids).any() and drawn.max() < vocabulary.pieces


def test_made_up_text_is_the_same_each_time(texts):
    assert next(made_up_texts()) == texts[0] != texts[1]
    assert all(3_000 < len(text) < 9_000 and text.count("\n") == 9 for text in texts)
