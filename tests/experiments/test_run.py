import json
import subprocess
import sys

import pytest

from experiments import command_line
from experiments.recipe import override
from experiments.registry import load
from experiments.translate.run import TranslationRun
from macaron_tf.distribution import STRATEGIES
from macaron_tf.errors import UserError
from macaron_tf.training import checkpoints


def make(path, step):
    """A checkpoint folder that is whole, with nothing in it but its manifest."""
    directory = checkpoints.CheckpointDirectory(path)
    directory.save(step, lambda folder: (folder / "x").write_text("x"), {"vocabulary": ""})


def test_an_average_counts_until_a_later_regular_checkpoint(tmp_path, capsys):
    recipe = override(load("demo"), ["training.save_every_steps=10"])
    run = TranslationRun(tmp_path, recipe, None)
    with pytest.raises(UserError, match="has no checkpoint yet; train it first"):
        run.checkpoint()
    for step in (10, 20):
        make(tmp_path, step)
    manifest = json.loads(
        (checkpoints.CheckpointDirectory(tmp_path).of_step(20) / "manifest.json").read_text()
    )
    checkpoints.save_whole(tmp_path / "average", lambda folder: None, {**manifest, "files": {}})
    make(tmp_path, 27)  # saved for the clock: as good as part of the average
    assert run.checkpoint().name == "average"
    assert capsys.readouterr().err == ""
    make(tmp_path, 30)
    assert run.checkpoint().name == "step-00000030"
    assert "average again" in capsys.readouterr().err
    assert run.checkpoint("10").name == "step-00000010"
    with pytest.raises(UserError, match="has no checkpoint 11; there are 10, 20, 27, 30, average"):
        run.checkpoint("11")


HELP = {
    "data_service": "--data-service HOST:5050",
    "translate.__main__": "tsv:FILE                      two tab-separated columns",
    "pretrain.__main__": "text-lines:GLOB[,GLOB...]       files with a document a line",
    "elmo.__main__": "embed runs/elmo --input",
    "tcn.__main__": "copy_memory",
    "finetune.__main__": "conll:FILE",
}


def test_help_teaches_without_tensorflow():
    code = "import contextlib, importlib, sys\n"
    code += f"for name in {list(HELP)}:\n"
    code += "    with contextlib.suppress(SystemExit):\n"
    code += "        importlib.import_module(f'experiments.{name}').main(['--help'])\n"
    code += "    print('=====')\n"
    code += "print('tensorflow' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *helps, imported = found.stdout.split("=====\n")
    for words, help_ in zip(HELP.values(), helps, strict=True):
        assert words in help_
    assert imported == "False\n"


def test_the_commands_offer_the_library_s_strategies():
    assert command_line.STRATEGIES == STRATEGIES
