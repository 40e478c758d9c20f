import concurrent.futures
import logging
import pathlib
import re
import subprocess

import pytest

from macaron_tf.kernels import native

# Stands for a compiler: counts its runs and writes what it is asked to.
COMPILER = """#!/bin/sh
case "$*" in
  *--version*) echo "stand-in 1.0"; exit 0;;
  *-fsyntax-only*) exit 0;;
esac
echo run >> "$(dirname "$0")/runs"
sleep 0.3
{ending}
while [ "$1" != "-o" ]; do shift; done
echo library > "$2"
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Returns a function that installs a fake compiler and an empty kernel cache.

    The function returns the file to which the compiler appends one line for each run.
    """

    def install(ending: str = "") -> pathlib.Path:
        path = tmp_path / "compiler"
        path.write_text(COMPILER.format(ending=ending))
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        monkeypatch.setenv("MACARON_TF_CACHE", str(tmp_path / "cache"))
        return tmp_path / "runs"

    return install


@pytest.mark.parametrize(("ending", "content"), [("", "library\n"), ("exit 1", None)])
def test_it_is_built_once_however_many_ask(ending, content, compiler, caplog):
    runs = compiler(ending)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = {*pool.map(lambda _: native.library_path(), range(4)), native.library_path()}
    assert [path and path.read_text() for path in found] == [content]
    assert runs.read_text() == "run\n"
    building = "building the native kernels (only once, about half a minute)"
    assert [record.message.split(":")[0] for record in caplog.records].count(building) == 1


def test_another_compiler_or_other_sources_are_another_library(compiler, monkeypatch, tmp_path):
    compiler()
    paths = [native.library_path()]
    monkeypatch.setenv("CXX", f"{tmp_path / 'compiler'} -O1")
    paths.append(native.library_path())
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "swish_ops.cc").write_text("// another")
    monkeypatch.setattr(native, "SOURCES", sources)
    paths.append(native.library_path())
    assert len(set(paths)) == 3


def test_a_failed_build_is_one_line_and_is_not_tried_again(compiler, caplog, monkeypatch):
    runs = compiler("echo 'no such header' >&2; exit 1")
    for _ in range(3):  # as three processes
        assert native.library_path() is None
    assert runs.read_text() == "run\n"
    building, *failures = [record.message for record in caplog.records]
    assert building.startswith("building the native kernels") and len(failures) == 3
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    [failure] = set(failures)
    words = r"failed: see (.*), and remove that file to try again$"
    output = pathlib.Path(re.search(words, failure)[1])
    assert "no such header" in output.read_text() and "ops.cc" in output.read_text()
    assert not [path for path in output.parent.iterdir() if path.suffix == ".so"]
    # Other flags are another build, and a repaired compiler builds once the file is gone.
    monkeypatch.setattr(native, "FLAGS", ("-O1",))
    assert native.library_path() is None
    assert runs.read_text() == "run\n" * 2
    monkeypatch.undo()
    compiler()
    assert native.library_path() is None
    output.unlink()
    assert native.library_path().read_text() == "library\n"
    assert runs.read_text() == "run\n" * 3


def test_no_kernel_is_compiled_with_float16_arithmetic():
    """GCC 12 fails at the float16 vectors of TensorFlow 2.21's Eigen."""
    try:
        compiler = native.find_compiler()
    except native.UserError as error:
        pytest.skip(str(error))

    def macros(*flags: str) -> str:
        command = [*compiler, *flags, "-march=sapphirerapids", "-x", "c++", "-dM", "-E", "-"]
        return subprocess.run(command, input="", capture_output=True, text=True).stdout

    if "__AVX512FP16__" not in macros():
        pytest.skip(f"{compiler[0]} knows no float16 arithmetic of x86 processors")
    found = macros(*native.tuning_flags(compiler))
    assert "__AVX512FP16__" not in found and "__AVX512BW__" in found


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("CXX", "/no/such/compiler", "CXX=/no/such/compiler is not on the path"),
        ("CXX", "g++ 'x", "CXX=g++ 'x is no command (No closing quotation)"),
        ("CXX", "g++ \\", "CXX=g++ \\ is no command (No escaped character)"),
        ("PATH", "/nowhere", "none of g++, clang++, c++ is on the path"),
    ],
)
def test_no_compiler_is_one_line(variable, value, words, monkeypatch, caplog):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, value)
    assert native.library_path() is None
    [record] = caplog.records
    assert words in record.message


@pytest.mark.parametrize("cache", ["gs://bucket/cache", "/proc/none"])
def test_a_cache_that_cannot_be_written_is_one_line(compiler, monkeypatch, caplog, cache):
    compiler()
    monkeypatch.setenv("MACARON_TF_CACHE", cache)
    assert native.library_path() is None
    assert len(caplog.records) == 1


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["address,undefined,float-cast-overflow", "thread"])
def test_the_loops_are_clean_under(sanitizers, tmp_path):
    try:
        compiler = native.find_compiler()
    except native.UserError as error:
        pytest.skip(str(error))
    flags = ["-std=c++17", "-O0", "-pthread", f"-fsanitize={sanitizers}", "-fno-sanitize-recover"]
    program = tmp_path / "sanitize"

    def compiled(source: str, *more: str) -> subprocess.CompletedProcess:
        command = [*compiler, *flags, *more, "-x", "c++", source, "-o", str(program)]
        return subprocess.run(command, input="int main() {}", capture_output=True, text=True)

    if compiled("-").returncode or subprocess.run([str(program)], capture_output=True).returncode:
        pytest.skip(f"{compiler[0]} has no working -fsanitize={sanitizers} here")
    driver = pathlib.Path(__file__).with_name("sanitize_main.cc")
    # clang warns of each loop that it does not vectorize, which here are all loops.
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-pass-failed"]
    build = compiled(str(driver), *warnings, f"-I{native.SOURCES}")
    assert build.returncode == 0, build.stderr
    run = subprocess.run([str(program)], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "clean\n"), run.stderr[-4000:]
