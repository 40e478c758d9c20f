"""Errors of a user's input, and the exit statuses of commands."""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator


class UserError(Exception):
    """A mistake that the user can correct: one sentence names it and the correction."""


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

    return wrapped
