"""`translate evaluate` and `compare`: what is scored, where it is kept, what is comparable."""

import json

import pytest

from experiments.translate.__main__ import main
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
