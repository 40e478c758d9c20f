"""What the commands with several parts share: sub-commands that teach, and common options."""

import argparse
from collections.abc import Callable


def command_parser(
    prog: str, text: str, forms: str
) -> tuple[argparse.ArgumentParser, Callable[[str, str], argparse.ArgumentParser]]:
    """A parser of commands, each of whose helps ends with the forms of its input.

    Args:
        prog: what a person types.
        text: the help, examples included.
        forms: what follows every help.

    Returns:
        The parser, and `command(name, text)`, which adds a command and returns its parser.
    """
    layout = dict(epilog=forms, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser = argparse.ArgumentParser(prog=prog, description=text, **layout)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, **layout)

    return parser, command


def tfds_options(parser: argparse.ArgumentParser) -> None:
    """`--data-dir` and `--download`."""
    parser.add_argument("--data-dir", metavar="DIR", help="TensorFlow Datasets' folder")
    parser.add_argument(
        "--download", action="store_true", help="let TensorFlow Datasets download what is missing"
    )


def set_option(parser: argparse.ArgumentParser, examples: str) -> None:
    """`--set PATH=VALUE`, as often as wanted."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help=f"replace a setting, such as {examples}",
    )
