"""Tests of plots of attention and of recurrent memory, and of the plotted numbers."""

import numpy as np
import pytest

from experiments.look import main, state_derivatives
from macaron_tf import models
from macaron_tf.layers import SwishRNN
from macaron_tf.layers.watching import watching
from macaron_tf.model import Model
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from tests.harness import built, normal, randomized, weights_of
from tests.toys.numbers import number_pairs
from tests.toys.objectives import tiny
from tests.toys.swish import by_the_equations
from tests.toys.systems import ELMO

PNG = b"\x89PNG"


def looked(ran, folder, model, *arguments):
    """Runs the command and checks its plots; returns the numbers, plot names and printed lines."""
    lines = ran(main, model, *arguments, "--out", folder).out.splitlines()
    numbers = dict(np.load(folder / "look.npz"))
    drawn = {path.stem for path in folder.glob("*.png")}
    assert {f"{name}.png" for name in drawn} | {"look.npz"} == {
        line.rpartition("/")[2] for line in lines if line.startswith(str(folder))
    }
    assert all((folder / f"{name}.png").read_bytes().startswith(PNG) for name in drawn)
    return numbers, drawn, lines


SIDES = ("encoder", "decoder", "cross")


def test_a_translation_is_drawn_and_a_given_one_is_read_instead(number_run, tmp_path, ran):
    [(source, said), (_, other)] = number_pairs(2, seed=5)
    found, drawn, lines = looked(ran, tmp_path / "own", number_run, source)
    assert drawn == {f"{side}{end}" for side in SIDES for end in ("", "_mean")}
    assert lines[0] == " ".join(found["target_tokens"])
    assert "".join(found["target_tokens"][:-1]).replace("▁", " ").split() == said.split()
    assert list(found["read_tokens"][1:]) == list(found["target_tokens"][:-1])
    assert not np.triu(found["decoder"], 1).any()
    np.testing.assert_allclose(found["cross"].sum(axis=-1), 1.0, atol=1e-5)
    found, *_ = looked(ran, tmp_path / "given", number_run, source, other)
    assert "".join(found["target_tokens"][:-1]).replace("▁", " ").split() == other.split()


WORDS = WordPieceVocabulary((*SPECIAL_PIECES, "i", "paid", "$", "5", "##s"))
SIZES = {"vocab_size": WORDS.size, "num_layers": 3, "max_length": 16}
MEMORY = {"positions": "transformer_xl", "embedding_norm": False}


def saved(folder, network, *arguments, **options) -> str:
    """Saves a network with a vocabulary; returns the path of the folder."""
    made = Model(built(network, *arguments, **options), vocabulary=WORDS)
    made.save_pretrained(folder)
    return str(folder)


MIXED = {"block": ("transformer", "amlp", "gmlp"), "tiny_attention_dim": 4}


@pytest.mark.parametrize(
    ("network", "arguments", "changes", "attending"),
    [
        (models.Encoder, (), {"relative_bias": "shared"}, 3),
        (models.EncoderClassifier, (2,), {"block": "swish_rnn"}, 3),
        (models.PretrainingEncoder, (), {"sharing": "all"}, 3),
        (models.TwoStreamModel, (4,), MEMORY, 3),
        (models.EncoderTokenClassifier, (2,), MIXED, 2),
    ],
)
def test_any_encoder_s_attention_over_two_texts(
    network, arguments, changes, attending, tmp_path, ran
):
    place = saved(tmp_path / "model", network, tiny(**SIZES, **changes), *arguments)
    found, drawn, _ = looked(ran, tmp_path / "out", place, "I paid $5s", "paid $")
    shown = ["[CLS]", "▁i", "▁paid", "▁$", "▁5", "s", "[SEP]", "▁paid", "▁$", "[SEP]"]
    assert list(found["tokens"]) == shown
    assert found["encoder"].shape == (attending, 2, 10, 10)  # layers that have attention
    assert ("memory" in drawn) == (changes.get("block") == "swish_rnn")
    np.testing.assert_allclose(np.nansum(found["encoder"], -1).max(), 1.0, atol=1e-5)
    missing = np.isnan(found["encoder"]).all(axis=(2, 3))  # the second head of an aMLP layer
    assert missing.sum() == np.isnan(found["encoder"]).any(axis=(2, 3)).sum()
    assert missing.any() == (network is models.EncoderTokenClassifier)


def test_a_language_model_s_and_an_answer_s(tmp_path, language_run, t5_run, ran):
    found, drawn, _ = looked(ran, tmp_path / "gpt", language_run, "c c c")
    assert drawn == {"decoder", "decoder_mean"} and found["tokens"][0] == "[CLS]"
    assert not np.triu(found["decoder"], 1).any()
    found, *_ = looked(ran, tmp_path / "t5", t5_run, "c c [MASK] c")
    assert "<0>" in found["source_tokens"]
    layers, _, length, _ = found["cross"].shape
    assert length == len(found["target_tokens"]) and layers == len(found["cross_layers"])


def test_what_neither_attends_nor_remembers_is_refused(tmp_path, refused):
    gated = saved(tmp_path / "gmlp", models.Encoder, tiny(**SIZES, block="gmlp"))
    elmo = saved(tmp_path / "elmo", models.Elmo, ELMO)
    places = {gated: "has only gmlp blocks", elmo: "which has no attention or SwishRNN to show"}
    for place, words in places.items():
        refused(main, [place, "i paid", "--out", tmp_path / "out"], words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("step_size", [1, 2, 4])
def test_the_memory_is_the_derivative_of_the_state(step_size):
    length, width, change = 9, 6, 1e-5
    x = normal(1, length, 5)
    layer = randomized(SwishRNN(width, step_size=step_size), x.shape)
    with watching() as kept:
        layer(x)
    [(_, inner)] = kept
    w = weights_of(layer)
    inputs, vectors = x @ w["inner/kernel"], [w["alpha"], w["beta"]]
    numeric = np.zeros((length, length))
    for s in range(length):
        moved = [inputs + sign * change * np.eye(length)[s][:, None] for sign in (1, -1)]
        up, down = (by_the_equations(one, vectors, step_size, None).numpy() for one in moved)
        slope = (up - down)[0] / (2 * change)  # `(T, R)`: channels do not interact
        numeric[:, s] = np.sqrt(np.mean(slope**2, axis=1))
    found = state_derivatives(layer, inner)
    np.testing.assert_allclose(found, numeric, atol=1e-6)
    assert found[step_size, 0] > 0.01
