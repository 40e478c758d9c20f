"""Process setup of commands: standard streams, Ctrl-C and exit status.

This module does not import TensorFlow. The launcher and the package `experiments` call
`begin_command` before any other import. `exit_on_user_error` decorates the `main` function of each
command.
"""

import errno
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator

from macaron_tf.errors import UserError, failed_request, missing_package, out_of_memory, warn
from macaron_tf.io.signals import RepeatedSignals

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
INTERRUPTED = 130  # exit status that a shell reports for a process killed by SIGINT
BROKEN_PIPE = 141  # exit status that a shell reports for a process killed by SIGPIPE
_IO_ERRORS = (errno.EIO, errno.EISDIR, errno.ENOSPC)


class _LeanImports(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that hides optional packages while TensorFlow or Keras is imported.

    They import JAX, pandas, matplotlib, OpenCV and scikit-learn if these are installed. A command
    then takes 5.3 seconds of CPU time and 850 MB of memory to start, and 2.9 seconds and 580 MB
    without.
    """

    _NAMES = ("tensorflow", "keras")
    _OPTIONAL = ("cv2", "jax", "matplotlib", "pandas", "sklearn")

    def find_spec(self, name, path=None, target=None):
        if name not in self._NAMES or os.environ.get("KERAS_BACKEND") != "tensorflow":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = loader = self._loader
        hidden_modules = [name for name in self._OPTIONAL if name not in sys.modules]
        sys.modules.update(dict.fromkeys(hidden_modules))  # an entry of None makes an import fail
        try:
            loader.exec_module(module)
        finally:
            for name in hidden_modules:
                sys.modules.pop(name, None)


class _CtrlC:
    """SIGINT handler.

    The first Ctrl-C within a command's `main` raises KeyboardInterrupt, so that the command cleans
    up. A deliberate repetition (see `RepeatedSignals`), or any Ctrl-C outside of `main`, ends the
    process.
    """

    running = False  # whether `main` runs
    received = False
    _is_repeated = RepeatedSignals()

    def __call__(self, signal_number, frame):
        repeated = self._is_repeated(signal_number)
        if self.running and not self.received:
            self.received = True
            raise KeyboardInterrupt
        if repeated or not self.running:
            os.write(2, b"interrupted\n")  # not print, which the signal may have interrupted
            os._exit(INTERRUPTED)


_ctrl_c = _CtrlC()


def begin_command() -> None:
    """Prepares the process of a command before TensorFlow is imported.

    The backend becomes tensorflow unless KERAS_BACKEND is set, whatever the user's keras.json says.
    A Ctrl-C handler prints one line instead of a traceback even during slow imports. TensorFlow's
    C++ log is silent unless TF_CPP_MIN_LOG_LEVEL is set, because its errors also reach Python as
    exceptions.
    """
    os.environ.setdefault(LOG_LEVEL, "3")
    # Hides TensorFlow's deprecation warning about sessions, which TensorFlow Serving also uses.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    sys.meta_path.insert(0, _LeanImports())
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if SIGINT is ignored
        signal.signal(signal.SIGINT, _ctrl_c)


def exit_on_user_error(main: Callable[..., int | None]) -> Callable[..., int]:
    """Decorates a command's `main(arguments=None)`, so that `main` returns the exit status.

    - The status is the number that `main` returns, or 0 for `None`.
    - For a `UserError`, and for other errors that have a one-line message, it is 2, and the message
      is printed to stderr. All other errors are raised unchanged.
    - For Ctrl-C, the status is 130. For a closed output pipe, it is 141.

    A call without arguments also makes the standard streams UTF-8; see `_as_process`.
    """

    @functools.wraps(main)
    def wrapped(*args, **kwargs) -> int:
        is_process = not args or args[0] is None
        _ctrl_c.running |= is_process
        try:
            return (_as_process(main) if is_process else main(*args, **kwargs)) or 0
        except UserError as error:
            # Libraries may convert a KeyboardInterrupt within an import to another exception.
            return _print_interrupted() if _ctrl_c.received else _print_error(error)
        except KeyboardInterrupt:
            return _print_interrupted()
        except BrokenPipeError:
            _discard_output()  # otherwise Python's flush at exit would raise the error again
            return BROKEN_PIPE
        except UnicodeEncodeError as error:  # of an argument in another encoding
            return _print_error(f"a text is not UTF-8 ({error}): encode it in UTF-8")
        except Exception as error:
            if _ctrl_c.received:
                return _print_interrupted()
            describers = (missing_package, out_of_memory, failed_request)
            sentence = next(filter(None, (describe(error) for describe in describers)), None)
            if sentence is None:
                raise
            return _print_error(sentence)
        finally:
            if is_process:
                _ctrl_c.running = False

    return wrapped


def _print_error(sentence: object) -> int:
    # The sentence may quote user input with line breaks or a terminal's colour codes.
    characters = (c if c.isprintable() else repr(c)[1:-1] for c in str(sentence))
    _discard_output()
    print(f"error: {''.join(characters)}", file=sys.stderr)
    return 2


def _print_interrupted() -> int:
    # After a KeyboardInterrupt inside an `exec` of text, as in dataclasses, CPython kills itself by
    # SIGINT instead of returning our exit status. Another `exec` resets this state.
    exec("")
    print("interrupted", file=sys.stderr)
    return INTERRUPTED


def _as_process(main: Callable[..., int | None]) -> int | None:
    """Runs `main` with standard streams in UTF-8."""
    for stream, errors in (
        (sys.stdin, "surrogateescape"),
        (sys.stdout, "surrogateescape"),
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, io.TextIOWrapper):  # not a stream that a notebook has set
            stream.reconfigure(encoding="utf-8", errors=errors)
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except OSError as error:
        # An error of a named file has a filename, and a closed pipe has its own status.
        if error.filename or isinstance(error, BrokenPipeError) or error.errno not in _IO_ERRORS:
            raise
        raise UserError(f"stdin or stdout failed ({error.strerror}): redirect it") from error


def _discard_output() -> None:
    """Flushes the standard output. If writing fails, discards the buffer and raises no error."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def decoded(lines: Iterable[bytes]) -> Iterator[str]:
    """Decodes lines of UTF-8 text, and yields the lines without their newline characters.

    Invalid bytes become U+FFFD, with a warning on stderr. Only a newline ends a line, so that line
    numbers of input and output agree.
    """
    for number, line in enumerate(lines, 1):
        if b"\0" in line:
            raise UserError(f"line {number} of the input contains a zero byte: give text in UTF-8")
        # "utf-8-sig" removes a byte order mark.
        text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace")
        if "\N{REPLACEMENT CHARACTER}" in text and b"\xef\xbf\xbd" not in line:
            warn(f"line {number} is not UTF-8: invalid bytes are replaced by U+FFFD")
        yield text.rstrip("\r\n")
