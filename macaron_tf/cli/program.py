"""A command as a process: its standard streams, Ctrl-C, and its exit status; no TensorFlow here.

    python -m experiments.translate ...

The packages of commands call `begin_command` before anything else is imported; every command's
`main` is wrapped by `exit_on_user_error`.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import io
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from macaron_tf.command_names import as_typed
from macaron_tf.errors import (
    CORE,
    UserError,
    missing_package,
    out_of_memory,
    sentence_of,
    store_sentence,
)
from macaron_tf.plug_ins import allow_within

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_NOTE = re.compile(rb"WARNING: All log messages before|I0000 ")
INTERRUPTED = 130  # the shell's status of a process that SIGINT ended
BROKEN_PIPE = 141  # and SIGPIPE


class _LeanImports(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports TensorFlow and Keras without packages that both merely try to import.

    With them a command takes 5.3 seconds of CPU and 850 MB to start, without them 2.9 and 580:
    TensorFlow Lite's tools look for JAX, Keras's data adapters for pandas, its pictures for
    matplotlib and OpenCV, its wrappers for scikit-learn. All can be imported afterwards.
    """

    _NAMES = ("tensorflow", "keras")
    _TRIED = ("cv2", "jax", "matplotlib", "pandas", "sklearn")

    def find_spec(self, name, path=None, target=None):
        if name not in self._NAMES or os.environ.get("KERAS_BACKEND") != "tensorflow":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = loader = self._loader
        hidden = [name for name in self._TRIED if name not in sys.modules]
        sys.modules.update(dict.fromkeys(hidden))  # None: an ImportError
        silent = module.__name__ == "tensorflow" and os.environ.get(LOG_LEVEL) == "3"
        try:
            with _without_notes() if silent else contextlib.nullcontext():
                loader.exec_module(module)
        finally:
            for name in hidden:
                sys.modules.pop(name, None)


@contextlib.contextmanager
def _without_notes() -> Iterator[None]:
    """Keeps the notes that TensorFlow 2.21 makes at its import, at any log level, from stderr."""
    kept = _ctrl_c.stderr = os.dup(2)
    with open(os.memfd_create("stderr"), "r+b") as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            _ctrl_c.stderr = os.dup2(kept, 2)
            os.close(kept)
            said.seek(0)
            with contextlib.suppress(OSError):
                os.write(2, b"".join(line for line in said if not _NOTE.match(line)))


def lean_imports() -> None:
    """Has TensorFlow and Keras imported without what they merely try to import.

    Keras's backend is TensorFlow unless the environment says another, whatever keras.json says.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    sys.meta_path.insert(0, _LeanImports())


class Repeats:
    """Tells whether a signal was sent again on purpose: a second or more after the first.

    A key bounces, and a terminal, `timeout` and a batch system may all signal one process.
    """

    def __init__(self):
        self._first: dict[int, float] = {}  # number: monotonic time

    def __call__(self, number: int) -> bool:
        now = time.monotonic()
        return now - self._first.setdefault(number, now) >= 1


class _CtrlC:
    """Handler of SIGINT: while modules are imported, and when repeated, it ends the process.

    Within a command's `main` the first Ctrl-C raises KeyboardInterrupt, which files half-written
    and helper processes need to clean up; see `Repeats` about another.
    """

    running = False  # within main
    received = False
    ended = False  # main is over
    stderr = 2  # its descriptor; another while `_without_notes` has taken this one
    _is_repeated = Repeats()

    def __call__(self, number, frame):
        repeated = self._is_repeated(number)
        if self.running and not self.received:
            self.received = True
            raise KeyboardInterrupt
        if self.running and not repeated:
            return
        # Not print: the signal may have come in the middle of another print.
        os.write(self.stderr, b"" if self.received or self.ended else b"interrupted\n")
        os._exit(INTERRUPTED)


_ctrl_c = _CtrlC()


def begin_command() -> None:
    """Prepares a command's process, before TensorFlow is imported.

    Ctrl-C ends it in one line from here on, during the slow imports too; so does a Python without
    the packages that all commands need. TensorFlow's C++ log, whose errors reach Python as
    exceptions, is silent unless TF_CPP_MIN_LOG_LEVEL is set.
    """
    if lacking := [name for name in CORE if not _is_installed(name)]:
        raise SystemExit(_refused(missing_package(ModuleNotFoundError(name=", ".join(lacking)))))
    os.environ.setdefault(LOG_LEVEL, "3")
    lean_imports()
    _reserve_descriptors()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
        signal.signal(signal.SIGINT, _ctrl_c)


def _is_installed(module: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(module) is not None
    return False


def exit_on_user_error(main: Callable[..., int | None]) -> Callable[..., int]:
    """Wraps a command's `main(arguments=None)`, which then returns the exit status.

    The status is 0 or `main`'s own, 2 for a `UserError`, which becomes one line on stderr, 130 for
    Ctrl-C and 141 for a closed output pipe. Without arguments, as a process calls it, standard
    streams are UTF-8 and their failures are errors of the user's; see `_open_streams`.
    """

    @functools.wraps(main)
    def wrapped(*args, **kwargs) -> int:
        if args and args[0] is not None:
            allow_within(*args[0])
            return _status(main, *args, **kwargs)
        _ctrl_c.running = True
        allow_within(*sys.argv[1:])
        try:
            return _status(_as_process, main, *args, **kwargs)
        finally:
            _ctrl_c.running, _ctrl_c.ended = False, True  # now Ctrl-C ends it in silence

    return wrapped


def _status(main: Callable[..., int | None], *args, **kwargs) -> int:
    try:
        return main(*args, **kwargs) or 0
    except UserError as error:
        # Libraries swallow a KeyboardInterrupt within an import, or turn it into others.
        return _interrupted() if _ctrl_c.received else _refused(error)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        _discard_output()  # `... | head`: Python would complain again when it flushes at exit
        return BROKEN_PIPE
    except Exception as error:
        if _ctrl_c.received:
            return _interrupted()
        kinds = (sentence_of, missing_package, out_of_memory, store_sentence)
        sentence = next(filter(None, (kind(error) for kind in kinds)), None)
        if sentence is None:
            raise
        return _refused(sentence)


def _refused(sentence: object) -> int:
    # Words of the user's in it may hold line breaks, or colours of a terminal.
    words = (c if c.isprintable() else repr(c)[1:-1] for c in str(sentence))
    print(as_typed(f"error: {''.join(words)}"), file=sys.stderr)
    return 2


def _interrupted() -> int:
    # CPython ends by SIGINT, not with our status, once the exception has left an `exec` of text, as
    # dataclasses call it; another one resets that.
    exec("")
    print("interrupted", file=sys.stderr)
    return INTERRUPTED


def _as_process(main: Callable[..., int | None], *args, **kwargs) -> int | None:
    """Runs `main` with streams that are open and UTF-8, and with words that are."""
    _open_streams()
    for number, word in enumerate(sys.argv[1:], 1):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"argument {number}, {word!a}, is not UTF-8: write it so") from error
    try:
        try:
            return main(*args, **kwargs)
        finally:
            sys.stdout.flush()
    except UserError:
        _discard_output()
        raise


def _reserve_descriptors() -> None:
    """Opens those of 0, 1 and 2 that are closed: the next file would become a standard stream."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


class _Input(io.FileIO):
    """Standard input, whose failures are a `UserError`."""

    def readinto(self, buffer):
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise UserError(f"standard input cannot be read: {error.strerror}") from error


class _Output(io.FileIO):
    """Standard output, whose failures are a `UserError`, but for a closed pipe."""

    def write(self, data):
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(
                f"standard output cannot be written: {error.strerror}; send it elsewhere"
            ) from error


class _Errors(io.FileIO):
    """Standard error; where it cannot be written, nobody can be told."""

    def write(self, data):
        try:
            return super().write(data)
        except OSError:
            return len(data)


class _Closed(io.RawIOBase):
    """A standard input that was closed before the start."""

    def readable(self):
        return True

    def readinto(self, buffer):
        raise UserError("standard input is closed: give a file, or text as arguments")


def _open_streams() -> None:
    """Puts streams of this module in the place of a process's own; others, of a notebook, stay.

    A closed standard output is refused; a closed standard input once it is read; what is said on a
    closed standard error is lost.
    """
    if sys.stderr is sys.__stderr__:
        raw = _Errors(2, "w", closefd=False)
        sys.stderr = _text(io.BufferedWriter(raw), "backslashreplace", line_buffering=True)
    if sys.stdout is None:
        raise UserError("standard output is closed: send it to a file, or to /dev/null")
    if sys.stdout is sys.__stdout__:
        sys.stdout.flush()
        each, line = sys.stdout.write_through, sys.stdout.line_buffering
        raw = _Output(1, "w", closefd=False)
        sys.stdout = _text(io.BufferedWriter(raw), write_through=each, line_buffering=each or line)
    if sys.stdin is sys.__stdin__:
        raw = _Closed() if sys.stdin is None else _Input(0, "r", closefd=False)
        sys.stdin = _text(io.BufferedReader(raw))


def _text(buffer, errors: str = "surrogateescape", **options) -> io.TextIOWrapper:
    return io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, **options)


def _discard_output() -> None:
    """Sends to nowhere what waits in standard output's buffer and can't be written."""
    try:
        sys.stdout.flush()
    except (UserError, OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def decoded(lines: Iterable[bytes]) -> Iterator[str]:
    """Decodes UTF-8 lines. Only a newline ends a line: other breaks would shift the order.

    Raises:
        UserError: the input is compressed or binary; bad bytes in a text are replaced instead.
    """
    for number, line in enumerate(lines, 1):
        if number == 1 and line.startswith(b"\x1f\x8b"):
            raise UserError("the input is compressed: send it through `gunzip -c` first")
        if b"\0" in line:
            raise UserError(f"line {number} of the input holds a zero byte: give text in UTF-8")
        # A byte order mark is no text.
        text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace")
        if "\N{REPLACEMENT CHARACTER}" in text and b"\xef\xbf\xbd" not in line:
            print(f"warning: line {number} is not UTF-8: bad bytes replaced", file=sys.stderr)
        yield text.rstrip("\r\n")
