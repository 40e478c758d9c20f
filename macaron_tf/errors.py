"""Errors of a user's input, and the exit statuses of commands."""

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator


class UserError(Exception):
    """A mistake that the user can correct: one sentence names it and the correction."""


# Files of the user's code that settings name, see `macaron_tf.plug_ins`.
USER_FILES: set[str] = set()


def sentence_of(error: BaseException, place: str = "") -> str | None:
    """An error of the user's code in a sentence; None for others.

    Args:
        place: name of the code, where it is known to be the user's.
    """
    frames = traceback.extract_tb(error.__traceback__)
    frames = [f for f in frames if f.filename in USER_FILES] or (frames if place else [])
    if not frames:
        return None
    words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    where = f"{frames[-1].filename}, line {frames[-1].lineno}"
    if not place:
        return f"{where} raised {words}"
    # The words of a SyntaxError end with the place.
    return f"{place} raised {words}{'' if isinstance(error, SyntaxError) else f' ({where})'}"


@contextlib.contextmanager
def needed(package: str, purpose: str) -> Iterator[None]:
    """Turns an `ImportError` within the `with` into a `UserError` that says what to install."""
    try:
        yield
    except ImportError as error:
        raise UserError(f"{purpose} needs a package ({error}): pip install {package}") from error


def exit_on_user_error(main: Callable[..., int | None]) -> Callable[..., int]:
    """Wraps a script's `main`: a `UserError` becomes one line on stderr and exit status 2.

    The status is 0 or `main`'s own, 2 for a `UserError`, 130 for Ctrl-C and 141 for a closed output
    pipe (the shell's conventions for SIGINT and SIGPIPE).
    """

    @functools.wraps(main)
    def wrapped(*args, **kwargs) -> int:
        try:
            return main(*args, **kwargs) or 0
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        except BrokenPipeError:
            # `... | head`: Python would complain again when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except Exception as error:
            if (sentence := sentence_of(error)) is None:
                raise
            print(f"error: {sentence}", file=sys.stderr)
            return 2

    return wrapped
