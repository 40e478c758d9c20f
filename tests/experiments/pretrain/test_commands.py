"""Tests of the pre-training commands on a toy language."""

import collections
import resource

import pytest

import macaron_tf
from experiments import registry
from experiments.commands import main
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.errors import UserError
from macaron_tf.runs import pretraining as training
from macaron_tf.runs import trainer as loop
from macaron_tf.runs.recipe import override, recipe_from_json
from macaron_tf.runs.run import Inputs, Run
from macaron_tf.text import load_encoder_vocabulary
from macaron_tf.training.config import TrainingConfig
from tests.toys.pretraining import flags, prepare, toy_settings
from tests.toys.tasks import assert_same_weights


@pytest.fixture(scope="module")
def corpus(masked_run) -> str:
    return str(masked_run.parent / "corpus")


def test_masks_are_filled_and_the_corpus_is_recorded(masked_run, corpus, ran):
    [shares] = macaron_tf.load(masked_run).predict("c c [MASK] c c", top=3)["probabilities"]
    assert shares[0] > 0.5 and shares[0] >= shares[1] >= shares[2]
    lines = ran(main, "predict", masked_run, "c [MASK] c", "--set", "top=2").out.splitlines()
    assert lines[0] == "c [MASK] c" and lines[1].count("%") == 2
    # Not the corpus that the recipe would have prepared.
    recipe = Run.open(masked_run).recipe
    assert recipe.data.corpus == PretrainingCorpus.open(corpus).config
    assert recipe.data.vocabulary.size == 27


@pytest.mark.slow
def test_nothing_is_traced_again_and_memory_stays_flat(source, corpus, tmp_path, monkeypatch):
    """2,000 updates with validations and checkpoints cause no retracing or growth of memory."""
    models, memory, build = [], {}, loop.build_fit_model
    monkeypatch.setattr(
        loop, "build_fit_model", lambda *a, **k: models.append(build(*a, **k)) or models[-1]
    )
    validation = training.evaluate_model

    def evaluate_model(model, dataset):
        memory[model.step] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return validation(model, dataset)

    monkeypatch.setattr(training, "evaluate_model", evaluate_model)
    settings = [*toy_settings(source, steps=2_000), "training.validate_every=500"]
    settings.append("training.save_every_steps=500")
    recipe = registry.load("swish_rnn_tiny", settings=settings)
    loop.Trainer(recipe, tmp_path / "run", inputs=Inputs(corpus=corpus)).run()
    assert models[0].updates.traces == {"train": 1, "test": 1}
    # Kilobytes; the first 500 updates fill the allocator's pools.
    assert memory[2_000] - memory[500] < 20_000


def test_another_corpus_or_vocabulary_is_refused(source, corpus, masked_run, tmp_path, refused):
    longer = [*toy_settings(source), "data.sequence_length=24"]
    longer = prepare("bert_tiny", str(tmp_path / "longer"), longer)
    refused(main, ["evaluate", masked_run, "--corpus", longer], "sequence_length=24", tmp_path)
    again = [
        "prepare",
        "bert_tiny",
        longer,
        *flags([*toy_settings(source), "data.vocabulary.size=30"]),
    ]
    words = "contains a vocabulary with size=27, but the recipe needs size=30"
    refused(main, again, words, tmp_path)
    with open(f"{longer}/vocabulary.txt", "a") as file:
        file.write("more\n")
    begin = ["train", "bert_tiny", tmp_path / "run", *flags(toy_settings(source))]
    refused(main, [*begin, "--corpus", longer], "vocabulary", tmp_path)


TEXT = "the quick brown fox jumped over the lazy dog, and the Café was full of 12 dogs.\n" * 30


@pytest.mark.parametrize(
    ("kind", "size", "lower_case", "folded"),
    [
        ("wordpiece", 80, True, True),
        ("sentencepiece", 50, True, False),
        ("sentencepiece", 50, False, False),
        ("unigram", 39, True, True),
        ("byte_bpe", 280, True, False),
    ],
)
def test_every_kind_of_vocabulary_is_trained(kind, size, lower_case, folded, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(f"{TEXT}\n{TEXT}\n{TEXT}")
    values = [f"kind={kind}", f"size={size}", f"lower_case={lower_case}"]
    settings = [f"data.sources=text:{tmp_path}/text.txt"]
    settings += [f"data.vocabulary.{value}" for value in values]
    recipe = registry.load("bert_tiny", settings=settings)
    recipe.train_vocabulary(None).save(tmp_path / "vocabulary")
    assert "unknown to the vocabulary: 0.000% of the tokens in" in capsys.readouterr().out
    vocabulary = load_encoder_vocabulary(tmp_path / "vocabulary")
    found = training.VocabularyConfig.of(vocabulary)
    assert (found.kind, found.size, found.lower_case) == (kind, size, lower_case)
    rows = vocabulary.encode_lines(["the café", "THE café", "the cafe"])
    assert (rows[0] == rows[1]) is lower_case
    assert (rows[0] == rows[2]) is folded


@pytest.fixture
def recipe(tmp_path) -> training.PretrainingRecipe:
    """Returns a recipe with 100 lines of English, 4 lines of Nepali and 1 translation pair."""
    (tmp_path / "en.txt").write_text("\n".join(f"en {n}" for n in range(100)))
    (tmp_path / "ne.txt").write_text("\n".join(f"ne {n}" for n in range(4)))
    (tmp_path / "both.tsv").write_text("pair a\tpair b")
    sources = (
        (f"text-lines:{tmp_path}/en.txt", "train", None, "en"),
        (f"text-lines:{tmp_path}/ne.txt", "train", None, "ne"),
        (f"tsv:{tmp_path}/both.tsv", "train", None, ("en", "ne")),
    )
    return training.PretrainingRecipe(
        model="xlm_tiny",
        data=training.PretrainingData(sources, language_alpha=0.0),
        training=TrainingConfig(max_steps=10, warmup_steps=1, learning_rate=1e-3),
    )


def test_a_vocabulary_sees_every_language_as_often(recipe):
    found = collections.Counter(line[:2] for line in training.vocabulary_lines(recipe))
    assert set(found) == {"en", "ne"} and found["en"] == 100
    assert 70 < found["ne"] < 140  # alpha 0: half of the draws
    recipe = override(recipe, ["data.language_alpha=None", "data.vocabulary.max_documents=3"])
    lines = list(training.vocabulary_lines(recipe))
    assert lines[:4] == ["en 0", "ne 0", "pair a", "pair b"]
    assert len(lines) == 8


def test_a_model_has_the_corpus_languages(recipe):
    assert recipe.model_config(100).num_languages == 2
    again = recipe_from_json(recipe.to_json(), "recipe.json")
    assert again == recipe and again.data.languages == ("en", "ne")
    none = override(recipe, ["model.num_languages=0"])
    assert none.model_config(100).num_languages == 0
    with pytest.raises(UserError, match="xlm_tiny has language embeddings, but no source"):
        training.PretrainingRecipe(
            model="xlm_tiny", data=training.PretrainingData(("text:a",)), training=recipe.training
        ).model_config(100)


@pytest.mark.slow
def test_a_second_phase_starts_from_the_first_ones_weights(masked_run, source, tmp_path, ran):
    """A second run starts from the first run's weights and vocabulary, on different text.

    The second run also adds a sentence-pair head.
    """
    few = ["training.max_steps=1", "training.learning_rate=1e-9", "training.warmup_steps=0"]
    changes = [f"data.sources={source}", "data.sequence_length=32", "data.batch_size=8", *few]
    changes += ["data.pairs=next_sentence", "training.save_every_steps=1", "model.dropout=0"]
    run = tmp_path / "second"
    command = ["train", "bert_tiny", run, "--init", masked_run, *flags(changes)]
    out = ran(main, *command).out
    assert "parts that start from random weights, " in out and "pooler, sentence_pair" in out
    opened, before = Run.open(run), Run.open(masked_run)
    assert (
        opened.recipe.init == str(masked_run) and opened.vocabulary.hash == before.vocabulary.hash
    )
    assert opened.recipe.model_config().hidden_dim == 32  # from the first run
    one, other = opened.load_network(), before.load_network("best")
    assert_same_weights(one.encoder, other.encoder, 1e-6)
    found = macaron_tf.load(run).predict("c c [MASK] c c", top=1)
    assert found["words"] == [["c"]]
    assert "stopped after step 1: " in ran(main, "train", "--resume", run).out
    assert "stopped after step 1: " in ran(main, *command).out  # the same command again
