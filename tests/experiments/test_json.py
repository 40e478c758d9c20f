"""With `--json`, a command prints what `predict` returns."""

import io
import json

import pytest
import tensorflow as tf

import macaron_tf
from experiments.elmo.commands import main as elmo
from experiments.embed.commands import main as embed
from experiments.generate.commands import main as generate
from experiments.pretrain.commands import main as pretrain
from experiments.text_to_text.commands import main as text_to_text
from experiments.translate.commands import main as translate
from macaron_tf import models
from macaron_tf.pretrained import Pretrained
from macaron_tf.text import PairVocabulary, WordPieceVocabulary
from macaron_tf.text.wordpiece import SPECIAL_PIECES
from macaron_tf.text.words import WordVocabulary
from tests.harness import built
from tests.toys.objectives import tiny
from tests.toys.systems import ELMO

WORDS = WordPieceVocabulary((*SPECIAL_PIECES, "i", "paid", "$", "5", "##s"))
SIZES = {"vocab_size": WORDS.size, "num_layers": 1, "max_length": 16}
LINES = ["i paid $5s", "paid", "$ i 5"]
ANSWERS = {"task": "sst2", "max_target": 6, "longest": 16, "source_start": (), "answer_start": (2,)}


def pairs(**usage) -> Pretrained:
    """Returns a small Macaron translator with random weights; `usage` overrides its attributes."""
    shapes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "max_length": 64}
    config = models.catalog.config("macaron_tiny", vocab_size=WORDS.size, **shapes)
    return Pretrained(
        built(models.EncoderDecoder, config, noise=0.3), **{"vocabulary": WORDS, **usage}
    )


def encoder(network, noise: float = 0.3, **changes):
    return built(network, tiny(**SIZES, **changes), noise=noise)


DRAWN = {"temperature": 0.7, "top_p": 0.9, "seed": 3, "max_tokens": 5}
FLAGS = ["--temperature", "0.7", "--top-p", "0.9", "--seed", "3", "--max-tokens", "5"]
# The command, its model, further words with their options of `predict`, and refused calls.
COMMANDS = {
    "translate": (
        translate,
        lambda: pairs(vocabulary=PairVocabulary(WORDS, WORDS)),
        (["--n-best", "2", "--beam-size", "3"], {"n_best": 2, "beam_size": 3}),
        [["--temperature", "0"], ["--backward"]],
    ),
    "predict": (
        text_to_text,
        lambda: pairs(answers=ANSWERS, trained_length=16),
        ([], {}),
        [["--task", "sst2"]],
    ),
    "encode": (embed, lambda: Pretrained(encoder(models.Encoder), vocabulary=WORDS), ([], {}), []),
    "complete": (
        generate,
        lambda: Pretrained(encoder(models.LanguageModel, causal=True), vocabulary=WORDS),
        (FLAGS, DRAWN),
        [["--samples", "2"], ["--min-tokens", "1"]],
    ),
    "embed": (
        elmo,
        lambda: Pretrained(built(models.Elmo, ELMO), vocabulary=WordVocabulary(("i", "paid"))),
        ([], {}),
        [["--tokenized"]],
    ),
    "fill": (
        pretrain,
        lambda: Pretrained(
            encoder(models.PretrainingEncoder), vocabulary=WORDS, has_masked_language=True
        ),
        (["--top", "2"], {"top": 2}),
        [],
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_what_predict_answers(command, tmp_path, monkeypatch, refused, capsys):
    main, make, (flags, options), refusals = COMMANDS[command]
    make().save_pretrained(tmp_path / "model")
    lines = [f"{line} [MASK]" for line in LINES] if command == "fill" else LINES
    words = [command, str(tmp_path / "model"), *flags, "--json"]
    given = "".join(f"{line}\n" for line in lines).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    capsys.readouterr()
    assert main(words) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = macaron_tf.load(tmp_path / "model").predict(lines, **options)
    tf.nest.assert_same_structure(printed, expected)
    for one, other in zip(tf.nest.flatten(printed), tf.nest.flatten(expected), strict=True):
        assert one == (other if isinstance(other, str) else pytest.approx(other, abs=1e-5))
    for more in refusals:
        refused(main, [*words, *more], f"{more[0]} cannot be combined with --json: ", tmp_path)


def test_a_refused_line_has_its_number_in_the_file(tmp_path, refused):
    pairs(vocabulary=PairVocabulary(WORDS, WORDS)).save_pretrained(tmp_path / "model")
    (tmp_path / "lines").write_text("\n" * 257 + "paid " * 300)
    words = ["translate", tmp_path / "model", "--json", "--input", tmp_path / "lines"]
    refused(translate, words, "/lines, line 258: a line has more than 256 tokens", tmp_path)
