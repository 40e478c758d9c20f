"""Tests of translation models that are initialized from pre-trained models."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.commands import main
from experiments.pretrain.run import PretrainingRun
from experiments.run import Run
from experiments.translate.init import read_init as read_start
from experiments.translate.run import TranslationRun
from export.saved_model import main as export
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from macaron_tf.text import PairVocabulary
from tests.toys.numbers import write_numbers
from tests.toys.pretraining import flags
from tests.toys.tasks import assert_same_weights, scores_in
from tests.toys.translation import BART, XLM, begun, make_start, settings

LINES = ["one two three", "", "four five"]


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    """Returns a dict mapping names such as "xlm" and "bart" to paths of pre-training runs."""
    folder = tmp_path_factory.mktemp("starts")
    causal = ["objective=causal_language", "model.causal=True"]
    return {
        "xlm": make_start(folder / "xlm", "xlm_tiny"),
        "causal": make_start(folder / "causal", "xlm_tiny", *causal, seed=2),
        "other": make_start(folder / "other", "xlm_tiny", "vocabulary.size=56"),
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
    "first_stage_steps": 4,
}


def check_use(run, tmp_path, answered):
    """Evaluates a run, and checks that its export translates like the translation command."""
    assert main(["average", str(run)]) == 0
    assert main(["evaluate", str(run), "--output", str(tmp_path / "scores")]) == 0
    record = scores_in(tmp_path / "scores")
    assert len(record["hypotheses"]) == len(record["references"]) >= 20
    text = "".join(f"{line}\n" for line in LINES)
    translated = answered(main, "predict", run, text=text).splitlines()
    assert len(translated) == len(LINES) and translated[1] == ""
    assert export([str(run), str(tmp_path / "served")]) == 0
    served = tf.saved_model.load(str(tmp_path / "served" / "1"))
    found = served.signatures["serving_default"](text=tf.constant(LINES))
    assert [row[0].decode() for row in found["translations"].numpy()] == translated


@pytest.mark.slow
def test_an_encoder_begins_both_stacks(starts, number_text):
    recipe, network = begun(read_start(starts["xlm"]), XLM, number_text)
    encoder = PretrainingRun.open(starts["xlm"]).load_network().encoder
    same = np.testing.assert_array_equal
    same(network.embedding.table, encoder.embeddings.tokens.table)
    sides = (network.source_embeddings, network.target_embeddings)
    for row, side in enumerate(sides):
        same(side.position_layer.table, encoder.embeddings.position_layer.table)
        same(side.languages[0], encoder.embeddings.languages[row])
    for stack in (network.encoder, network.decoder):
        for block, one in zip(stack.blocks, encoder.stack.blocks, strict=True):
            for name in ("attention_0", "feed_forward_1"):
                assert_same_weights(getattr(block, name), getattr(one, name))
    assert recipe.data.cleaning.max_tokens == recipe.decoding.max_length == 40
    # The translator's encoder has the outputs of the pre-trained encoder.
    source = np.array([[5, 9, 7, 3, 0]], np.int32)
    expected = encoder({"token_ids": source})[:, :4]
    np.testing.assert_allclose(network.encode(source)[:, :4], expected, atol=1e-5)


def test_the_rows_of_the_papers_table(starts, number_text):
    """The encoder and the decoder can each have random, MLM or CLM weights at the start.

    MLM is the masked language model of Lample and Conneau 2019, table 3, and CLM is the causal
    language model.
    """
    masked, causal = starts["xlm"], starts["causal"]
    blocks = {
        run: PretrainingRun.open(run).load_network().encoder.stack.blocks[0]
        for run in (masked, causal)
    }
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


@pytest.mark.slow  # test_commands.py and test_resume.py resume by commands
def test_it_trains_resumes_and_is_used_as_any_translation(
    starts, number_text, tmp_path, monkeypatch, capsys, answered
):
    """A run initialized from a pre-trained model trains, resumes, translates and exports.

    If a run is killed before its first checkpoint, the same command starts the run again.
    """
    begin = lambda name, steps: main(  # noqa: E731
        ["train", XLM, str(tmp_path / name), "--init", starts["xlm"]]
        + flags(settings(number_text, steps, **{"training.warmup_steps": 2}))
    )

    class Killed(BaseException):
        """An exception that simulates a killed process; training does not handle it."""

    def write(run, network, *fingerprint, **counts):
        Run.write(run, network, *fingerprint, **counts)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(TranslationRun, "write", write)
        begin("killed", 4)
    assert (tmp_path / "killed" / "recipe.json").exists()
    assert not (tmp_path / "killed" / "checkpoints").exists()
    assert begin("killed", 4) == begin("run", 4) == 0
    assert f", from {starts['xlm']}" in capsys.readouterr().out
    killed, whole = (TranslationRun.open(tmp_path / n).load_network() for n in ("killed", "run"))
    assert_same_weights(killed, whole)
    assert begin("run", 8) == 0
    assert "resuming after step 4" in capsys.readouterr().out
    run = str(tmp_path / "run")
    assert isinstance(TranslationRun.open(run).vocabulary, PairVocabulary)
    assert main(["train", XLM, run, *flags(settings(number_text, 12))]) == 2
    assert "was started with --init" in capsys.readouterr().err
    check_use(run, tmp_path, answered)


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
def test_a_whole_model_behind_a_new_encoder_in_two_stages(
    starts, german_text, tmp_path, capsys, answered
):
    """A new German encoder is trained first. Then all weights are trained.

    All weights except those of the new encoder are initialized from a BART that was pre-trained on
    English.
    """
    run = str(tmp_path / "run")
    command = ["train", BART, run, "--init", starts["bart"]]
    german = {**GERMAN, "training.warmup_steps": 2}
    assert main([*command, *flags(settings(german_text, 4, **german))]) == 0
    pretrained = PretrainingRun.open(starts["bart"]).load_network()
    opened = TranslationRun.open(run)
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
    check_use(run, tmp_path, answered)


def test_t5_stands_behind_a_new_encoder_too(starts, german_text):
    recipe, network = begun(read_start(starts["t5"]), BART, german_text, **GERMAN)
    pretrained = PretrainingRun.open(starts["t5"]).load_network()
    assert differing(network, pretrained) == set()
    vocabulary = PretrainingRun.open(starts["t5"]).vocabulary
    assert network.config.vocab_size == vocabulary.size + SENTINEL_ROWS
    assert network.config.num_source_layers == 3  # the recipe's number
    assert (recipe.model, recipe.sentinel_rows) == ("t5_tiny", SENTINEL_ROWS)
    stage = TranslationRun(None, recipe, vocabulary).first_stage(network)
    trained = [weight for weight in network.weights if stage.trains(weight)]
    assert len(trained) == len(network.source_encoder.weights) + 1  # no positions, no bias


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.hidden_dim": 64}, "needs model.hidden_dim=32, not 64"),
        ({"data.target_language": "fr"}, "has language embeddings for en, de, but not for 'fr'"),
        ({"data.cleaning.max_tokens": 99}, "is 99, but the model has 40 positions"),
    ],
)
def test_a_mismatch_is_one_sentence(change, words, starts, number_text, tmp_path, refused):
    command = ["train", XLM, str(tmp_path / "run"), "--init", starts["xlm"]]
    refused(main, [*command, *flags(settings(number_text, 5, **change))], words, tmp_path)


def test_other_vocabularies_runs_and_flags_are_refused(starts, number_text, tmp_path, refused):
    bart, xlm = starts["bart"], starts["xlm"]
    (tmp_path / "recipe.json").write_text('{"kind": "translation"}')
    none, encoder = flags(["model.num_source_layers=0"]), flags(["init_parts=encoder"])
    for recipe, arguments, words in (
        (XLM, ["--init", xlm, "--vocabulary", f"{bart}/vocabulary"], "vocabulary mismatch"),
        (XLM, ["--init", bart, *encoder], "init_parts cannot be combined with"),
        (XLM, ["--init", bart, *none], "needs model.num_source_layers=2, not 0"),
        (BART, [], "needs --init with a run of BART or T5"),
    ):
        command = ["train", recipe, str(tmp_path / "run"), *flags(settings(number_text, 5))]
        refused(main, [*command, *arguments], words, tmp_path)
