"""With `--json`, the command `predict` prints what `Pretrained.predict` returns."""

import io
import json

import pytest
import tensorflow as tf

import macaron_tf
from experiments.commands import main
from macaron_tf import models
from macaron_tf.model import Pretrained
from macaron_tf.models.model_parts import Card
from macaron_tf.tasks import TextToTextSettings
from macaron_tf.text import PairVocabulary, WordPieceVocabulary
from macaron_tf.text.wordpiece import SPECIAL_PIECES
from tests.harness import built
from tests.toys.marks import slow
from tests.toys.objectives import tiny
from tests.toys.pretraining import flags

WORDS = WordPieceVocabulary((*SPECIAL_PIECES, "i", "paid", "$", "5", "##s"))
SIZES = {"vocab_size": WORDS.size, "num_layers": 1, "max_length": 16}
LINES = ["i paid $5s", "paid", "$ i 5"]
ANSWERS = TextToTextSettings("sst2", max_target=6, longest=16)


def pairs(vocabulary=WORDS, **parts) -> Pretrained:
    """Returns a small Macaron translator with random weights."""
    shapes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "max_length": 64}
    config = models.catalog.config("macaron_tiny", vocab_size=WORDS.size, **shapes)
    network = built(models.EncoderDecoder, config, noise=0.3)
    return Pretrained(network, vocabulary, **parts)


# A model, options of `predict`, and settings that are refused with `--json`.
MODELS = {
    "translates": (
        lambda: pairs(vocabulary=PairVocabulary(WORDS, WORDS)),
        {"n_best": 2, "beam_size": 3},
        ["temperature=0"],
    ),
    "answers": (lambda: pairs(settings=ANSWERS, card=Card(trained_length=16)), {}, ["task=sst2"]),
    "continues": (
        lambda: Pretrained(
            built(models.LanguageModel, tiny(**SIZES, causal=True), noise=0.3), vocabulary=WORDS
        ),
        {"temperature": 0.7, "top_p": 0.9, "seed": 3, "max_tokens": 5},
        ["num_samples=2", "min_tokens=1"],
    ),
}


@pytest.mark.parametrize("name", slow(*MODELS, but=("continues",)))
def test_the_command_prints_what_predict_answers(name, tmp_path, monkeypatch, refused, capsys):
    make, options, refusals = MODELS[name]
    make().save_pretrained(tmp_path / "model")
    settings = flags([f"{option}={value}" for option, value in options.items()])
    words = ["predict", str(tmp_path / "model"), *settings, "--json"]
    given = "".join(f"{line}\n" for line in LINES).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    capsys.readouterr()
    assert main(words) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = macaron_tf.load(tmp_path / "model").predict(LINES, **options)
    tf.nest.assert_same_structure(printed, expected)
    for one, other in zip(tf.nest.flatten(printed), tf.nest.flatten(expected), strict=True):
        assert one == (other if isinstance(other, str) else pytest.approx(other, abs=1e-5))
    for setting in refusals:
        message = f"{setting.partition('=')[0]}="
        refused(main, [*words, "--set", setting], message, tmp_path)


@pytest.mark.slow
def test_a_refused_line_has_its_number_in_the_file(tmp_path, refused):
    pairs(vocabulary=PairVocabulary(WORDS, WORDS)).save_pretrained(tmp_path / "model")
    (tmp_path / "lines").write_text("\n" * 257 + "paid " * 300)
    words = ["predict", tmp_path / "model", "--json", "--input", tmp_path / "lines"]
    refused(main, words, "/lines, line 258: a line has more than 256 tokens", tmp_path)
    refused(main, [*words, "--backward"], "--backward applies only to", tmp_path)
