"""Commands of `macaron train` that train one tiny run of each kind, and the check of resumption.

Each function of a kind takes `value`, a function from a fixture's name to its value, and returns
the words of a command, in which RUN stands for the folder of the run.
"""

import pathlib

from experiments.commands import main
from tests.toys.numbers import number_settings
from tests.toys.pretraining import flags, t5_settings, toy_settings
from tests.toys.processes import assert_same_run
from tests.toys.tasks import toy_flags

SHORT = ["schedule=constant", "warmup_steps=0", "validate_every=1", "save_every_steps=1"]
SHORT = flags([f"training.{one}" for one in [*SHORT, "log_every=1", "max_minutes=None"]])


def check_resumed(words: list[str], folder: pathlib.Path) -> pathlib.Path:
    """Checks that a run resumed after one update is bit-identical to an uninterrupted run.

    Both have three updates, and the same command resumes the run. The metrics, the weights and the
    whole training state must be equal.

    Args:
        words: words of a training command, in which RUN stands for the folder of the run.
        folder: folder for the two runs.

    Returns:
        The folder of the resumed run.
    """
    for name, steps in (("whole", 3), ("parts", 1), ("parts", 3)):
        command = [word.replace("RUN", str(folder / name)) for word in words]
        assert main([*command, *SHORT, "--set", f"training.max_steps={steps}"]) == 0
    assert_same_run(folder / "whole", folder / "parts")
    return folder / "parts"


def pretraining(recipe: str, *more: str):
    def words(value):
        settings = [*toy_settings(value("source")), "model.dropout=0.1", *more]
        return ["train", recipe, "RUN", *flags(settings)]

    return words


def t5(value):
    settings = [*t5_settings("t5_tiny", "macaron"), "model.dropout=0.1"]
    corpus = ["--corpus", value("t5_corpus")]
    return ["train", "t5_tiny", "RUN", *corpus, *flags(settings)]


def text_to_text(value):
    rows = ["batching.max_tokens=512", "max_target=16", "validation_examples=8"]
    settings = flags([*rows, f"source={value('tables')}"])
    return ["train", "text_to_text:sst2", "RUN", "--init", value("t5_run"), *settings]


def fine_tuning(value):
    return ["train", "finetune:sst2", "RUN", *toy_flags(value("toy"), model__dropout=0.1)]


def embeddings(value):
    toy = toy_flags(value("toy"), "stsb", model__dropout=0.1)
    return ["train", "sentence_bert:stsb", "RUN", *toy]


def elmo(value):
    settings = ["batch_size=8", "row_length=10", "held_out=6", "vocabulary_size=7"]
    settings += ["model.lstm_dim=8", "model.projection_dim=4", "model.filters=((1, 4), (2, 4))"]
    settings += [f"sources={value('source')}"]
    return ["train", "elmo_tiny", "RUN", *flags(settings)]


def tcn(value):
    settings = ["batch_size=4", "model.widths=(8,)", f"data={value('tunes')}"]
    return ["train", "tcn_jsb", "RUN", *flags(settings)]


def translation(value):
    settings = [*number_settings(value("number_text")), "model.dropout=0.1"]
    return ["train", "multi30k_macaron_tiny", "RUN", *flags(settings)]
