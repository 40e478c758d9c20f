"""T5 and BART, pre-trained on toy documents by the commands, generate answers."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from experiments import registry
from experiments.commands import main
from macaron_tf.data.tasks.definitions import TASKS, Task
from macaron_tf.model import load
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from macaron_tf.runs.run import Run
from macaron_tf.runs.starts import read_start
from macaron_tf.runs.text_to_text import TextPairs, answers_of, check_answers
from macaron_tf.tasks.generation import frame_lines
from macaron_tf.training.progress import read_lines
from tests.harness import refuses
from tests.toys.marks import slow
from tests.toys.pretraining import flags, t5_settings
from tests.toys.runs import check_resumed
from tests.toys.tasks import scores_in, validations


@pytest.mark.parametrize("recipe", ["t5_tiny", *slow("bart_tiny")])
def test_it_is_pre_trained_and_evaluated(
    recipe, t5_run, t5_corpus, tables, tmp_path, ran, answered
):
    run = t5_run
    if recipe == "bart_tiny":
        run = tmp_path / "bart"
        settings = flags(t5_settings(recipe, "swish_rnn"))
        output = ran(main, "train", recipe, run, "--corpus", t5_corpus, *settings).out
        assert "train text_to_text:" in output and "train finetune" not in output
    opened = Run.open(run)
    lines = read_lines(opened.path / "metrics.jsonl")
    assert lines[-1]["kind"] == "validation" and lines[-1]["loss"] < lines[0]["loss"]
    ran(main, "evaluate", run, "--corpus", t5_corpus, "--checkpoint", "last")
    assert scores_in(opened.path / "scores")["loss"] == pytest.approx(lines[-1]["loss"], abs=1e-5)
    sentinels = SENTINEL_ROWS if recipe == "t5_tiny" else 0
    assert opened.build_network().config.vocab_size == opened.vocabulary.size + sentinels
    refuses(
        "is an encoder-decoder, but must be an encoder", read_start, str(run), kinds=["encoder"]
    )
    if recipe == "t5_tiny":
        words = "must be an encoder or a BART or an ELMo"
        refuses(words, read_start, str(run))
        return
    # As a classifier, which reads the row again in the decoder.
    tuned, steps = tmp_path / "tuned", ["training.max_steps=2", "training.validate_every=2"]
    settings = flags([*steps, "max_length=12", f"source={tables}"])
    ran(main, "train", "finetune:sst2", tuned, "--init", run, *settings)
    (line,) = answered(main, "predict", tuned, text="a c\n").splitlines()
    served = tf.saved_model.load(str(load(tuned).export(tmp_path / "out")))
    said = served.signatures["serving_default"](text=tf.constant(["a c"]))
    label, *shown = line.split("\t")
    assert said["label"].numpy()[0].decode() == label
    np.testing.assert_allclose(said["probabilities"][0], [float(p) for p in shown], atol=1e-4)
    again = read_start(str(tuned))  # a task run is a start too
    assert again.source.network.encoder_decoder is not None


TRAINING = ("max_steps=80", "validate_every=40", "log_every=10", "learning_rate=0.01")
ROWS = ["batching.max_tokens=512", "max_target=16", "validation_examples=8"]
SETTINGS = flags([f"training.{one}" for one in TRAINING] + ROWS)


@pytest.fixture(scope="module")
def tuned(t5_run, tables, tmp_path_factory):
    """Returns a run on SST-2 that started from the pre-trained run, and its training command."""
    run = tmp_path_factory.mktemp("tuned") / "sst2"
    settings = [*SETTINGS, "--set", f"source={tables}"]
    command = ["train", "text_to_text:sst2", str(run), "--init", t5_run, *settings]
    assert main(command) == 0
    return run, command


def test_from_pre_training_to_answers(tuned, answered):
    run, command = tuned
    lines = validations(run)
    assert [line["step"] for line in lines] == [40, 80]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["score"] == lines[-1]["task_accuracy"] > 0.9
    assert main(command) == 0  # nothing is left to do
    assert main(["evaluate", str(run)]) == 0
    record = scores_in(run / "scores")
    assert record["accuracy"] > 0.9 and len(record["answers"]) == 16
    answers = answered(main, "predict", run, text="a c\nb d\n").splitlines()
    assert len(answers) == 2 and answers[0] != answers[1]


def test_a_long_line_is_cut_and_text_without_labels_is_not_scored(tuned, tmp_path, refused):
    run, _ = tuned
    opened = Run.open(run)
    recipe, network = opened.recipe, opened.load_network()
    translator = recipe.task_settings().lines(network, opened.vocabulary, recipe.decoding)
    [cut] = translator.translate(["a " * 500]).warnings
    assert "line 1" in cut and "only the first 127" in cut
    unlabelled = tmp_path / "test.tsv"
    unlabelled.write_text("sentence\na c\n")
    arguments = ["evaluate", str(run), "--source", f"tsv:{tmp_path}/{{split}}.tsv"]
    refused(main, [*arguments, "--split", "test"], "split 'test' of tsv:", tmp_path)


@pytest.mark.slow
def test_a_model_without_a_recipe_answers_its_task(tuned, tmp_path, answered):
    """A model from a .keras file has no recipe."""
    run, _ = tuned
    answers = answered(main, "predict", run, text="a c\nb d\n")
    found, saved = load(run).with_card(recipe={}), tmp_path / "saved"
    found.save_pretrained(saved)
    loaded = load(saved)
    assert answers_of(loaded, "a", None) == answers_of(loaded, "a", "sst2") == found.settings
    dataclasses.replace(found, settings=None).save_pretrained(saved)
    refuses("the task that it was trained for: set task=", answers_of, load(saved), "a", None)
    assert answered(main, "predict", saved, "--set", "task=sst2", text="a c\nb d\n") == answers
    refuses("for sst2, not for rte: leave task=rte out", answers_of, loaded, "a", "rte")


@pytest.mark.slow
def test_a_task_is_judged_on_its_own_validation_split(t5_run, tmp_path, monkeypatch):
    told = Task("mnli", ("a",), labels=("a", "b"), source=f"tsv:{tmp_path}/{{split}}.tsv",
                validation_splits=("validation_matched", "validation_mismatched"))  # fmt: skip
    for split in ("train", "validation_matched"):
        (tmp_path / f"{split}.tsv").write_text("a\tlabel\n" + "a c\ta\nb d\tb\n" * 24)
    for name in ("mnli", "sst2"):
        monkeypatch.setitem(TASKS, name, dataclasses.replace(told, name=name))
    for task in ("mnli", "mnli+sst2"):
        run, steps = tmp_path / task, ["training.max_steps=1", "training.validate_every=1"]
        words = [f"text_to_text:{task}", str(run), "--init", t5_run, *flags([*steps, *ROWS])]
        assert main(["train", *words]) == 0 and main(["evaluate", str(run)]) == 0
        assert {json.loads(file.read_text())["split"] for file in (run / "scores").iterdir()} == {
            "validation_matched"
        }


@pytest.fixture
def mixture(t5_run, tables, tmp_path, monkeypatch):
    """Returns a function from the path of a run to the arguments of its training command.

    The run trains on a mixture of sentiment classification and letter translation.
    """
    monkeypatch.setitem(TASKS, "sst2", dataclasses.replace(TASKS["sst2"], source=tables))
    for split, count in (("train", 24), ("validation", 8)):
        (tmp_path / f"{split}.one").write_text("a c\nb d\n" * count)
        (tmp_path / f"{split}.two").write_text("c\nd\n" * count)
    source = f"text:{tmp_path}/{{split}}.one,{tmp_path}/{{split}}.two"
    rows = flags([*ROWS, "mixing.limit=1", f"source={source}", "fields=('one','two')"])
    recipe = "text_to_text:sst2+translation"
    return lambda run: ["train", recipe, str(run), "--init", t5_run, *rows]


@pytest.mark.slow
def test_one_model_learns_several_tasks(mixture, tmp_path, answered, ran):
    run, learning = tmp_path / "run", flags([f"training.{one}" for one in TRAINING])
    output = ran(main, *mixture(run), *learning).out
    assert "rates of the tasks: sst2 0.500 (64 pairs), translation 0.500 (48 pairs)" in output
    last = validations(run)[-1]
    assert last["sst2_accuracy"] > 0.9 and last["translation_chrf"] > 0.9
    assert last["score"] == (last["sst2_score"] + last["translation_score"]) / 2
    assert main(["evaluate", str(run)]) == 0
    records = [json.loads(path.read_text()) for path in (run / "scores").glob("*.json")]
    assert {record["task"] for record in records} == {"sst2", "translation"}
    answers = answered(main, "predict", run, text="sst2 sentence: a c\ntranslate: a c\n")
    one = answered(main, "predict", run, "--set", "task=sst2", text="a c\n")
    other = answered(main, "predict", run, "--set", "task=translation", text="a c\n")
    assert answers == one + other and one.strip() == "positive"
    refuses(
        r"for sst2\+translation, not for rte: leave task=rte out", answers_of, load(run), "a", "rte"
    )


@pytest.mark.slow
def test_a_mixture_goes_on_as_one_that_never_stopped(mixture, tmp_path):
    check_resumed(mixture("RUN"), tmp_path)


def test_training_and_answers_have_the_same_prefix(tmp_path):
    (tmp_path / "pairs.tsv").write_text("A dog.\tEin Hund.\n")
    for prefix in ("translate English to German: ", "", None):
        recipe = registry.load("text_to_text:translation").changed(
            source=f"tsv:{tmp_path}/pairs.tsv", prefix=prefix
        )
        [(source, _)] = TextPairs.read(recipe, "translation", "all").pairs
        kept = recipe.task_settings().prefix
        asked = frame_lines("translation", tf.constant(["A dog."]), kept).numpy()[0].decode()
        assert source == asked == f"{'translate: ' if prefix is None else prefix}A dog."


def test_wrong_input_is_one_sentence(t5_run, tmp_path, refused):
    run = str(tmp_path / "run")
    for task, settings, words in (
        ("squad2", [], "task is 'squad2', but must be one of"),
        ("sst2+sst2", [], "names 'sst2' twice"),
        ("sst2+translation", [], "'translation' has no default source"),
        ("sst2+cola", ["source=tsv:x"], "source=tsv:x has no effect"),
        ("sst2", ["decoding.max_length=9"], "max_target instead"),
        ("sst2", ["prefix=sentiment: "], "is only for summarization or translation"),
    ):
        arguments = [f"text_to_text:{task}", run, "--init", t5_run, *flags(settings)]
        refused(main, ["train", *arguments], words, tmp_path)
    refused(main, ["train", "text_to_text:sst2", run], "--init", tmp_path)


def test_a_vocabulary_that_cannot_say_the_answers_is_refused():
    class Letters:
        """A vocabulary that knows only the letters in `known`."""

        known = ""

        def encode_lines(self, lines):
            return [[ord(letter) for letter in line if letter in self.known] for line in lines]

        def decode_lines(self, rows):
            return ["".join(map(chr, row)) for row in rows]

    letters = Letters()
    refuses("'negative' of sst2, because its tokens decode to ''", check_answers, "sst2", letters)
    check_answers("summarization", letters)
    letters.known = "negativepositive"
    check_answers("sst2", letters, 8)
    refuses("decode to 'negativ': raise max_target", check_answers, "sst2", letters, 7)
