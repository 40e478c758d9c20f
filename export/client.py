"""A client of a served translation model, over REST (standard library only) or gRPC.

    python -m export.client --name NAME "A dog is running."
    python -m export.client --name NAME < source.txt > translation.txt

One line in, one line out, in order. It works with `export.serve` and with TensorFlow Serving.
In Python: `TranslationClient(url, name).translate(lines)`.
"""

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator

from export.clients import Candidate, TranslationClient, TranslationError
from macaron_tf.errors import UserError, exit_on_user_error

__all__ = ["Candidate", "TranslationClient", "TranslationError", "main"]


def _chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(lines)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    """Lines cut at newlines only: Python's text readers would also cut at a lone return."""
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", errors="replace")
            print(f"warning: line {number} is not UTF-8: bad bytes replaced", file=sys.stderr)
        yield text.rstrip("\r\n")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line's settings."""
    parser = argparse.ArgumentParser(
        prog="python -m export.client",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("text", nargs="*", help="lines to translate; none: standard input, a line each")
    add("--url", default="http://127.0.0.1:8501", help="REST address (%(default)s)")
    add("--grpc", metavar="HOST:PORT", help="use gRPC at this address instead of REST")
    add("--name", default="model", help="the model's name (%(default)s, as TensorFlow Serving's)")
    add("--version", type=int, help="the model's version (default: the newest)")
    add("--n-best", action="store_true", help="all translations: number ||| text ||| score")
    add("--batch-size", type=int, default=32, help="lines in one request (%(default)s)")
    add("--timeout", type=float, default=60.0, help="seconds to wait (%(default)s)")
    parsed = parser.parse_args(arguments)
    if parsed.batch_size < 1:
        parser.error("--batch-size must be at least 1")
    return parsed


@exit_on_user_error
def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parsed = parse_arguments(arguments)
    settings = {"timeout": parsed.timeout, "batch_size": parsed.batch_size}
    if parsed.grpc:
        # Imported late: it brings TensorFlow, which takes seconds and REST does not need.
        from export.grpc_client import GrpcTranslationClient

        client = GrpcTranslationClient(parsed.grpc, parsed.name, parsed.version, **settings)
    else:
        client = TranslationClient(parsed.url, parsed.name, parsed.version, **settings)
    number = 0
    try:
        for chunk in _chunks(parsed.text or _decoded(sys.stdin.buffer), parsed.batch_size):
            for candidates in client.n_best(chunk):
                if parsed.n_best:
                    for each in candidates:
                        print(f"{number} ||| {each.text} ||| {each.score:.4f}")
                else:
                    print(candidates[0].text)
                number += 1
            sys.stdout.flush()
    except TranslationError as error:
        raise UserError(f"{error} (the model is named by --name, now {parsed.name!r})") from None
    finally:
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
