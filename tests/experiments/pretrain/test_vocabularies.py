"""Vocabularies by the command, a corpus and a run with each; recipes of several languages."""

import collections

import pytest

from experiments.pretrain.__main__ import main
from experiments.pretrain.corpus import described, vocabulary_lines
from experiments.pretrain.run import PretrainingRecipe
from experiments.recipe import override, recipe_from_json
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.errors import UserError
from macaron_tf.text import load_encoder_vocabulary
from macaron_tf.training.config import TrainingConfig
from tests.experiments.pretraining_toy import flags, toy_settings

TEXT = "the quick brown fox jumped over the lazy dog, and the Café was full of 12 dogs.\n" * 30


@pytest.mark.parametrize(
    ("kind", "size", "folded"),
    [("wordpiece", 80, True), ("sentencepiece", 50, False), ("unigram", 39, True)]
    + [("byte_bpe", 280, False)],
)
def test_every_kind_is_trained_and_used(kind, size, folded, tmp_path):
    (tmp_path / "text.txt").write_text(f"{TEXT}\n{TEXT}\n{TEXT}")
    settings = [*toy_settings(f"text:{tmp_path}/text.txt", steps=11), f"vocabulary.kind={kind}"]
    settings = flags([*settings, f"vocabulary.size={size}", "corpus.validation_every=2"])
    out = str(tmp_path / "vocabulary")
    assert main(["vocabulary", "bert_tiny", out, *settings]) == 0
    vocabulary = load_encoder_vocabulary(out)
    found = described(vocabulary)
    assert (found.kind, found.size, found.lower_case) == (kind, size, True)
    rows = vocabulary.encode_lines(["the café", "THE café", "the cafe"])
    assert rows[0] == rows[1]
    assert (rows[0] == rows[2]) is folded
    corpus, run = str(tmp_path / "corpus"), str(tmp_path / "run")
    assert main(["prepare", "bert_tiny", corpus, *settings]) == 0
    assert load_encoder_vocabulary(corpus).hash == vocabulary.hash
    if kind == "byte_bpe":  # the others are trained with elsewhere
        assert main(["train", "bert_tiny", run, "--corpus", corpus, *settings]) == 0


@pytest.fixture
def recipe(tmp_path) -> PretrainingRecipe:
    """100 lines of English, 4 of Nepali, and their translations."""
    (tmp_path / "en.txt").write_text("\n".join(f"en {n}" for n in range(100)))
    (tmp_path / "ne.txt").write_text("\n".join(f"ne {n}" for n in range(4)))
    (tmp_path / "both.tsv").write_text("pair a\tpair b")
    sources = (
        (f"text-lines:{tmp_path}/en.txt", "train", None, "en"),
        (f"text-lines:{tmp_path}/ne.txt", "train", None, "ne"),
        (f"tsv:{tmp_path}/both.tsv", "train", None, ("en", "ne")),
    )
    return PretrainingRecipe(
        model="xlm_tiny",
        corpus=CorpusConfig(sources, language_alpha=0.0),
        training=TrainingConfig(max_steps=10, learning_rate=1e-3),
    )


def test_a_vocabulary_sees_every_language_as_often(recipe):
    found = collections.Counter(line[:2] for line in vocabulary_lines(recipe))
    assert set(found) == {"en", "ne"} and found["en"] == 100
    assert 70 < found["ne"] < 140  # alpha 0: half of the draws
    recipe = override(recipe, ["corpus.language_alpha=None", "vocabulary.max_documents=3"])
    lines = list(vocabulary_lines(recipe))
    assert lines[:4] == ["en 0", "ne 0", "pair a", "pair b"]
    assert len(lines) == 8


def test_a_model_has_the_corpus_languages(recipe):
    assert recipe.model_config(100).num_languages == 2
    again = recipe_from_json(PretrainingRecipe, recipe.to_json(), "recipe.json")
    assert again == recipe and again.corpus.languages == ("en", "ne")
    none = override(recipe, ["model.num_languages=0"])
    assert none.model_config(100).num_languages == 0
    with pytest.raises(UserError, match="xlm_tiny has language embeddings but no source"):
        PretrainingRecipe(
            model="xlm_tiny",
            corpus=CorpusConfig(("text:a",)),
            training=recipe.training,
        ).model_config(100)
