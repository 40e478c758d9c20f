"""Tests of fine-tuning on user tables, whose class names are stored in the run."""

import numpy as np
import pytest

import macaron_tf
from experiments.commands import main
from experiments.few_shot.commands import main as few_shot
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.examples import read_examples
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.runs.finetuning import TaskData
from macaron_tf.runs.run import Run
from tests.harness import refuses
from tests.toys import tasks as toys

NAMES = {"negative": "1 star", "positive": "5 stars"}


@pytest.fixture(scope="module")
def own(toy, tmp_path_factory):
    """Trains on a user table; returns the folder and the flags of the training command.

    The folder holds the table and the run.
    """
    folder = tmp_path_factory.mktemp("own")
    rows = [(text, NAMES[label], "x") for text, label in toys.sentences(240, 1)]
    toys.write_table(folder / "own.tsv", rows, "review\tstars\tmore")
    flags = toys.toy_flags(toy, "classify", source=f"tsv:{folder}/own.tsv")
    flags += ["--set", "data.table.text=review", "--set", "data.table.label=stars"]
    assert main(["train", "finetune:classify", str(folder / "run"), *flags]) == 0
    return folder, flags


def test_the_classes_of_a_table_go_with_the_run(own, tmp_path, ran, answered):
    folder, _ = own
    run = Run.open(folder / "run")
    best = toys.best_in(run.path)["score"]
    assert run.recipe.task_definition.labels == ("1 star", "5 stars") and best > 0.9
    found = ran(main, "evaluate", folder / "run", "--output", tmp_path / "scores")
    assert "24 examples of validation" in found.out and "24 of 240 examples" in found.err
    assert toys.scores_in(tmp_path / "scores")["metrics"]["score"] == best
    macaron_tf.load(folder / "run").save_pretrained(tmp_path / "saved")
    assert macaron_tf.load(tmp_path / "saved").settings.task.labels == ("1 star", "5 stars")
    for place in (folder / "run", tmp_path / "saved"):
        lines = answered(main, "predict", place, text="the plot was great\nvery dull\n")
        assert [line.split("\t")[0] for line in lines.splitlines()] == ["5 stars", "1 star"]


def test_a_run_goes_on_with_its_table(own, ran):
    again = ran(main, "train", "--resume", own[0] / "run")
    assert "resuming after step 40" in again.out


def test_another_table_needs_the_same_classes(own, tmp_path, refused):
    toys.write_table(tmp_path / "new.tsv", [("fun", "1 star"), ("dull", "2")], "review\tstars")
    other = ["evaluate", own[0] / "run", "--source", f"tsv:{tmp_path}/new.tsv"]
    words = "new.tsv, line 3: '2' in column 'stars' is not one of the classes 1 star, 5 stars"
    refused(main, other, words, own[0])


@pytest.mark.parametrize(
    ("command", "old", "new", "words"),
    [
        ("train --resume RUN", "review", "text", "line 1 has no columns named 'review'"),
        ("train --resume RUN", "1 star", "2 stars", "'2 stars' in column 'stars' is not one of"),
        # The same command as before keeps the classes.
        ("train finetune:classify RUN", "1 star", "2 stars", "with data.table.classes=('1 star', "),
        # Added lines would change the held-out part.
        (
            "evaluate RUN",
            "more\n",
            "more\n" + "fun\t5 stars\tx\n" * 20,
            "training data differ from those of",
        ),
    ],
)
def test_a_changed_table_is_refused(own, command, old, new, words, capsys):
    folder, flags = own
    table, more = folder / "own.tsv", flags if "finetune" in command else []
    text = table.read_text()
    table.write_text(text.replace(old, new))
    assert main([*command.replace("RUN", str(folder / "run")).split(), *more]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    table.write_text(text)


def test_a_set_of_tensorflow_datasets_is_a_table(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    features = {
        "story": tfds.features.Text(),
        "words": tfds.features.Sequence(tfds.features.Text()),
        "stars": tfds.features.ClassLabel(names=["two", "one", "never"]),
        "tags": tfds.features.Sequence(tfds.features.ClassLabel(names=["O", "I-PER"])),
        "score": np.float32,
    }
    one, two, other = (
        {"story": text, "words": ["Ann", text], "stars": stars, "tags": [1, 0], "score": score}
        for text, stars, score in [("good", 1, 0.5), ("bad", 0, 4.0), ("", -1, 0.0)]
    )
    train = [one, two] * 20
    toys.write_tfds(tmp_path / "held", features, train=train, test=[other])
    toys.write_tfds(tmp_path / "split", features, train=train, dev=[two])
    stars = TableSettings(text=("story",), label="stars")

    def read(name, table, folder="held"):
        task = get_task(name, own=True)
        return TaskData(task, "tfds:glue/toy", Tfds(tmp_path / folder), table)

    data = read("classify", stars)
    assert data.task.labels == ("two", "one", "never")
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 36, "validation": 4}
    examples = data.splits["train"]
    assert [text == "good" for text in examples.first] == examples.labels.tolist()
    assert read_examples(data.task, "test", Tfds(tmp_path / "held"), "tfds:glue/toy").labels is None
    assert read("classify", stars, "split").splits["validation"].first == ["bad"]
    scores = read("regress", TableSettings(text=("story",), label="score"))
    assert (scores.task.mean, scores.task.deviation) == (2.25, 1.75)
    tags = read("tag", TableSettings())
    assert tags.task.labels == ("O", "B-PER", "I-PER")
    assert tags.splits["train"].words[0][0] == "Ann"
    mend = "no columns named 'label' .*: name them so, or train with data.table.text and data"
    refuses(mend, read, "classify", TableSettings(text=("story",)))


@pytest.mark.parametrize("checkpoint", ["", "@last"])
@pytest.mark.parametrize(
    ("command", "function", "words"),
    [
        (main, "experiments.evaluate:run", ["evaluate", "RUN"]),
        (main, "experiments.evaluation.finetuning:submit", ["submit", "RUN", "OUT"]),
        (few_shot, "experiments.few_shot.evaluate:run", ["RUN", "--task", "sst2", "--out", "OUT"]),
    ],
)
def test_commands_read_the_data_folder_of_a_run(
    command, function, words, checkpoint, tmp_path, monkeypatch
):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "data.json").write_text('{"sha256": "", "data_dir": "/sets"}')
    seen = []
    monkeypatch.setattr(function.replace(":", "."), seen.append)
    run = f"{tmp_path}/run{checkpoint}"
    given = [word.replace("RUN", run).replace("OUT", str(tmp_path / "out")) for word in words]
    for data_dir in (None, "/other"):
        assert command([*given, *(["--data-dir", data_dir] if data_dir else [])]) == 0
        assert seen[-1].tfds.data_dir == (data_dir or "/sets")
