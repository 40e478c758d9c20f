"""Tests of translation models that begin with pre-trained models, also without pairs of texts."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from experiments.commands import main
from macaron_tf.data.sampler import Batch
from macaron_tf.data.translation import TranslationData
from macaron_tf.decoding import BackTranslationObjective, BeamSearchConfig, translate_ids
from macaron_tf.models.encoder_decoder import Backward
from macaron_tf.objectives import TranslationObjective, shift_right
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from macaron_tf.runs.run import Run
from macaron_tf.runs.starts import read_init as read_start
from tests.toys.numbers import write_numbers
from tests.toys.pretraining import flags
from tests.toys.processes import assert_same_run
from tests.toys.runs import check_resumed
from tests.toys.tasks import scores_in
from tests.toys.translation import BART, XLM, begun, make_start, settings


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    """Returns a dict mapping names such as "xlm" and "bart" to paths of pre-training runs."""
    folder = tmp_path_factory.mktemp("starts")
    causal = ["objective=causal_language", "model.causal=True"]
    return {
        "xlm": make_start(folder / "xlm", "xlm_tiny"),
        "causal": make_start(folder / "causal", "xlm_tiny", *causal, seed=2),
        "bart": make_start(folder / "bart", "bart_tiny"),
        "t5": make_start(folder / "t5", "t5_tiny"),
    }


@pytest.fixture(scope="module")
def german_text(tmp_path_factory):
    """Returns a `tsv:` source that translates German numbers to English."""
    return write_numbers(tmp_path_factory.mktemp("german"), 300, 20, -1)


GERMAN = {
    "data.source_language": "de",
    "data.target_language": "en",
    "data.vocabulary_size": 50,
    "task.first_stage_steps": 4,
}


def test_the_rows_of_the_papers_table(starts, number_text):
    """The encoder and the decoder can each have random, MLM or CLM weights at the start.

    MLM is the masked language model of Lample and Conneau 2019, table 3, and CLM is the causal
    language model.
    """
    masked, causal = starts["xlm"], starts["causal"]
    blocks = {run: Run.open(run).load_network().encoder.stack.blocks[0] for run in (masked, causal)}
    for parts, decoder, expected in (
        (["encoder"], None, {"encoder": masked}),
        (["embeddings"], None, {}),
        (None, causal, {"encoder": masked, "decoder": causal}),
    ):
        recipe, network = begun(read_start(masked, parts, decoder), XLM, number_text)
        for side in ("encoder", "decoder"):
            mine = getattr(network, side).blocks[0].attention_0.get_weights()
            for run, theirs in blocks.items():
                pairs = zip(mine, theirs.attention_0.get_weights(), strict=True)
                equal = all(np.array_equal(a, b) for a, b in pairs)
                assert equal == (expected.get(side) == run), (parts, side)
        assert (recipe.init, recipe.init_decoder) == (masked, decoder)
        assert recipe.data.cleaning.max_tokens == recipe.task.decoding.max_length == 40


def differing(network, pretrained):
    """Returns the names of weights that differ from the pre-trained weights.

    The randomly initialized weights of the new source encoder are left out.
    """
    own = {id(weight) for weight in network.source_encoder.weights}
    rest = [weight for weight in network.weights if id(weight) not in own]
    return {
        weight.path.partition("/")[2]
        for weight, before in zip(rest, pretrained.weights, strict=True)
        if not np.array_equal(np.asarray(weight), np.asarray(before))
    }


@pytest.mark.slow
def test_a_whole_model_behind_a_new_encoder_in_two_stages(starts, german_text, tmp_path, capsys):
    """A new German encoder is trained first. Then all weights are trained.

    All weights except those of the new encoder are initialized from a BART that was pre-trained on
    English.
    """
    run = str(tmp_path / "run")
    command = ["train", BART, run, "--init", starts["bart"]]
    german = {**GERMAN, "training.warmup_steps": 2}
    assert main([*command, *flags(settings(german_text, 4, **german))]) == 0
    pretrained = Run.open(starts["bart"]).load_network()
    opened = Run.open(run)
    first = opened.load_network("last")
    assert first.config.source_vocab_size == opened.vocabulary.source.size == 56
    assert first.config.vocab_size == opened.vocabulary.target.size == 64
    projection = "encoder/block_0/attention_0/attention/query_key_value"
    assert differing(first, pretrained) == {
        "source_embeddings/positions/table",
        "target_embeddings/positions/table",
        f"{projection}/kernel",
        f"{projection}/bias",
    }
    # The second stage resumes from the first, and trains all weights.
    assert main([*command, *flags(settings(german_text, 8, **german))]) == 0
    assert "resuming after step 4" in capsys.readouterr().out
    last = opened.load_network("last")
    for weight, before in zip(last.weights, first.weights, strict=True):
        assert not np.array_equal(np.asarray(weight), np.asarray(before)), weight.path


def test_t5_stands_behind_a_new_encoder_too(starts, german_text):
    recipe, network = begun(read_start(starts["t5"]), BART, german_text, **GERMAN)
    pretrained = Run.open(starts["t5"]).load_network()
    assert differing(network, pretrained) == set()
    vocabulary = Run.open(starts["t5"]).vocabulary
    assert network.config.vocab_size == vocabulary.size + SENTINEL_ROWS
    assert network.config.num_source_layers == 3  # the recipe's number
    assert (recipe.model, recipe.task.sentinel_rows) == ("t5_tiny", SENTINEL_ROWS)
    stage = recipe.first_stage(network)
    trained = [weight for weight in network.weights if stage.trains(weight)]
    assert len(trained) == len(network.source_encoder.weights) + 1  # no positions, no bias


# Unsupervised translation, in two directions, begins with an XLM.
UNSUPERVISED = "multi30k_unsupervised_tiny"
HALVES = {"data.train_split": "train", "data.target_split": "validation"}


@pytest.fixture(scope="module")
def start(starts) -> str:
    return starts["xlm"]


@pytest.fixture(scope="module")
def network(start, number_text):
    return begun(read_start(start), UNSUPERVISED, number_text, **HALVES)[1]


def batch() -> dict[str, tf.Tensor]:
    rng = np.random.default_rng(0)
    rows = np.where(np.arange(8) < 7, rng.integers(5, 50, (4, 8)), 3)
    rows[1, 3:] = [3, 0, 0, 0, 0]
    source, target = tf.constant(rows, tf.int32), tf.constant(rows[::-1], tf.int32)
    noised = tf.where(target == target[0, 0], 4, target)
    return {"source": source, "target": target, "noised_source": source, "noised_target": noised}


def test_each_side_reads_and_writes_both_languages(start, network):
    """The backward model equals the forward model with the two language vectors exchanged."""
    own = Run.open(start).load_network().encoder.embeddings.languages
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
    made, _ = begun(read_start(start), UNSUPERVISED, number_text, **HALVES)
    objective, vocabulary = made.make_objective(), Run.open(start).vocabulary
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


def test_the_two_texts_are_no_pairs(start, number_text):
    made, _ = begun(read_start(start), UNSUPERVISED, number_text, **HALVES)
    vocabulary = read_start(start).vocabulary(made)

    def read(split, **other) -> TranslationData:
        return TranslationData.build(number_text, split, vocabulary, **other)

    both = read("train", target_split="validation")
    train, held_out = read("train"), read("validation")
    assert len(both) == len(held_out) < len(train)
    rows = Batch(np.arange(len(both)), 40)
    np.testing.assert_array_equal(both.gather(rows)["source"], train.gather(rows)["source"])
    np.testing.assert_array_equal(both.gather(rows)["target"], held_out.gather(rows)["target"])


@pytest.mark.slow
def test_it_trains_resumes_and_translates_both_ways(start, number_text, tmp_path, answered, ran):
    made = flags(settings(number_text, 3, **HALVES, **{"model.dropout": 0.1}))
    run = check_resumed(["train", UNSUPERVISED, "RUN", "--init", start, *made], tmp_path)
    # A run that is killed before its first checkpoint begins with the pre-trained model again.
    shutil.rmtree(tmp_path / "whole" / "checkpoints")
    ran(main, "train", "--resume", tmp_path / "whole")
    assert_same_run(tmp_path / "whole", run)
    for way in ([], ["--backward"]):
        scores = tmp_path / f"scores{len(way)}"
        assert main(["evaluate", str(run), *way, "--output", str(scores)]) == 0
        record = scores_in(scores)
        assert record["languages"] == (["de", "en"] if way else ["en", "de"])
        assert record["metric"]["language"] == record["languages"][1]
        lines = answered(main, "predict", str(run), *way, text="one two\n\n").splitlines()
        assert len(lines) == 2 and not lines[1]


def test_a_recipe_of_pairs_becomes_one_without(start, number_text):
    made, network = begun(read_start(start), XLM, number_text,
                          **{**HALVES, "task.unsupervised": True})  # fmt: skip
    assert made.data.target_split and network.config.two_way
    made, network = begun(read_start(start), UNSUPERVISED, number_text,
                          **{"task.unsupervised": False, "data.target_split": None})  # fmt: skip
    assert not network.config.two_way and "two_way" not in dict(made.model_options)
