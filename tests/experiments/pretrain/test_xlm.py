"""Tests of XLM: one language per batch, alternating MLM and TLM, bit-identical resumption."""

import numpy as np
import pytest
import tensorflow as tf

from experiments import registry
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.distribution import Workers
from macaron_tf.runs.pretraining import PretrainingRecipe, _batches
from macaron_tf.runs.run import Run
from tests.toys.numbers import NUMBERS, number_pairs
from tests.toys.pretraining import flags, prepare, toy_settings
from tests.toys.runs import check_resumed

WORDS = {"en": set(NUMBERS), "de": set(NUMBERS.values())}
CODES = tuple(WORDS)


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[tuple]:
    """Returns corpus sources: English numbers, half as many German numbers, translation pairs."""
    folder, pairs = tmp_path_factory.mktemp("numbers"), number_pairs(300, seed=5)
    (folder / "en.txt").write_text("\n".join(pair[0] for pair in pairs))
    (folder / "de.txt").write_text("\n".join(pair[1] for pair in pairs[::2]))
    (folder / "both.tsv").write_text("\n".join(map("\t".join, pairs)))
    alone = [(f"text-lines:{folder}/{code}.txt", "train", None, code) for code in CODES]
    return [*alone, (f"tsv:{folder}/both.tsv", "train", None, CODES)]


def settings(sources) -> list[str]:
    return [
        *toy_settings(str(tuple(sources)), steps=8),
        "vocabulary.size=60",
        "corpus.sequence_length=24",
        "batch_size=4",
        "model.num_layers=1",
        "model.dropout=0.1",
        "training.accumulation_steps=2",
    ]


def prepared(recipe, sources, folder) -> tuple[PretrainingRecipe, PretrainingCorpus]:
    corpus = PretrainingCorpus.open(prepare(recipe, str(folder), settings(sources)))
    return registry.load(recipe, PretrainingRecipe, settings(sources)), corpus


@pytest.fixture(scope="module")
def translated(sources, tmp_path_factory):
    return prepared("xlm_tiny", sources, tmp_path_factory.mktemp("corpora") / "xlm")


def batches(recipe, corpus, start, count) -> list[dict[str, np.ndarray]]:
    workers = Workers(tf.distribute.get_strategy())
    made = _batches(recipe, corpus, recipe.make_objective(), workers, False)(start)
    return [{name: one.numpy() for name, one in batch.items()} for batch in made.take(count)]


def test_clm_reads_one_language_a_batch_from_position_0_on(sources, tmp_path):
    recipe, corpus = prepared("xlm_clm_tiny", sources[:2], tmp_path / "corpus")
    found, pieces = [], corpus.vocabulary
    for batch in batches(recipe, corpus, 0, 40):
        [language] = np.unique(batch["language_ids"])
        words = set(" ".join(pieces.decode_lines(batch["token_ids"].tolist())).split())
        assert words & WORDS[CODES[language]] and not words & WORDS[CODES[1 - language]]
        assert "position_ids" not in batch  # the default starts at 0
        found.append(language)
    assert set(found) == {0, 1}
    network = Run(tmp_path, recipe, pieces).build_network()
    counted = {**batch, "position_ids": np.tile(np.arange(24), (4, 1))}
    np.testing.assert_array_equal(network.hidden_states(counted), network.hidden_states(batch))
    other = {**batch, "language_ids": 1 - batch["language_ids"]}
    moved = np.abs(network.hidden_states(other) - network.hidden_states(batch))
    assert moved.max() > 1e-3


def test_mlm_and_tlm_take_turns_update_by_update(translated):
    """Updates alternate between masked and translation language modeling.

    A dataset that starts at a later batch has the same batches and masks.
    """
    whole = batches(*translated, 0, 12)
    np.testing.assert_equal(batches(*translated, 5, 4), whole[5:9])
    for number, batch in enumerate(whole):
        languages, positions = batch["language_ids"], batch["position_ids"]
        assert (batch["masked_weights"] > 0).any()
        if number // 2 % 2:
            for row, places in zip(languages, positions, strict=True):
                [boundary] = np.flatnonzero(np.diff(row)) + 1
                assert set(row[:boundary]) == {0} and set(row[boundary:]) == {1}
                assert places.tolist() == [*range(boundary), *range(24 - boundary)]
        else:
            assert len(np.unique(languages)) == 1
            np.testing.assert_array_equal(positions, np.tile(np.arange(24), (4, 1)))


@pytest.mark.slow
def test_a_resumed_run_in_turns_is_the_uninterrupted_one(translated, sources, tmp_path):
    corpus = ["--corpus", str(translated[1].folder)]
    check_resumed(["train", "xlm_tiny", "RUN", *corpus, *flags(settings(sources))], tmp_path)
