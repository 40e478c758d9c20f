"""`evaluate`, `compare`, `compare_blocks`: what is scored, where it is kept, what is comparable."""

import json
import pathlib
from itertools import pairwise

import pytest

from experiments import compare_blocks, registry
from experiments.recipe import override
from experiments.translate import __main__ as translate
from experiments.translate.__main__ import main
from macaron_tf.data.sources.names import PAIRS
from tests.conftest import number_pairs


def evaluated(run, folder, *arguments) -> list[dict]:
    assert main(["evaluate", str(run), "--output", str(folder), *arguments]) == 0
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_files_without_splits_are_all_of_the_text(number_run, tmp_path, capsys):
    pairs = number_pairs(4, seed=5)
    for side, name in enumerate(("a.en", "a.de")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    (tmp_path / "a.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs))
    out = tmp_path / "out"
    evaluated(number_run, out, "--source", f"text:{tmp_path}/a.en,{tmp_path}/a.de")
    records = evaluated(number_run, out, "--source", f"tsv:{tmp_path}/a.tsv")
    assert [record["split"] for record in records] == ["all", "all"]
    assert records[0]["references"] == records[1]["references"] == [pair[1] for pair in pairs]
    assert "average (the mean of steps 275, 300)" in capsys.readouterr().out
    assert records[0]["steps"] == [275, 300]


def test_no_evaluation_overwrites_another(number_run, tmp_path, capsys):
    source = tmp_path / "a.tsv"
    source.write_text("One two\tEins zwei\n")
    out = tmp_path / "out"
    of_text = ["--source", f"tsv:{source}"]
    assert len(evaluated(number_run, out, *of_text)) == 1
    assert len(evaluated(number_run, out, *of_text)) == 1
    assert len(evaluated(number_run, out, *of_text, "--beam-size", "2")) == 2
    assert len(evaluated(number_run, out, *of_text, "--checkpoint", "300")) == 3
    assert "step-00000300 (step 300)" in capsys.readouterr().out
    records = evaluated(number_run, out, *of_text, "--no-lowercase")
    assert len(records) == 4
    assert sorted(record["metric"]["lowercase"] for record in records) == [False, True, True, True]
    # Other text under the same name, as another --data-dir has it.
    source.write_text("three\tdrei\n")
    assert len(evaluated(number_run, out, *of_text)) == 5
    names = [path.name for path in out.glob("*.json")]
    assert sum("a.tsv-all-average-beam5-" in name for name in names) == 3
    assert sum("a.tsv-all-average-beam2-" in name for name in names) == 1


def test_languages_may_be_called_otherwise(number_run, tmp_path, capsys, monkeypatch):
    asked = []

    def read(source, split, *languages_and_place):
        asked.append(languages_and_place[:2])
        return [("one", "eins")]

    monkeypatch.setattr("experiments.translate.evaluate.read_pairs", read)
    languages = ["--source-language", "en_US", "--target-language", "de_DE"]
    (record,) = evaluated(number_run, tmp_path, "--source", "tfds:x", *languages)
    assert asked == [("en_US", "de_DE")]
    assert record["languages"] == ["en_US", "de_DE"]
    # The metric's rules are the language's, whatever the records call it.
    assert record["metric"]["language"] == "de"


GOOD = {
    "hypotheses": ["ein hund", "zwei"],
    "references": ["ein hund", "drei"],
    "metric": {"language": "de", "lowercase": True},
}


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"references": ["a", "b"]}, "different references"),
        ({"metric": {"language": "de"}}, "by the same metric"),
        ({"metric": {"language": 5}}, "the metric's 'language' is 5"),
        ({"metric": {"colour": "red"}}, "the metric's 'colour' is 'red'"),
        ({"metric": ["de"]}, "the metric's 'metric' is ['de']"),
        ({"hypotheses": "ein"}, "'hypotheses' is no list of lines"),
        ({"hypotheses": [1, 2]}, "'hypotheses' is no list of lines"),
        ({"hypotheses": ["a"]}, "1 hypotheses and 2 references"),
        ("[]", "holds no translations"),
        ("{}", "holds no translations"),
        ("null", "holds no translations"),
        ("{", "cannot be read as scores"),
        ("[" * 100_000, "cannot be read as scores"),
        (b"\xff", "cannot be read as scores"),
        (None, "cannot be read as scores: No such file"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(second, words, tmp_path, capsys):
    first, other = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(json.dumps(GOOD))
    if isinstance(second, bytes):
        other.write_bytes(second)
    elif second is not None:
        other.write_text(second if isinstance(second, str) else json.dumps(GOOD | second))
    assert main(["compare", str(first), str(other)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and words in error


@pytest.mark.parametrize("flags", [["--seed", "-1"], ["--samples", "0"]])
def test_bad_draws_are_one_sentence(flags, tmp_path, capsys):
    file = tmp_path / "scores.json"
    file.write_text(json.dumps(GOOD))
    assert main(["compare", str(file), str(file), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {' '.join(flags)}: give") and error.count("\n") == 1
    assert main(["compare", str(file), str(file), "--samples", "10"]) == 0


def test_the_forms_of_sources_are_those_of_the_reader():
    lines = [tuple(line.split(None, 1)) for line in translate._FORMS.strip().split("\n")[1:]]
    assert dict(lines) == PAIRS


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    """Runs the comparison of blocks with a stand-in for the commands; returns what they were."""
    called = []

    def stand_in(script, command, *words):
        called.append(command)
        run = pathlib.Path(words[1] if command == "train" else words[0])
        if command == "train":
            settings = [value for flag, value in pairwise(words) if flag == "--set"]
            recipe = override(registry.load(words[0]), settings)
            (run / "checkpoints" / f"step-{recipe.training.max_steps:08d}").mkdir(parents=True)
            (run / "recipe.json").write_text(recipe.to_json())
            (run / "timing.jsonl").write_text('{"step": 1, "kind": "train", "seconds": 60.0}\n')
            (run / "metrics.jsonl").write_text('{"kind": "validation", "step": 1, "loss": 1.0}\n')
        if command == "evaluate":
            saved = [int(path.name[5:]) for path in (run / "checkpoints").iterdir()]
            output = pathlib.Path(words[words.index("--output") + 1])
            write_scores(output / "a.json", "average", [max(saved)], run=str(run))

    monkeypatch.setattr(compare_blocks, "command", stand_in)
    monkeypatch.setattr(compare_blocks, "loss_curves", lambda curves, path: None)

    def compare(*more):
        called.clear()
        arguments = ["--seeds", "1", "--steps", "500", "--name", "table", *more]
        arguments += ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
        return compare_blocks.main(arguments), list(called)

    return compare


def write_scores(path, checkpoint, steps, bleu=30.0, run=""):
    lines = ["ein hund rennt schnell"]
    record = {"checkpoint": checkpoint, "steps": steps, "split": "validation", "run": run}
    record |= {"tokenized_bleu": bleu, "bleu": bleu, "chrf": bleu}
    record |= {"tokenized_signature": "t", "bleu_signature": "b", "metric": {"language": "de"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**record, "hypotheses": lines, "references": lines}))


def test_the_comparison_takes_its_own_evaluations_alone(blocks, tmp_path, capsys):
    # What a person evaluated before the comparison did is not taken for it.
    write_scores(tmp_path / "runs" / "macaron-1" / "scores" / "0.json", "average", [500], 99.0)
    assert blocks() == (0, ["train", "average", "evaluate"] * 2)
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["bleu"] for row in rows] == [30.0, 30.0]
    assert blocks() == (0, [])
    own = tmp_path / "runs" / "macaron-1" / "comparison"
    write_scores(own / "best.json", "step-00000500", [500])
    write_scores(own / "older.json", "average", [250])
    assert blocks() == (0, [])
    write_scores(own / "twice.json", "average", [500])
    assert blocks()[0] == 2
    assert "holds 2 evaluations of the run's last average" in capsys.readouterr().err
    (own / "twice.json").write_text("{}")
    assert blocks()[0] == 2
    assert "twice.json cannot be read as scores" in capsys.readouterr().err


def test_the_comparison_refuses_a_run_of_other_settings(blocks, capsys):
    assert blocks()[0] == 0
    for flags, words in (
        (["--steps", "1000"], "was trained with training.max_steps=500, not 1000"),
        (["--set", "label_smoothing=0.2"], "was trained with label_smoothing=0.1, not 0.2"),
        (["--recipe", "demo"], "macaron-1 was trained with"),
        (["--set", "training.seed=7"], "--set training.seed=7: give --blocks, --seeds"),
    ):
        status, called = blocks(*flags)
        error = capsys.readouterr().err
        assert (status, called) == (2, [])
        assert error.startswith("error: ") and error.count("\n") == 1 and words in error
