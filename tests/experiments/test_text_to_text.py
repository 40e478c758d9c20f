"""A T5 that was pre-trained on toy documents learns to write the answers of tasks."""

import dataclasses
import json
import re

import pytest
import tensorflow as tf
import tensorflow_datasets

from experiments import registry
from experiments.commands import main
from macaron_tf.data.tasks.definitions import TASKS, Task
from macaron_tf.data.tasks.text_tasks import SUMMARIES
from macaron_tf.model import load
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from macaron_tf.runs.run import Run
from macaron_tf.runs.starts import read_start
from macaron_tf.runs.text_to_text import TextPairs, answers_of, recipe_of_model
from macaron_tf.tasks.generation import frame_lines
from tests.harness import refuses
from tests.toys.pretraining import flags
from tests.toys.runs import check_resumed
from tests.toys.tasks import scores_in, validations


def test_it_has_sentinels_and_starts_no_encoder(t5_run):
    opened = Run.open(t5_run)
    vocab_size = opened.build_network().config.vocab_size
    assert vocab_size == opened.vocabulary.size + SENTINEL_ROWS
    refuses("must be an encoder or a BART or an ELMo", read_start, t5_run)


TRAINING = ("max_steps=80", "validate_every=40", "log_every=10", "learning_rate=0.01")
ROWS = ["data.batching.max_tokens=512", "data.max_target=16", "data.validation_examples=8"]
SETTINGS = flags([f"training.{one}" for one in TRAINING] + ROWS)


@pytest.fixture(scope="module")
def tuned(t5_run, tables, tmp_path_factory):
    """Returns a run on SST-2 that started from the pre-trained run, and its training command."""
    run = tmp_path_factory.mktemp("tuned") / "sst2"
    settings = [*SETTINGS, "--set", f"data.source={tables}"]
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
    rows = flags(
        [*ROWS, "data.mixing.limit=1", f"data.source={source}", "data.fields=('one','two')"]
    )
    recipe = "text_to_text:sst2+translation"
    return lambda run: ["train", recipe, str(run), "--init", t5_run, *rows]


def test_a_summary_is_scored_beside_the_first_sentences(t5_run, tmp_path, ran):
    row = "a c. b d! a d. c b.\ta c.\n"
    (tmp_path / "train.tsv").write_text(row * 24)
    (tmp_path / "validation.tsv").write_text(row * 2)
    run, steps = tmp_path / "run", ["training.max_steps=1", "training.validate_every=1"]
    settings = flags([*steps, *ROWS, f"data.source=tsv:{tmp_path}/{{split}}.tsv"])
    words = ["train", "text_to_text:summarization", str(run), "--init", t5_run, *settings]
    assert main(words) == 0
    output = ran(main, "evaluate", str(run)).out
    # The summary has two of the six words in the first three sentences.
    assert re.search(r"rouge1 +\d\.\d{4}   lead-1 1\.0000   lead-3 0\.5000\n", output)
    assert scores_in(run / "scores")["baselines"]["lead-3"]["rouge1"] == 0.5


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
            task=dict(prefix=prefix), data=dict(source=f"tsv:{tmp_path}/pairs.tsv")
        )
        [(source, _)] = TextPairs.read(recipe, "translation", "all").pairs
        kept = recipe.task_settings().prefix
        asked = frame_lines("translation", tf.constant(["A dog."]), kept).numpy()[0].decode()
        assert source == asked == f"{'translate: ' if prefix is None else prefix}A dog."


@pytest.mark.parametrize("task", SUMMARIES)
def test_summaries_are_fields_of_tensorflow_datasets(task, tmp_path):
    source, fields = SUMMARIES[task]
    builder = tensorflow_datasets.builder_cls(source.removeprefix("tfds:"))(data_dir=tmp_path)
    assert builder.info.supervised_keys == fields


def test_summaries_have_the_published_settings_of_the_model(t5_run):
    t5 = read_start(t5_run, ["writer"]).source
    bart = t5.with_card(objective="denoising", optimizer="adam")

    def settings(task, model, *changes):
        recipe = recipe_of_model(registry.load(f"text_to_text:{task}", settings=changes), model)
        names = "beam_size", "length_penalty", "length_penalty_name", "min_length"
        assert recipe.task.decoding.no_repeat_ngram_size == 3
        return (
            recipe.task.prefix,
            recipe.data.max_source,
            *recipe.task.decoding.options(*names).values(),
        )

    assert settings("cnn_dailymail", t5) == (None, 512, 4, 0.6, "gnmt", 30)
    assert settings("cnn_dailymail", bart) == ("", 1024, 4, 2.0, "fairseq", 55)
    assert settings("xsum", bart, "data.max_source=400") == ("", 400, 6, 1.0, "fairseq", 10)
    one = settings("cnn_dailymail", bart, "task.decoding.beam_size=1")
    assert one == ("", 1024, 1, 0.6, "gnmt", 30)  # the user's search
