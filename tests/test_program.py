"""Tests of commands as processes, with closed, full or non-UTF-8 streams, and with Ctrl-C."""

import io
import os
import signal
import subprocess
import sys

import pytest
import tensorflow as tf

from experiments.lines import arriving
from macaron_tf.cli.program import exit_on_user_error
from macaron_tf.errors import UserError
from tests.harness import rejects
from tests.toys.marks import slow

pytestmark = pytest.mark.thorough  # each test starts processes

PRINT = (
    "-c 'import sys; from macaron_tf.cli.program import exit_on_user_error as decorated\n"
    'sys.exit(decorated(lambda: print("text"))())\''
)


def run(arguments, **options):
    """Runs Python through a shell, so that the arguments may contain redirections.

    Returns (status, stdout, stderr).
    """
    done = subprocess.run(
        ["bash", "-c", f"exec {sys.executable} {arguments}"], capture_output=True, **options
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def run_module(code, folder):
    """Runs a module with this code by `python -m`; returns (status, stdout, stderr)."""
    (folder / "command.py").write_text(code)
    path = os.pathsep.join([str(folder), *sys.path])
    return run("-m command", env={**os.environ, "PYTHONPATH": path})


def test_a_stream_that_fails_is_one_sentence():
    status, output, errors = run(f"{PRINT} > /dev/full")
    assert (status, output) == (2, "")
    error = "error: stdin or stdout failed (No space left on device)"
    assert errors.startswith(error) and errors.count("\n") == 1


@pytest.mark.slow
def test_output_is_utf_8_whatever_the_terminal_says():
    code = (
        "import sys; from macaron_tf.cli.program import exit_on_user_error;"
        "sys.exit(exit_on_user_error(lambda: print('Straße 한'))())"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert run(f'-c "{code}"', env=environment) == (0, "Straße 한\n", "")


@pytest.mark.parametrize("given, level", [({}, "3"), ({"TF_CPP_MIN_LOG_LEVEL": "0"}, "0")])
def test_tensorflows_log_is_silent_unless_it_is_asked_for(given, level):
    code = "import sys; sys.argv = ['-m']; import experiments, os; print(os.environ['{}'])"
    name = "TF_CPP_MIN_LOG_LEVEL"
    others = {key: value for key, value in os.environ.items() if key != name}
    assert run(f'-c "{code.format(name)}"', env={**others, **given}) == (0, f"{level}\n", "")


@pytest.mark.slow
def test_a_command_starts_without_packages_that_keras_merely_tries():
    tried = ["jax", "matplotlib", "pandas", "sklearn"]
    code = f"""
import sys
sys.argv = ["-m"]  # as `python -m experiments...` begins
import experiments, tensorflow
assert not {{*{tried}}} & {{*sys.modules}}, "imported"
import sklearn, pandas
assert pandas.DataFrame and sklearn.__version__
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_command_is_tensorflows_whatever_kerass_own_file_says(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    environment = {name: os.environ[name] for name in os.environ if name != "KERAS_BACKEND"}
    environment["KERAS_HOME"] = str(tmp_path)
    code = "import sys; sys.argv = ['-m']; import experiments, keras; print(keras.config.backend())"
    status, output, errors = run(f'-c "{code}"', env=environment)
    assert (status, output) == (0, "tensorflow\n"), errors


WAITING = """
import os, sys, time

class Waiting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["WAIT_AT"]:
            print("imports", flush=True)
            time.sleep(600)

sys.meta_path.insert(0, Waiting())
"""


@pytest.mark.parametrize("module", ["export.saved_model", *slow("tensorflow.python", "keras.src")])
def test_ctrl_c_during_the_imports_is_one_line(module, tmp_path):
    """Ctrl-C during any import prints one line and exits with status 130.

    The process waits at a chosen import, so the result does not depend on timing.
    """
    (tmp_path / "sitecustomize.py").write_text(WAITING)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "macaron_tf", "export", f"{tmp_path}/run", f"{tmp_path}/out"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "WAIT_AT": module},
    )
    assert process.stdout.readline() == b"imports\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1] == b"interrupted\n"
    assert process.returncode == 130


@pytest.mark.parametrize("later, output", [(0.9, "cleaned\n"), (1.0, "")])
def test_a_second_ctrl_c_lets_the_first_one_clean_up_for_a_second(later, output, tmp_path):
    code = f"""
import os, signal, sys, types
import experiments
from macaron_tf.cli import program
from macaron_tf.io import signals

program.begin_command()

clock = iter([5.0, 5.0 + {later}])
signals.time = types.SimpleNamespace(monotonic=lambda: next(clock))

def main():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        print("cleaned", flush=True)

sys.exit(program.exit_on_user_error(main)())
"""
    assert run_module(code, tmp_path) == (130, output, "interrupted\n")


def test_ctrl_c_within_an_exec_of_text_has_its_status(tmp_path):
    """Ctrl-C inside `exec`, as during a dataclass definition, exits with status 130."""
    code = (
        "import sys, experiments; from macaron_tf.cli.program import exit_on_user_error\n"
        "sys.exit(exit_on_user_error(lambda: exec('raise KeyboardInterrupt'))())\n"
    )
    assert run_module(code, tmp_path) == (130, "", "interrupted\n")


def test_input_that_is_no_text_is_refused():
    with pytest.raises(UserError, match="line 1 of the input contains a zero byte"):
        [*arriving(io.BytesIO("text\n".encode("utf-16")))]


EXHAUSTED = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating shape[9,8] on CPU")
OUT_OF_MEMORY = {
    MemoryError("Unable to allocate 7.45 GiB for an array"): "ran out (allocate 7.45 GiB): ",
    EXHAUSTED: "ran out (shape[9,8]): ",
}


@pytest.mark.parametrize(("error", "reason"), OUT_OF_MEMORY.items())
def test_memory_that_runs_out_is_one_sentence(error, reason, capsys):
    @exit_on_user_error
    def main(arguments):
        raise error

    assert main([]) == 2
    sentence = capsys.readouterr().err
    assert sentence.startswith(f"error: memory {reason}use smaller batches")
    assert sentence.count("\n") == 1


def test_line_breaks_and_colours_in_a_sentence_are_spelled_out(capsys):
    @exit_on_user_error
    def main(arguments):
        raise UserError(f"{arguments[0]}: no")

    assert main(["a\n\x1b[31mb\ud800"]) == 2
    assert capsys.readouterr().err == "error: a\\n\\x1b[31mb\\ud800: no\n"


def test_other_errors_keep_their_traceback():
    @exit_on_user_error
    def main(arguments):
        raise ValueError("shape")

    rejects("shape", main, [])
