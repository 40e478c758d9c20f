"""The library of the native kernels: compiled on first use with the compiler at hand, then kept."""

import fcntl
import hashlib
import logging
import os
import pathlib
import platform
import shlex
import shutil
import subprocess

import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.io.files import cache_directory

SOURCES = pathlib.Path(__file__).parent / "native"
_COMPILERS = ("g++", "clang++", "c++")
# IEEE arithmetic throughout: a NaN stays one. Given up are the errno of the C library's functions,
# traps that nobody has set, and the rounding between a product and its sum.
FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
# Of each row the first that the compiler takes: this machine's instructions, as x86 and some ARM
# compilers name them; vectors of 64 bytes where there are such, 1.2 times as fast as of 32.
_TUNING = (("-march=native", "-mcpu=native"), ("-mprefer-vector-width=512",))

_log = logging.getLogger(__name__)


def library_path() -> pathlib.Path | None:
    """The compiled library, from the cache or else from the compiler.

    It is kept in the cache's folder `native` under a name that depends on the sources, the flags,
    TensorFlow, the compiler and the processor. Processes that need it at once build it once.

    Returns:
        Its path; or None, with one line of log, where there is no compiler or it fails.
    """
    try:
        compiler = find_compiler()
        folder = cache_directory() / "native"
        library = folder / f"kernels-{_key(compiler)}.so"
        if not library.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with open(library.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not library.exists():  # no other process has built it meanwhile
                    _compile(compiler, library)
        return library
    except (OSError, subprocess.SubprocessError, UserError) as error:
        _log.warning("no native kernels, slower ones run in their place: %s", error)
        return None


def find_compiler() -> list[str]:
    """The command of the C++ compiler: `$CXX`, else g++, clang++ or c++.

    Raises:
        UserError: there is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [[name] for name in _COMPILERS]:
        found = shutil.which(command[0])
        if found:
            return [found, *command[1:]]
    wanted = f"CXX={named[0]} is" if named else f"{', '.join(_COMPILERS)} are"
    raise UserError(f"{wanted} not on the path: install a C++ compiler, or name it in CXX")


def tuning_flags(compiler: list[str]) -> list[str]:
    """What the compiler understands of the flags for this machine's processor."""
    chosen = []
    for alternatives in _TUNING:
        for flag in alternatives:
            trial = [*compiler, "-Werror", flag, "-x", "c++", "-fsyntax-only", "-"]
            if subprocess.run(trial, input=b"", capture_output=True).returncode == 0:
                chosen.append(flag)
                break
    return chosen


def _compile(compiler: list[str], library: pathlib.Path) -> None:
    _log.warning("building the native kernels, once, which takes half a minute: %s", library)
    aside = library.with_suffix(f".{os.getpid()}")
    output = library.with_suffix(".log")
    command = [*compiler, *tf.sysconfig.get_compile_flags(), *FLAGS, *tuning_flags(compiler)]
    # -w: TensorFlow's headers warn by the hundred.
    command += ["-DNDEBUG", "-w", "-shared", "-fPIC", str(SOURCES / "ops.cc")]
    command += ["-o", str(aside), *tf.sysconfig.get_link_flags()]
    with open(output, "w") as stream:
        stream.write(shlex.join(command) + "\n")
        stream.flush()
        status = subprocess.run(command, stdout=stream, stderr=stream).returncode
    if status != 0:
        aside.unlink(missing_ok=True)
        raise UserError(f"{compiler[0]} ended with status {status}; its output is in {output}")
    os.replace(aside, library)
    output.unlink()


def _key(compiler: list[str]) -> str:
    """Names what decides the compiled code: another of any of these, another library."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True).stdout
    parts = [
        *(path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.suffix in (".h", ".cc")),
        repr((compiler, FLAGS, _TUNING, tf.sysconfig.get_compile_flags())).encode(),
        tf.version.VERSION.encode(),
        version,
        _processor().encode(),
    ]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """The processor's model and instruction sets: a home directory may serve unlike machines."""
    names = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = sorted({line for line in lines if line.split(":")[0].strip() in names})
    return "\n".join([platform.machine(), platform.processor(), *found])
