"""Tests of the launcher of commands, with and without optional packages."""

import importlib
import importlib.metadata
import importlib.util
import pathlib
import pkgutil
import signal
import subprocess
import sys
import tomllib

import pytest

from macaron_tf import errors
from macaron_tf.cli.launcher import COMMANDS, RUNS, import_command, main
from macaron_tf.cli.program import exit_on_user_error
from macaron_tf.errors import EXTRAS

PROJECT = tomllib.loads((pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text())
EXTRA_PACKAGES = PROJECT["project"]["optional-dependencies"]


# Text, training and export modules import without any optional package.
PLAIN = """
import importlib, sys
sys.argv, blocked = ["-m"], sys.argv[1:]
sys.modules |= dict.fromkeys(blocked)
for name in ("commands", "train", "predict", "score", "evaluation.translation",
             "evaluation.held_out", "evaluation.finetuning", "recipes.bert"):
    importlib.import_module("experiments." + name)
for name in ("translation", "pretraining", "finetuning", "embedding", "elmo", "text_to_text"):
    importlib.import_module("macaron_tf.runs." + name)
importlib.import_module("export.saved_model")
"""


def python(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def test_the_help_lists_commands_that_exist():
    shown = python("-m", "macaron_tf", "--help").stdout
    commands = import_command(RUNS).COMMANDS.items()
    texts = {name: text.partition("\n")[0] for name, (text, *_) in commands}
    for name, (module, text) in COMMANDS.items():
        assert importlib.util.find_spec(module), module
        texts[name] = text
    assert len(texts) > 10
    for name, text in texts.items():
        assert f"  {name} " in shown and text in shown


def test_the_functions_of_commands_exist():
    for _, function, *_ in import_command(RUNS).COMMANDS.values():
        assert callable(pkgutil.resolve_name(function))


@pytest.mark.parametrize("name", ["train", "predict", "export", "serve"])
def test_a_command_s_help_waits_for_no_keras(name):
    code = (
        "import sys; from macaron_tf.cli.launcher import main\n"
        f"try: main([{name!r}, '--help'])\n"
        "except SystemExit: print('keras' in sys.modules)"
    )
    code = f"import sys; sys.argv = ['macaron']; {code}"
    shown = python("-c", code).stdout
    assert shown.startswith(f"usage: macaron {name} ") and shown.endswith("False\n")
    assert f"    macaron {name} " in shown


@pytest.mark.parametrize(
    ("name", "near"),
    [("trian", "; perhaps you meant 'train'"), ("nothing", ""), ("benchmarks.decode", "")],
)
def test_an_unknown_command_is_one_sentence(name, near, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([name])
    message = f"no command is called {name!r}: see macaron --help{near}"
    assert message in capsys.readouterr().err


def test_every_optional_package_is_in_an_extra_and_named_by_it(capsys):
    pinned = " ".join(package for packages in EXTRA_PACKAGES.values() for package in packages)
    assert {*EXTRAS.values()} < {*EXTRA_PACKAGES}
    for extra in {*EXTRA_PACKAGES} - {"all", "dev"}:
        assert extra in EXTRAS.values()
        # Beam's requirements conflict with the others.
        assert (extra in EXTRA_PACKAGES["all"][0]) == (extra != "beam")
    assert "starlette" in pinned

    @exit_on_user_error
    def serve(arguments):
        raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")

    assert serve([]) == 2
    message = f"needs uvicorn: pip install -e '{errors.COMMANDS_FOLDER}[serving]'\n"
    assert capsys.readouterr().err == f"error: this command {message}"


@pytest.mark.parametrize(
    ("line", "modules", "extra"),
    [
        ("train bert_tiny OUT", "scipy, tensorboard", "train"),
        ("compare OUT", "matplotlib, scipy, tensorboard", "studies"),
    ],
)
@pytest.mark.parametrize("is_wheel", [False, True])
def test_a_command_names_missing_packages_before_it_starts(
    line, modules, extra, is_wheel, monkeypatch, capsys
):
    for module in ("matplotlib", "scipy", "tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    if is_wheel:
        monkeypatch.setattr(errors, "COMMANDS_FOLDER", errors._INSTALLED)
    package = "'macaron_tf" if is_wheel else f"-e '{errors.COMMANDS_FOLDER}"
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert error == f"error: this command needs {modules}: pip install {package}[{extra}]'\n"


def test_a_call_from_python_keeps_the_handler_of_ctrl_c(capsys):
    earlier = signal.getsignal(signal.SIGINT)
    assert main(["tasks"]) == 0
    output = capsys.readouterr().out
    assert "sst2" in output and "cnn_dailymail article highlights" in output
    assert signal.getsignal(signal.SIGINT) is earlier


def test_an_earlier_python_is_refused():
    code = "import sys; sys.version_info = (3, 8, 18); sys.argv = ['-m']; import experiments"
    process = python("-c", code)
    message = "error: macaron_tf needs Python 3.11 or later: use a newer Python\n"
    assert (process.returncode, process.stderr) == (2, message)


@pytest.mark.thorough
def test_commands_start_without_the_optional_packages():
    # Keras itself imports Matplotlib if it is installed.
    blocked = EXTRAS.keys() - {"importlib_resources", "matplotlib"}
    process = python("-c", PLAIN, *blocked)
    assert process.returncode == 0, process.stderr


def test_help_behind_a_recipe_shows_its_settings(capsys):
    with pytest.raises(SystemExit):
        main(["train", "gpt_tiny", "--help"])
    shown = capsys.readouterr().out
    assert "settings of gpt_tiny" in shown and "\nmodel.num_layers=" in shown
