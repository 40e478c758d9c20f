"""Bad input to fine-tuning: one sentence, exit status 2, nothing left behind."""

import pytest

from experiments.finetune.__main__ import main
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from tests.experiments.task_toys import FILLERS, PAIR_HEADER, toy_flags, write_table

GOOD = "film was fun"
TABLES = [
    ("sst2", "text\tlabel", [(GOOD, 1)], "'sentence'"),
    ("sst2", "sentence\tlable", [(GOOD, 1)], "'label'"),
    ("sst2", "sentence\tlabel", [(GOOD, 7)], "train.tsv, line 2: '7'"),
    ("stsb", PAIR_HEADER, [(GOOD, GOOD, "nan")], "line 2: 'nan'"),
    ("stsb", PAIR_HEADER, [(GOOD, GOOD, 5.1)], "'5.1'"),
    ("sst2", "sentence\tlabel", [(GOOD, 1), (" ", 0)], "line 3"),
    ("sst2", "sentence\tlabel", [(GOOD, 1, 2)], "3 columns"),
]
SETTINGS = [
    ({"max_length": 17}, "the model has 16 positions"),
    ({"max_length": 2}, "max_length is 2"),
    ({"training__best_metric": "bleu"}, "give one of score, accuracy"),
    ({"epochs": -1}, "epochs=-1 must be"),
    ({"init": "x"}, "give --init instead"),
]
# Words of a command that trains; RUN is a run, TOY a folder, OTHER another vocabulary.
STARTS = [
    ("--init RUN --preset vast", "'vast'"),
    ("--init /nowhere", "/nowhere is no run"),
    ("--init hugging-face:/nowhere", "no folder /nowhere"),
    ("--init none", "needs --model NAME"),
    ("--init RUN --model bert_tiny", "brings its own model"),
    ("--init RUN --vocabulary OTHER", "vocabulary mismatch"),
    ("--init RUN --set model.hidden_dim=16", "were trained with model.hidden_dim=32, not 16"),
    ("--init none --vocabulary TOY --model macaron_tiny", "macaron_tiny is no encoder"),
]
COMMANDS = [
    ("predict FOLDER", "is not a run"),
    ("predict RUN --input /nowhere", "cannot be read"),
    ("evaluate RUN --source tsv:FOLDER/secret.tsv", "has no labels to score against"),
    ("baseline sst2 --source tsv:FOLDER/{split}.tsv", "two classes"),
    ("grid sst2 OUT --init RUN --set training.seed=3", "give --seeds instead"),
    ("grid sst2 OUT --init RUN --seeds 3 3", "3 is given twice"),
    ("grid sst2 OUT --init RUN RUN --set max_length=16", "two inits are called 'toy'"),
    (
        "grid sst2 OUT --init RUN --set max_length=16 --source tsv:FOLDER/bad.tsv",
        "no split 'validation'",
    ),
]


def words(text: str, **places) -> list[str]:
    for name, place in places.items():
        text = text.replace(name, str(place))
    return text.split()


@pytest.mark.parametrize("task, header, rows, error", TABLES)
def test_a_bad_table_is_one_sentence(task, header, rows, error, toy, tmp_path, refused):
    for split in ("train", "validation"):
        write_table(tmp_path / f"{split}.tsv", rows, header)
    flags = toy_flags(toy, f"tsv:{tmp_path}/{{split}}.tsv")
    refused(main, ["train", task, str(tmp_path / "run"), *flags], error, tmp_path)


def test_bad_input_is_one_sentence_and_leaves_nothing(toy, toy_run, tmp_path, refused):
    def train(error, *flags, task="sst2", run=tmp_path / "run"):
        refused(main, ["train", task, str(run), *flags], error, tmp_path, toy_run)

    WordPieceVocabulary((*SPECIAL_PIECES, *FILLERS)).save(tmp_path / "other")
    for split in ("train", "validation"):
        write_table(tmp_path / f"{split}.tsv", [(GOOD, 1)])
    write_table(tmp_path / "secret.tsv", [(GOOD,)], "sentence")
    write_table(tmp_path / "bad.tsv", [(GOOD, 1)])
    train("no split 'validation'", *toy_flags(toy, f"tsv:{toy}/train.tsv"))
    train("unknown source 'ftp:x'", *toy_flags(toy, "ftp:x"))
    train("no task 'sst3'", *toy_flags(toy), task="sst3")
    train("cannot write", *toy_flags(toy), run=tmp_path / "bad.tsv" / "run")
    for settings, error in SETTINGS:
        train(error, *toy_flags(toy, **settings))
    places = {"RUN": toy_run, "TOY": toy / "vocabulary", "OTHER": tmp_path / "other"}
    source = ["--source", f"tsv:{toy}/{{split}}.tsv", "--set", "max_length=16"]
    for text, error in STARTS:
        train(error, *source, *words(text, **places))
    places |= {"FOLDER": tmp_path, "OUT": tmp_path / "out"}
    for text, error in COMMANDS:
        refused(main, words(text, **places), error, tmp_path, toy_run)


@pytest.mark.parametrize("arguments", [["train"], ["train", "sst2", "x"], ["fly"]])
def test_unknown_flags_and_commands_exit_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err
