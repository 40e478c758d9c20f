"""Tests of unsupervised translation: two directions, noised text, resumption and errors."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from experiments.commands import main
from experiments.pretrain.run import PretrainingRun
from experiments.translate.init import read_init as read_start
from experiments.translate.run import TranslationRun, _warn_unequal_lengths
from macaron_tf.data.buckets import Batch
from macaron_tf.data.translation import TranslationData
from macaron_tf.decoding import BackTranslationObjective, BeamSearchConfig, translate_ids
from macaron_tf.models.encoder_decoder import Backward
from macaron_tf.objectives import TranslationObjective, shift_right
from tests.toys.pretraining import flags
from tests.toys.tasks import assert_same_weights, scores_in
from tests.toys.translation import XLM, begun, make_start, settings

NAME = "multi30k_unsupervised_tiny"
HALVES = {"data.train_split": "train", "data.target_split": "validation"}


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> str:
    return make_start(tmp_path_factory.mktemp("start") / "xlm", "xlm_tiny")


@pytest.fixture(scope="module")
def network(start, number_text):
    return begun(read_start(start), NAME, number_text, **HALVES)[1]


def batch() -> dict[str, tf.Tensor]:
    rng = np.random.default_rng(0)
    rows = np.where(np.arange(8) < 7, rng.integers(5, 50, (4, 8)), 3)
    rows[1, 3:] = [3, 0, 0, 0, 0]
    source, target = tf.constant(rows, tf.int32), tf.constant(rows[::-1], tf.int32)
    noised = tf.where(target == target[0, 0], 4, target)
    return {"source": source, "target": target, "noised_source": source, "noised_target": noised}


def test_each_side_reads_and_writes_both_languages(start, network):
    """The backward model equals the forward model with the two language vectors exchanged."""
    own = PretrainingRun.open(start).load_network().encoder.embeddings.languages
    np.testing.assert_array_equal(network.source_embeddings.languages, own)
    np.testing.assert_array_equal(network.target_embeddings.languages, own[::-1])
    source, greedy = batch()["source"], BeamSearchConfig(beam_size=1, max_length=12)
    forward, backward = (translate_ids(m, source, greedy) for m in (network, Backward(network)))
    sides = (network.source_embeddings, network.target_embeddings)
    before = [side.languages.numpy() for side in sides]
    for side, table in zip(sides, before, strict=True):
        side.languages.assign(table[::-1])
    exchanged = translate_ids(network, source, greedy)
    for side, table in zip(sides, before, strict=True):
        side.languages.assign(table)
    np.testing.assert_array_equal(backward["ids"], exchanged["ids"])
    np.testing.assert_allclose(backward["scores"], exchanged["scores"], atol=1e-5)
    assert np.abs(backward["scores"] - forward["scores"]).max() > 1e-3


def test_the_loss_is_the_mean_of_four(network):
    """Each language is predicted from its noised text and from its greedy translation."""
    given = batch()
    objective = BackTranslationObjective(length=16)
    found = tf.function(lambda: objective(network, given, True), autograph=False)()
    greedy = BeamSearchConfig(beam_size=1, length_penalty=0, max_length_ratio=1.3,
                              max_length_offset=5, max_length=16)  # fmt: skip
    loss = weight = 0.0
    for side, translator, language in (("source", network, 0), ("target", Backward(network), 1)):
        text = given[side]
        translated = translate_ids(translator, text, greedy)["ids"][:, 0]
        for source, read in ((given[f"noised_{side}"], language), (translated, 1 - language)):
            logits = network({
                "source": source, "source_languages": tf.fill(source.shape, read),
                "target": shift_right(text), "target_languages": tf.fill(text.shape, 1 - language),
            })  # fmt: skip
            nll = tf.nn.sparse_softmax_cross_entropy_with_logits(text, tf.cast(logits, tf.float32))
            real = tf.cast(text != 0, tf.float32)
            loss, weight = loss + tf.reduce_sum(nll * real), weight + tf.reduce_sum(real)
    np.testing.assert_allclose(found["loss_sum"], loss, rtol=1e-5)
    assert found["weight"] == weight
    plain = TranslationObjective(0.0)
    np.testing.assert_array_equal(
        objective(network, given, False)["loss_sum"], plain(network, given, False)["loss_sum"]
    )


def test_noise_keeps_most_tokens_near_their_places(start, number_text):
    made, _ = begun(read_start(start), NAME, number_text, **HALVES)
    objective, vocabulary = made.make_objective(), PretrainingRun.open(start).vocabulary
    rows = tf.data.Dataset.from_tensors(batch()).repeat(3)
    first, second, _ = objective.dataset(rows, vocabulary, 1)
    again = next(iter(objective.dataset(rows, vocabulary, 1, start_step=1)))
    for side in ("source", "target"):
        np.testing.assert_array_equal(second[f"noised_{side}"], again[f"noised_{side}"])
        for text, row in zip(first[side].numpy(), first[f"noised_{side}"].numpy(), strict=True):
            words, noised = text[text > 3].tolist(), row[row > 3].tolist()
            assert len(noised) == len(words) - -(-len(words) // 10) and row[len(noised)] == 3
            kept = [words.index(word) for word in noised if word != vocabulary.special.mask]
            assert all(abs(place - i) <= 4 for i, place in enumerate(kept))
    assert (first["noised_source"] != second["noised_source"]).numpy().any()


def test_the_two_texts_are_no_pairs(start, number_text, capsys):
    made, _ = begun(read_start(start), NAME, number_text, **HALVES)
    vocabulary = read_start(start).vocabulary(made)

    def read(split, **other) -> TranslationData:
        return TranslationData.build(number_text, split, vocabulary, **other)

    both = read("train", target_split="validation")
    train, held_out = read("train"), read("validation")
    assert len(both) == len(held_out) < len(train)
    rows = Batch(np.arange(len(both)), 40)
    np.testing.assert_array_equal(both.gather(rows)["source"], train.gather(rows)["source"])
    np.testing.assert_array_equal(both.gather(rows)["target"], held_out.gather(rows)["target"])
    _warn_unequal_lengths(made.data, None)
    warning = capsys.readouterr().err
    assert re.match(r"warning: .* line\(s\) of 'train' are not read, because ", warning)
    _warn_unequal_lengths(dataclasses.replace(made.data, target_split="train"), None)
    assert not capsys.readouterr().err


@pytest.mark.slow  # `tests.walk` runs the same commands
def test_it_trains_resumes_and_translates_both_ways(start, number_text, tmp_path, answered):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    more = {**HALVES, "training.validate_every": 6, "model.dropout": 0.1}

    def train(run, steps):
        made = settings(number_text, steps, **{**more, "training.warmup_steps": 2})
        return main(["train", NAME, str(run), "--init", start, *flags(made)])

    assert train(parts, 4) == train(parts, 6) == train(whole, 6) == 0
    one, other = (TranslationRun.open(run).load_network("last") for run in (whole, parts))
    assert_same_weights(one, other)
    for way in ([], ["--backward"]):
        scores = tmp_path / f"scores{len(way)}"
        assert main(["evaluate", str(whole), *way, "--output", str(scores)]) == 0
        record = scores_in(scores)
        assert record["languages"] == (["de", "en"] if way else ["en", "de"])
        assert record["metric"]["language"] == record["languages"][1]
        lines = answered(main, "predict", str(whole), *way, text="one two\n\n").splitlines()
        assert len(lines) == 2 and not lines[1]


def test_a_recipe_of_pairs_becomes_one_without(start, number_text):
    made, network = begun(read_start(start), XLM, number_text, unsupervised=True, **HALVES)
    assert made.data.target_split and network.config.two_way
    made, network = begun(read_start(start), NAME, number_text, unsupervised=False,
                          **{**HALVES, "data.target_split": None})  # fmt: skip
    assert not network.config.two_way and "two_way" not in dict(made.model_options)


def test_other_translators_have_one_direction(number_run, refused, tmp_path):
    for command in ("predict", "evaluate"):
        words = [command, str(number_run), "--backward"]
        refused(main, words, "--backward is not possible with", tmp_path)
    swapped = flags(["data.source_language=de", "data.target_language=en"])
    words = ["evaluate", str(number_run), *swapped]
    refused(main, words, "from en to de: train another run", tmp_path)
