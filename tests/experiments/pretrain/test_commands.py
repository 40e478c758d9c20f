"""The commands of pre-training, from documents to filled-in words, on a language of letters."""

import json
import os
import resource
import shutil
import signal

import pytest
import tensorflow as tf

from experiments import registry
from experiments.pretrain.__main__ import main
from experiments.pretrain.evaluate import fill
from experiments.pretrain.run import PretrainingRun
from experiments.pretrain.train import PretrainingValidation, train_recipe
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.text import load_encoder_vocabulary
from macaron_tf.training.progress import read_lines
from tests.experiments.pretraining_toy import flags, prepare, toy_settings, train
from tests.experiments.task_toys import assert_same_weights


@pytest.fixture(scope="module")
def corpus(source, tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("corpora") / "toy")
    return prepare("bert_tiny", folder, toy_settings(source))


def long_run(steps: int = 150, sources: str = "text:/nowhere/*") -> list[str]:
    """Settings of a run with dropout, validated thrice; its corpus is prepared already."""
    changes = [f"training.validate_every={steps // 3}", f"training.save_every_steps={steps // 3}"]
    changes += ["training.schedule=inverse_sqrt", "model.dropout=0.1", "vocabulary.size=999"]
    return [*toy_settings(sources, steps), *changes]


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "bert"
    assert train("bert_tiny", run, corpus, long_run()) == 0
    return run


def test_it_learns_which_letter_a_document_says(trained, corpus):
    validations = [
        line for line in read_lines(trained / "metrics.jsonl") if line["kind"] == "validation"
    ]
    assert [line["step"] for line in validations] == [50, 100, 150]
    # Chance is 1 in 10; where a sentence ends cannot be known.
    assert validations[-1]["accuracy"] > 0.7
    opened = PretrainingRun.open(trained)
    [answers] = fill(opened.load_network(), opened.vocabulary, "c c [MASK] c c", 3, 16)
    assert answers[0][0] == "c" and answers[0][1] > 0.5
    assert answers[0][1] >= answers[1][1] >= answers[2][1]
    # The run says what its corpus is, not what the recipe would have prepared.
    assert opened.recipe.corpus == PretrainingCorpus.open(corpus).config
    assert opened.recipe.vocabulary.size == 27


def test_evaluate_repeats_the_validation_and_fill_is_a_command_too(trained, corpus, capsys):
    assert main(["evaluate", str(trained), "--corpus", corpus, "--checkpoint", "last"]) == 0
    assert "accuracy" in capsys.readouterr().out
    [record] = [json.loads(path.read_text()) for path in (trained / "scores").glob("*.json")]
    last = read_lines(trained / "metrics.jsonl")[-1]
    assert record["loss"] == pytest.approx(last["loss"], abs=1e-6)
    assert record["rows"] == PretrainingCorpus.open(corpus).rows("validation")
    assert main(["fill", str(trained), "a [MASK] a", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a [MASK] a" and lines[1].count("%") == 2


@pytest.mark.parametrize(
    "recipe",
    [
        "swish_rnn_tiny",
        "span_bert_tiny",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("bert_rab_tiny", "macaron_bert_tiny", "gmlp_tiny")
        ),
    ],
)
def test_one_command_pre_trains_every_family(recipe, source, tmp_path):
    """Without --corpus the recipe's own is prepared, in the cache."""
    run = tmp_path / "run"
    assert main(["train", recipe, str(run), *flags(toy_settings(source))]) == 0
    losses = [line["loss"] for line in read_lines(run / "metrics.jsonl")]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("recipe", "size"), [("gpt_tiny", 27), ("gpt2_tiny", 270)])
def test_the_next_token_is_learnt_and_none_filled_in(recipe, size, source, tmp_path, capsys):
    run, settings = tmp_path / "run", [*toy_settings(source), f"vocabulary.size={size}"]
    corpus = prepare(recipe, str(tmp_path / "corpus"), settings)
    assert train(recipe, run, corpus, settings) == 0
    output = capsys.readouterr().out
    assert " fill " not in output and f"experiments.generate complete {run}" in output
    lines = read_lines(run / "metrics.jsonl")
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert main(["evaluate", str(run), "--corpus", corpus]) == 0
    scores = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines())
    # Nine guesses of ten see nothing but the letter before: it comes again, or a full stop.
    assert float(scores["perplexity"]) < 4.0
    assert main(["fill", str(run), "a [MASK]"]) == 2
    assert "fills no [MASK]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "changes", "least"),
    [
        (
            "macaron_bert_tiny",
            ["corpus.pairs=next_sentence", "masking.mask=0.8", "masking.random=0.1"],
            0.3,
        ),
        ("albert_tiny", ["model.embedding_dim=16"], 0.2),
    ],
)
def test_pairs_of_sentences_are_learnt_besides(recipe, changes, least, source, tmp_path):
    settings = [*toy_settings(source), "corpus.sequence_length=32", *changes]
    assert main(["train", recipe, str(tmp_path / "run"), *flags(settings)]) == 0
    last = read_lines(tmp_path / "run" / "metrics.jsonl")[-1]
    assert last["loss"] == pytest.approx(last["nll"] + last["pair_loss"], rel=0.05)
    assert least < last["pair_accuracy"] <= 1.0


@pytest.mark.parametrize(
    "recipe", ["bert_tiny", pytest.param("electra_tiny", marks=pytest.mark.slow)]
)
def test_a_run_that_sigterm_stopped_is_the_uninterrupted_one(
    recipe, trained, corpus, tmp_path, monkeypatch, capsys
):
    """To the bit: weights and metrics, with dropout, masks drawn anew, tokens sampled by a
    generator and shuffled rows. The same command goes on."""
    whole, parts, settings = trained, tmp_path / "parts", long_run()
    if recipe != "bert_tiny":
        whole, settings = tmp_path / "whole", long_run(30)
        assert train(recipe, whole, corpus, settings) == 0
    validation = PretrainingValidation.__call__
    stop = read_lines(whole / "metrics.jsonl")[-1]["step"] // 3

    def terminated(self, model, step):
        if step == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return validation(self, model, step)

    with monkeypatch.context() as patch:
        patch.setattr(PretrainingValidation, "__call__", terminated)
        with pytest.raises(SystemExit) as exit_:
            train(recipe, parts, corpus, settings)
    assert exit_.value.code == 143
    error = capsys.readouterr().err
    assert f"step {stop} is saved in" in error and "run the same command again" in error
    assert train(recipe, parts, corpus, settings) == 0
    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert_same_weights(*(PretrainingRun.open(run).load_network("last") for run in (whole, parts)))


@pytest.mark.slow
def test_nothing_is_traced_again_and_memory_stays_flat(source, corpus, tmp_path, monkeypatch):
    """2,000 updates with validations and checkpoints in between."""
    import experiments.train_run as module

    models, memory, build = [], {}, module.build_fit_model
    monkeypatch.setattr(
        module, "build_fit_model", lambda *a, **k: models.append(build(*a, **k)) or models[-1]
    )
    validation = PretrainingValidation.__call__

    def measured(self, model, step):
        memory[step] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return validation(self, model, step)

    monkeypatch.setattr(PretrainingValidation, "__call__", measured)
    settings = [*toy_settings(source, steps=2_000), "training.validate_every=500"]
    settings.append("training.save_every_steps=500")
    recipe = registry.load("swish_rnn_tiny", settings=settings)
    train_recipe(recipe, tmp_path / "run", PretrainingCorpus.open(corpus))
    assert models[0].traces == {"train": 1, "test": 1}
    # Kilobytes; the first 500 updates fill the allocator's pools.
    assert memory[2_000] - memory[500] < 20_000


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model=transformer_tiny", "transformer_tiny is no encoder"),
        ("model.rnn_step_sizes=(0,)", "rnn_step_sizes=(0,) must be"),
        ("corpus.sequence_length=32", "prepared with sequence_length=16"),
        ("corpus.pairs=next_sentence", "prepared with pairs='none'"),
        ("model.max_length=8", "model.max_length is 8"),
        ("batch_size=100000", "less than one batch of 100000"),
        ("training.best_metric=bleu", "best_metric is 'bleu'"),
        ("objective=guessing", "objective='guessing' must be one of 'masked_language'"),
        ("objective=span_boundary", "set masking.choice=spans"),
        ("model.causal=True", "with model.causal=True"),
        ("generator_width=0", "generator_width=0 must be a number above 0"),
        ("masking.rate=0", "masking.rate=0 must be a number above 0"),
        ("model.name=3", "there is no 'name' here"),
        ("model.activation=foo", "foo"),
        ("model.rnn_step_sizes=None", "rnn_step_sizes=None must be"),
        ("corpus.sources=3", "corpus.sources=3 must be one or several of"),
    ],
)
def test_bad_settings_are_one_sentence(setting, words, source, corpus, tmp_path, refused):
    # A model of another kind takes none of the toy's options.
    toy = [] if setting == "model=transformer_tiny" else toy_settings(source)
    arguments = ["train", "bert_tiny", str(tmp_path / "run"), "--corpus", corpus]
    arguments += flags([*toy, setting])
    refused(main, arguments, words, tmp_path)


def test_bad_recipes_corpora_and_texts_are_one_sentence(source, corpus, trained, tmp_path, refused):
    settings, run = flags(toy_settings(source)), str(tmp_path / "run")
    begin, words = ["train", "bert_tiny", run, *settings], str(tmp_path / "words")
    longer = [*toy_settings(source), "corpus.sequence_length=24"]
    longer = prepare("bert_tiny", str(tmp_path / "longer"), longer)
    shutil.copytree(corpus, words)
    for path in trained.glob("vocabulary/*"):
        shutil.copy(path, words)
    with open(f"{words}/vocabulary.txt", "a") as file:
        file.write("more\n")
    for arguments, message in (
        (["train", "demo", run, "--corpus", corpus], "demo is a recipe of kind 'translation'"),
        (["train", "brt", run, "--corpus", corpus], "no recipe is called 'brt'"),
        ([*begin, "--corpus", str(tmp_path / "none")], "no corpus in"),
        ([*begin, "--corpus", words], "vocabulary"),
        ([*begin, "--corpus", corpus, "--vocabulary", corpus], "the corpus brings its own"),
        ([*begin, "--set", "corpus.sources=text:/nowhere/*"], "/nowhere/*"),
        (
            ["prepare", "bert_tiny", corpus, *settings, "--set", "vocabulary.size=30"],
            "holds a vocabulary of size 27, the recipe wants 30",
        ),
        (["evaluate", str(trained), "--corpus", longer], "sequence_length=24"),
        (["fill", str(tmp_path), "a [MASK]"], "is not a run"),
        (["fill", str(trained), "nothing hidden"], "has no [MASK]"),
        (["fill", str(trained), "a " * 600 + "[MASK]"], "more than the 16 of the rows"),
    ):
        refused(main, arguments, message, tmp_path)


def test_a_nan_loss_stops_the_run_with_the_step(source, corpus, tmp_path, capsys):
    settings = [*toy_settings(source), "training.learning_rate=1e38", "training.warmup_steps=0"]
    settings += ["training.schedule=constant", "training.max_skipped_updates=3"]
    assert train("bert_tiny", tmp_path / "run", corpus, settings) == 2
    assert "NaN" in capsys.readouterr().err


def test_static_shapes_give_the_same_loss(trained, corpus, tmp_path):
    settings = [*long_run(), "static_shapes=True", "training.max_steps=20"]
    assert train("bert_tiny", tmp_path, corpus, settings) == 0
    one, other = (read_lines(run / "metrics.jsonl")[:2] for run in (tmp_path, trained))
    assert [line["loss"] for line in one] == pytest.approx([line["loss"] for line in other], 1e-4)


def test_a_sentencepiece_vocabulary_folds_case_where_asked(source, tmp_path):
    for lower_case in (True, False):
        out = str(tmp_path / str(lower_case))
        settings = [*toy_settings(source), "vocabulary.kind=sentencepiece", "vocabulary.size=20"]
        settings.append(f"vocabulary.lower_case={lower_case}")
        assert main(["vocabulary", "macaron_bert_tiny", out, *flags(settings)]) == 0
        ids = load_encoder_vocabulary(out).encode_lines(["A a", "a a"])
        assert (ids[0] == ids[1]) is lower_case


def test_rows_have_static_shapes(corpus):
    batch = PretrainingCorpus.open(corpus).dataset("train", 8).element_spec
    assert batch["token_ids"] == tf.TensorSpec((8, 16), tf.int32)
