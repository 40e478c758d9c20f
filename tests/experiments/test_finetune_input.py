"""Bad input to fine-tuning: one sentence, exit status 2, nothing left behind."""

import pytest

from experiments.finetune.__main__ import main
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from tests.experiments.task_toys import FILLERS, toy_flags, write_table

MISTAKES = (
    "column, no label, label, nan, range, empty text, columns, no split, source, task, preset, "
    "init, hugging face, no vocabulary, superfluous, vocabulary, weights, model, long, short, "
    "metric, epochs, given, unwritable, no run, input, secret, grid rate, grid twice, grid "
    "names, grid data, one class"
)


def bad(name, tmp_path, toy, toy_run):
    """A command line with one mistake, and the words its error must hold."""
    run, good = str(tmp_path / "run"), "film was fun"

    def table(rows, header="sentence\tlabel"):
        write_table(tmp_path / "train.tsv", rows, header)
        write_table(tmp_path / "validation.tsv", rows, header)
        return f"tsv:{tmp_path}/{{split}}.tsv"

    def train(task="sst2", source=None, **settings):
        return ["train", task, run, *toy_flags(toy, source, **settings)]

    def start(*more):
        source = ["--source", f"tsv:{toy}/{{split}}.tsv", "--set", "max_length=16"]
        return ["train", "sst2", run, *source, *more]

    none = ["--init", "none", "--vocabulary", str(toy / "vocabulary")]
    grid = ["grid", "sst2", run, "--init", str(toy_run), "--set", "max_length=16"]
    scores = "sentence1\tsentence2\tlabel"
    WordPieceVocabulary((*SPECIAL_PIECES, *FILLERS)).save(tmp_path / "other")
    (tmp_path / "file").write_text("")
    return {
        "column": lambda: (train(source=table([(good, 1)], "text\tlabel")), "'sentence'"),
        "no label": lambda: (train(source=table([(good, 1)], "sentence\tlable")), "'label'"),
        "label": lambda: (train(source=table([(good, 7)])), "train.tsv, line 2: '7'"),
        "nan": lambda: (train("stsb", table([(good, good, "nan")], scores)), "line 2: 'nan'"),
        "range": lambda: (train("stsb", table([(good, good, 5.1)], scores)), "'5.1'"),
        "empty text": lambda: (train(source=table([(good, 1), (" ", 0)])), "line 3"),
        "columns": lambda: (train(source=table([(good, 1, 2)])), "3 columns"),
        "no split": lambda: (train(source=f"tsv:{toy}/train.tsv"), "no split 'validation'"),
        "source": lambda: (train(source="ftp:x"), "unknown source 'ftp:x'"),
        "task": lambda: (train("sst3"), "no task 'sst3'"),
        "preset": lambda: (start("--init", str(toy_run), "--preset", "vast"), "'vast'"),
        "init": lambda: (start("--init", "/nowhere"), "/nowhere is no run"),
        "hugging face": lambda: (start("--init", "hugging-face:/nowhere"), "no folder /nowhere"),
        "no vocabulary": lambda: (start("--init", "none"), "needs --model NAME"),
        "superfluous": lambda: (
            start("--init", str(toy_run), "--model", "bert_tiny"),
            "brings its own model",
        ),
        "vocabulary": lambda: (
            start("--init", str(toy_run), "--vocabulary", str(tmp_path / "other")),
            "vocabulary mismatch",
        ),
        "weights": lambda: (
            start("--init", str(toy_run), "--set", "model.hidden_dim=16"),
            "were trained with model.hidden_dim=32, not 16",
        ),
        "model": lambda: (
            start(*none, "--model", "macaron_tiny"),
            "macaron_tiny is no encoder",
        ),
        "long": lambda: (train(max_length=17), "the model has 16 positions"),
        "short": lambda: (train(max_length=2), "max_length is 2"),
        "metric": lambda: (train(training__best_metric="bleu"), "give one of score, accuracy"),
        "epochs": lambda: (train(epochs=-1), "epochs=-1 must be"),
        "given": lambda: (train(init="x"), "give --init instead"),
        "unwritable": lambda: (
            ["train", "sst2", str(tmp_path / "file" / "run"), *toy_flags(toy)],
            "cannot write",
        ),
        "no run": lambda: (["predict", str(tmp_path)], "is not a run"),
        "input": lambda: (["predict", str(toy_run), "--input", "/nowhere"], "cannot be read"),
        "secret": lambda: (
            [
                "evaluate",
                str(toy_run),
                "--source",
                table([(good,)], "sentence")[:-11] + "train.tsv",
            ],
            "has no labels to score against",
        ),
        "grid rate": lambda: ([*grid, "--set", "training.seed=3"], "give --seeds instead"),
        "grid twice": lambda: ([*grid, "--seeds", "3", "3"], "3 is given twice"),
        "grid names": lambda: (
            [*grid, "--init", str(toy_run), str(toy_run)],
            "two inits are called 'toy'",
        ),
        "grid data": lambda: (
            [*grid, "--source", table([(good, 7)]), "--seeds", "1", "2"],
            "line 2: '7'",
        ),
        "one class": lambda: (["baseline", "sst2", "--source", table([(good, 1)])], "two classes"),
    }[name]()


@pytest.mark.parametrize("name", MISTAKES.split(", "))
def test_bad_input_is_one_sentence_and_leaves_nothing(name, tmp_path, toy, toy_run, refused):
    arguments, words = bad(name, tmp_path, toy, toy_run)
    refused(main, arguments, words, tmp_path, toy_run)


@pytest.mark.parametrize("arguments", [["train"], ["train", "sst2", "x"], ["fly"]])
def test_unknown_flags_and_commands_exit_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err
