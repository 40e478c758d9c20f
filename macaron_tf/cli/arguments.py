"""Command line parsers, built from parts such as `argument`, `switch` and `settings`.

A part is a function that adds one or more arguments to a parser. A command stores the function to
run as the string `module:function`, and imports the module only when the command runs. `--help`
therefore does not need TensorFlow.
"""

import argparse
import contextlib
import functools
import os
import pkgutil
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence

from macaron_tf.cli.program import exit_on_user_error
from macaron_tf.errors import UserError, check_path

# Adds arguments to a parser. Returns the arguments, or None if no caller needs the result.
Part = Callable[[argparse.ArgumentParser], Sequence[argparse.Action] | None]
# Completes the parsed options.
Prepare = Callable[[argparse.Namespace], None]


class Layout(argparse.RawDescriptionHelpFormatter):
    """Layout that never breaks lines at hyphens, because users copy words such as hugging-face."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """Argument parser of a command."""

    def parse_args(self, args=None, namespace=None):
        """Parses the arguments, where texts of a command may also stand behind its flags."""
        options, rest = self.parse_known_args(args, namespace)
        if rest and ("text" not in vars(options) or any(word[:1] == "-" for word in rest)):
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        if rest:
            options.text += rest
        return options


def single_program(
    name: str,
    text: str,
    run: str,
    *parts: Part,
    prepare: Prepare | None = None,
    intermixed: bool = True,
) -> Callable[..., int]:
    """Builds the `main` function of a command.

    `main(arguments=None)` returns the exit status (see `exit_on_user_error`). `None` means the
    arguments in `sys.argv`.

    Args:
        name: the command as the user types it, such as "macaron export".
        text: its help, whose first line is a summary.
        run: its function of the parsed options, as `module:function`.
        prepare: function of the parsed options, to call before the command's function.
        intermixed: whether flags may stand between positional arguments.
    """
    # A part may replace --help.
    parser = Parser(name, description=text, formatter_class=Layout, conflict_handler="resolve")
    parser.set_defaults(function=run)
    together(*parts, TRUST_CODE)(parser)

    @exit_on_user_error
    def main(arguments: list[str] | None = None) -> int | None:
        """Parses the arguments, by default `sys.argv[1:]`, and runs the command's function."""
        argv = sys.argv[1:] if arguments is None else arguments
        options = (parser.parse_intermixed_args if intermixed else parser.parse_args)(argv)
        options.line = shlex.join([*parser.prog.split(), *argv])
        if output := vars(options).get("output"):
            for file in filter(None, vars(options).get("files") or [vars(options).get("input")]):
                if os.path.realpath(file) == os.path.realpath(output):
                    raise UserError(f"--output {output} is also the input: give another file")
        if prepare:
            prepare(options)
        return pkgutil.resolve_name(options.function)(options)

    return main


def argument(spec: str, text: str, **options) -> Part:
    """Returns a part that adds one argument; behind a flag, `spec` may name its value: `--out DIR`.

    A flag without `type`, `action` and `choices` rejects an empty value with a UserError.
    """
    name, _, value = spec.partition(" ")
    options |= {"metavar": value} if value else {}
    if name.startswith("--") and not options.keys() & {"type", "action", "choices"}:
        options["type"] = functools.partial(_check_not_empty, name)
    return lambda parser: [parser.add_argument(name, help=text, **options)]


def _check_not_empty(name: str, text: str) -> str:
    if not text:
        raise UserError(f"{name} is empty: give a value (is a shell variable unset?)")
    return text


def path_argument(spec: str, text: str, local: bool = False, **options) -> Part:
    """Returns a part that adds an argument for paths, only for local ones with `local`."""
    check = functools.partial(check_path, local=local, name=spec.partition(" ")[0])
    return argument(spec, text, type=check, **options)


local_path_argument = functools.partial(path_argument, local=True)


def switch(name: str, text: str) -> Part:
    """Returns a part that adds a flag without a value, such as `--all`. The default is False."""
    return argument(name, text, action="store_true")


class Distinct(argparse.Action):
    """Argparse action that stores a flag's list of values, which must all be different."""

    def __call__(self, parser, namespace, values, option_string=None):
        if len(set(values)) < len(values):
            given = " ".join(map(str, values))
            raise UserError(f"{option_string} {given} repeats a value: give each value once")
        setattr(namespace, self.dest, values)


def count(spec: str, text: str, default=None, minimum=1, below=None, **options) -> Part:
    """Returns a part that adds a flag for a number from `minimum` to below `below`.

    If `minimum` is an int, the flag accepts only integers.
    """
    value_type, name = type(minimum), spec.partition(" ")[0]
    is_whole = value_type is int
    below = below or (2**31 if is_whole else 3.4e38)
    last = f"to {below - 1}" if is_whole else f"to below {below:g}"

    def parse(value: str) -> float:
        with contextlib.suppress(ValueError):
            is_number = not is_whole or re.fullmatch("-?[0-9]+", value)
            if is_number and minimum <= value_type(value) < below:
                return value_type(value)
        noun = "whole number" if is_whole else "number"
        raise UserError(f"{name} {value[:40]} is not valid: give a {noun} from {minimum:g} {last}")

    return argument(spec, text, type=parse, default=default, **options)


def together(*parts: Part) -> Part:
    """Returns a part that adds the arguments of several parts."""
    return lambda parser: [action for part in parts for action in part(parser) or ()]


def group(title: str, *parts: Part, text: str | None = None) -> Part:
    """Returns a part that adds the arguments of `parts` under a title in the help."""
    return lambda parser: together(*parts)(
        parser.add_argument_group(title, text and textwrap.fill(text, 78))
    )


def settings(examples: str, flag: str = "--set") -> Part:
    """Returns a part that adds the repeatable `--set PATH=VALUE`, with `examples` in its help."""
    text = f"override a setting, such as {examples} (repeatable)"
    return argument(f"{flag} PATH=VALUE", text, action="append", default=[])


MODEL = path_argument(
    "run",
    "folder of a training run, or another location that `macaron_tf.load` accepts, such as "
    "hugging-face:DIR",
)
CHECKPOINT = argument(
    "--checkpoint NAME",
    "average, best, last or the number of a training step (default: average if the run has "
    "averaged weights of its newest checkpoints; otherwise best, or last without a validation)",
)
TRUST_CODE = switch(
    "--trust-code",
    "allow running the Python modules that a model folder contains or names, such as a custom "
    "block; check first that you trust the author of the folder (default: run only code that is "
    "named on the command line)",
)
