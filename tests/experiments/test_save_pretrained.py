"""Tests of `save_pretrained`, of commands that read what it saved, and of model cards."""

import pytest
import yaml

import macaron_tf
from experiments.commands import main
from export.saved_model import main as export
from macaron_tf.model import Model
from macaron_tf.runs.run import Run
from tests.harness import refuses, run_card
from tests.toys.marks import slow
from tests.toys.tasks import assert_same_weights, toy_flags


@pytest.fixture(scope="module")
def saved(toy_run, number_run, language_run, tmp_path_factory):
    """Returns a folder with a saved classifier, translator and language model."""
    folder = tmp_path_factory.mktemp("saved")
    for name, run in (("toy", toy_run), ("numbers", number_run), ("gpt2", language_run)):
        macaron_tf.load(run).save_pretrained(folder / name)
    return folder


@pytest.mark.slow
def test_every_command_takes_what_load_opens(
    saved, toy_run, number_run, answered, ran, refused, tmp_path
):
    for name, run in (("toy", toy_run), ("numbers", number_run)):
        found = macaron_tf.load(run)
        found.with_card(recipe={}, results={}).save_pretrained(tmp_path / name)
    Model(found.network).save_pretrained(tmp_path / "bare")
    folder = saved / "numbers" / "vocabulary"
    again = macaron_tf.load(tmp_path / "bare", vocabulary=folder)
    assert again.vocabulary.hash == found.vocabulary.hash
    for command, words in ((main, ["predict"]), (export, [])):
        refused(command, [*words, tmp_path / "bare", tmp_path / "out"], "has no vocabulary")
    refuses("has its own vocabulary", macaron_tf.load, toy_run, vocabulary=folder)
    refused(main, ["evaluate", tmp_path / "toy"], "was saved without a training recipe")
    for name, run in (("toy", toy_run), ("numbers", number_run)):
        one_set = tmp_path / name, f"{run}@best"
        answers = [
            answered(main, "predict", place, text="one two\n")
            for place in (*one_set, saved / name, run)
        ]
        assert answers == answers[:1] * 4
        refused(main, ["predict", f"{tmp_path / name}@last"], "has only one set of weights")
    macaron_tf.load(saved / "numbers").save_pretrained(tmp_path / "again")
    for name in ("model.json", "recipe.json"):
        assert (tmp_path / "again" / name).read_bytes() == (saved / "numbers" / name).read_bytes()
    ran(export, tmp_path / "numbers", tmp_path / "served")


@pytest.mark.slow
def test_a_quantized_run_answers_as_load_does(toy_run, answered, tmp_path):
    found = macaron_tf.load(toy_run)
    found.network.quantize("int8")
    found.save_pretrained(tmp_path / "int8")
    network = Run.open(tmp_path / "int8").load_network()
    assert_same_weights(network, found.network)
    assert answered(main, "predict", tmp_path / "int8", text="good film\n")


def test_it_is_not_trained_on(saved, toy, refused):
    again = ["train", "finetune:sst2", str(saved / "toy"), *toy_flags(toy)]
    refused(main, again, "was written by save_pretrained", saved)
    refused(main, ["average", str(saved / "numbers")], "has 0 regular checkpoints", saved)


@pytest.mark.parametrize(
    ("run", "pipeline"),
    [
        ("toy_run", "text-classification"),
        ("language_run", "text-generation"),
        *slow(("number_run", "translation"), ("t5_run", "text2text-generation")),
    ],
)
def test_a_card_s_lines_run_and_its_header_is_the_hub_s(
    run, pipeline, request, tmp_path, monkeypatch
):
    model = macaron_tf.load(request.getfixturevalue(run))
    model.save_pretrained(tmp_path / "mine", license="mit")
    card = (tmp_path / "mine/README.md").read_text()
    header = yaml.safe_load(card.split("---")[1])
    assert (header["pipeline_tag"], header["license"]) == (pipeline, "mit")
    assert "masking." not in card and "rows_per_shard" not in card
    names = run_card(tmp_path / "mine", monkeypatch)
    assert "predict" in card and names["model"].card.name == "mine"
