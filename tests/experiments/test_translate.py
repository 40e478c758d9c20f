"""The commands, from text to scores, on a language of numbers."""

import io
import json

import pytest

from experiments.translate.__main__ import main
from experiments.translate.run import TranslationRun
from macaron_tf.training.progress import read_lines
from tests.conftest import number_pairs, number_settings


def flags(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def test_it_learns_and_writes_what_it_measured(number_run):
    lines = read_lines(number_run / "metrics.jsonl")
    validations = [line for line in lines if line["kind"] == "validation"]
    assert [line["step"] for line in validations] == [150, 300]
    assert validations[-1]["bleu"] > 80
    train = [line for line in lines if line["kind"] == "train"]
    assert {"loss", "nll", "perplexity", "learning_rate", "gradient_norm", "tokens"} <= set(
        train[0]
    )
    assert (number_run / "average" / "model.weights.h5").exists()
    assert list((number_run / "tensorboard").rglob("events*"))


def test_evaluate_scores_any_text(number_run, number_text, tmp_path, capsys):
    assert main(["evaluate", str(number_run), "--output", str(tmp_path)]) == 0
    assert "sacreBLEU" in capsys.readouterr().out
    (record,) = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert record["checkpoint"] == "average"
    assert record["tokenized_bleu"] > 80
    assert len(record["hypotheses"]) == 40

    pairs = number_pairs(5, seed=3)
    for side, name in enumerate(("a.en", "a.de")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    arguments = ["--source", f"text:{tmp_path}/a.en,{tmp_path}/a.de", "--split", "all"]
    arguments += ["--checkpoint", "best", "--beam-size", "1", "--output", str(tmp_path / "out")]
    assert main(["evaluate", str(number_run), *arguments]) == 0


def test_compare_two_outputs(number_run, tmp_path, capsys):
    for checkpoint in ("175", "average"):
        arguments = ["--checkpoint", checkpoint, "--output", str(tmp_path / checkpoint)]
        assert main(["evaluate", str(number_run), *arguments]) == 0
    files = [str(next((tmp_path / name).glob("*.json"))) for name in ("175", "average")]
    capsys.readouterr()
    assert main(["compare", *files, "--samples", "100"]) == 0
    first = capsys.readouterr().out
    assert main(["compare", *files, "--samples", "100"]) == 0
    assert capsys.readouterr().out == first
    assert "p" in first


def test_translate_gives_one_line_for_each_line_in_order(number_run, tmp_path, monkeypatch, capfd):
    pairs = number_pairs(6, seed=4)
    text = "".join(f"{source}\n" for source, _ in pairs[:3]) + "\n" + f"{pairs[3][0]}\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["translate", str(number_run)]) == 0
    lines = capfd.readouterr().out.split("\n")
    assert len(lines) == 6
    assert lines[3] == lines[5] == ""
    assert lines[0] == pairs[0][1]

    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(b"one two\n\xff\xfe three\n" + b"four five\n")
    arguments = ["--input", str(source), "--output", str(target), "--n-best", "2"]
    assert main(["translate", str(number_run), *arguments]) == 0
    rows = [line.split("\t") for line in target.read_text().splitlines()]
    assert len(rows) == 3
    assert rows[0][1] == "eins zwei"
    assert float(rows[0][0]) >= float(rows[0][2])
    assert "line 2 is not UTF-8" in capfd.readouterr().err


def test_sampling_is_repeatable_and_varies(number_run, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("one two three\nfour five six seven\n")

    def sampled(*more):
        target = tmp_path / "out.txt"
        arguments = ["--input", str(source), "--output", str(target), *more]
        assert main(["translate", str(number_run), *arguments]) == 0
        return target.read_text()

    hot = ["--temperature", "3", "--n-best", "4"]
    assert sampled(*hot) == sampled(*hot) != sampled(*hot, "--seed", "2")
    assert sampled("--temperature", "0") == "eins zwei drei\nvier fünf sechs sieben\n"
    arguments = ["translate", str(number_run), "--input", str(source), "--top-k", "2"]
    assert main(arguments) == 2


def test_the_same_command_goes_on_where_it_stopped(number_text, tmp_path, capsys):
    settings = number_settings(number_text, steps=20)
    run = str(tmp_path / "run")
    assert main(["train", "multi30k_macaron_tiny", run, *flags(settings)]) == 0
    longer = flags([*settings, "training.max_steps=30"])
    assert main(["train", "multi30k_macaron_tiny", run, *longer]) == 0
    assert "going on after step 20" in capsys.readouterr().out
    assert TranslationRun.open(run).recipe.training.max_steps == 30
    for other in ("model.num_heads=4", "training.seed=9", "training.dtype_policy=mixed_bfloat16"):
        assert main(["train", "multi30k_macaron_tiny", run, *longer, "--set", other]) == 2
        assert f"{run} was trained with" in capsys.readouterr().err
    assert TranslationRun.open(run).recipe.training.seed == 1


def test_other_text_under_the_same_name_is_refused(number_text, tmp_path, capsys):
    for split in ("train", "validation"):
        lines = [f"{a}\t{b}\n" for a, b in number_pairs(300, seed=len(split))]
        (tmp_path / f"{split}.tsv").write_text("".join(lines))
    settings = number_settings(f"tsv:{tmp_path}/{{split}}.tsv", steps=2)
    arguments = ["train", "multi30k_macaron_tiny", str(tmp_path / "run"), *flags(settings)]
    assert main(arguments) == 0
    lines[0] = "one one one\teins eins eins\n"
    (tmp_path / "train.tsv").write_text("".join(lines * 8))
    assert main(arguments) == 2
    assert "the training text is not what" in capsys.readouterr().err


def test_an_average_that_is_out_of_date_is_not_used(number_text, tmp_path, capsys):
    run = str(tmp_path / "run")
    for steps in (50, 75):
        settings = number_settings(number_text, steps=steps)
        assert main(["train", "multi30k_macaron_tiny", run, *flags(settings)]) == 0
        if steps == 50:
            assert main(["average", run]) == 0
            assert TranslationRun.open(run).checkpoint().name == "average"
    assert TranslationRun.open(run).checkpoint().name != "average"
    assert "average again" in capsys.readouterr().err


def test_vocabulary_command_and_mismatch(number_run, number_text, tmp_path, capsys):
    settings = number_settings(number_text)
    out = str(tmp_path / "vocabulary")
    assert main(["vocabulary", "demo", out, *flags(settings)]) == 0
    assert "40 pieces" in capsys.readouterr().out
    # The same text and size, but not lower-cased: another vocabulary than the run's.
    arguments = ["--vocabulary", out, *flags(settings)]
    assert main(["train", "multi30k_macaron_tiny", str(number_run), *arguments]) == 2
    assert "vocabulary mismatch" in capsys.readouterr().err


def bad(name, tmp_path, number_text):
    """A command line with one mistake, and the words its error must hold."""
    run = str(tmp_path / "run")
    settings = number_settings(number_text)
    (tmp_path / "two.en").write_text("a\nb\n")
    (tmp_path / "one.de").write_text("a\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "file").write_text("")
    train = lambda *more: ["train", "multi30k_macaron_tiny", run, *flags([*settings, *more])]  # noqa: E731
    two, one, empty = (tmp_path / name for name in ("two.en", "one.de", "empty"))
    return {
        "missing file": (train("data.source=tsv:/nowhere/{split}.tsv"), "/nowhere/validation.tsv"),
        "unequal": (train(f"data.source=text:{two},{one}"), "two.en"),
        "empty": (train(f"data.source=text:{empty},{empty}"), "empty"),
        "tfds name": (train("data.source=tfds:no_such_set/de-en"), "no_such_set"),
        "source": (train("data.source=ftp:x"), "unknown source 'ftp:x'"),
        "split": (train("data.train_split=trian"), "trian"),
        "recipe": (["train", "nothing", run], "no recipe is called 'nothing'"),
        "model": (train("model=macaron_vast"), "macaron_vast"),
        "unwritable": (
            ["train", "multi30k_macaron_tiny", str(tmp_path / "file" / "run"), *flags(settings)],
            "cannot write",
        ),
        "no run": (["evaluate", str(tmp_path)], "is not a run"),
        "option": (train("model.epsilon=x"), "epsilon='x' must be a number"),
        "heads": (train("model.num_heads=2.0"), "num_heads=2.0 must be a whole number"),
        "best": (train("training.best_metric=foo"), "training.best_metric is 'foo'"),
        "smoothing": (
            ["train", "demo", run, "--set", "label_smoothing=2"],
            "label_smoothing=2 must be",
        ),
        "vocabulary": (train("data.vocabulary_size=100000"), "vocabulary"),
    }[name]


BAD = """
missing file, unequal, empty, tfds name, source, split, recipe, model, unwritable, no run,
option, heads, best, smoothing, vocabulary
"""


@pytest.mark.parametrize("name", " ".join(BAD.split()).split(", "))
def test_bad_input_is_one_sentence_and_leaves_nothing(name, tmp_path, number_text, capsys):
    arguments, words = bad(name, tmp_path, number_text)
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert words in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("arguments", [["train"], ["train", "demo", "x", "--sett", "a=1"], ["fly"]])
def test_unknown_flags_and_commands_exit_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_corpus_smaller_than_a_batch_is_refused(tmp_path, capsys):
    (tmp_path / "train.tsv").write_text("one two\teins zwei\nthree\tdrei\n" * 3)
    (tmp_path / "validation.tsv").write_text("one\teins\n")
    settings = number_settings(f"tsv:{tmp_path}/{{split}}.tsv", steps=3)
    settings += ["data.vocabulary_size=24"]
    assert main(["train", "multi30k_macaron_tiny", str(tmp_path / "run"), *flags(settings)]) == 2
    assert "less than one batch of 512" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_nan_loss_stops_the_run_with_the_step(number_text, tmp_path, capsys):
    settings = [*number_settings(number_text), "training.learning_rate=1e38"]
    settings += ["training.warmup_steps=0", "training.max_skipped_updates=3"]
    assert main(["train", "multi30k_macaron_tiny", str(tmp_path / "run"), *flags(settings)]) == 2
    error = capsys.readouterr().err
    assert "NaN" in error and "step" in error
