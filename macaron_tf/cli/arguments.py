"""Command line parsers, built from parts such as `argument`, `switch` and `settings`.

A part is a function that adds one or more arguments to a parser. A command stores the function to
run as the string `module:function`, and imports the module only when the command runs. `--help`
therefore does not need TensorFlow.
"""

import argparse
import functools
import os
import pkgutil
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Annotated

from annotated_types import Ge, Lt

from macaron_tf.cli.program import exit_on_user_error
from macaron_tf.errors import UserError, check_path
from macaron_tf.settings import SettingError, parse

# Adds arguments to a parser. Returns the arguments, or None if no caller needs the result.
Part = Callable[[argparse.ArgumentParser], Sequence[argparse.Action] | None]
# Completes the parsed options.
Prepare = Callable[[argparse.Namespace], None]


class Layout(argparse.RawDescriptionHelpFormatter):
    """Layout that never breaks lines at hyphens, because users copy words such as hugging-face."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


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
        intermixed: whether flags may stand between the values of a positional argument.
    """
    # A part may replace --help.
    parser = argparse.ArgumentParser(
        name, description=text, formatter_class=Layout, conflict_handler="resolve"
    )
    parser.set_defaults(function=run)
    together(*parts, TRUST_CODE)(parser)

    @exit_on_user_error
    def main(arguments: list[str] | None = None) -> int | None:
        """Parses the arguments, by default `sys.argv[1:]`, and runs the command's function."""
        argv = sys.argv[1:] if arguments is None else arguments
        options = (parser.parse_intermixed_args if intermixed else parser.parse_args)(argv)
        options.line = shlex.join([*parser.prog.split(), *argv])
        file, output = vars(options).get("input"), vars(options).get("output")
        if file and output and os.path.realpath(file) == os.path.realpath(output):
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


def count(spec: str, text: str, default=None, minimum=1, below=2**31, **options) -> Part:
    """Returns a part that adds a flag for a number from `minimum` to below `below`."""
    name, hint = spec.partition(" ")[0], Annotated[type(minimum), Ge(minimum), Lt(below)]

    def number(value: str) -> float:
        try:
            return parse(name, value, hint)
        except SettingError as error:  # argparse hides the message of a ValueError
            raise UserError(str(error)) from error

    return argument(spec, text, type=number, default=default, **options)


def together(*parts: Part) -> Part:
    """Returns a part that adds the arguments of several parts."""
    return lambda parser: [action for part in parts for action in part(parser) or ()]


def group(title: str, *parts: Part) -> Part:
    """Returns a part that adds the arguments of `parts` under a title in the help."""
    return lambda parser: together(*parts)(parser.add_argument_group(title))


def settings(examples: str, flag: str = "--set") -> Part:
    """Returns a part that adds the repeatable `--set PATH=VALUE`, with `examples` in its help."""
    text = f"override a setting, such as {examples} (repeatable)"
    return argument(f"{flag} PATH=VALUE", text, action="append", default=[])


MODEL = path_argument(
    "run",
    "folder of a training run, RUN@CHECKPOINT, or another location that `macaron_tf.load` accepts, "
    "such as hugging-face:DIR; CHECKPOINT is average, best, last or the number of a training step "
    "(default: average if the run has averaged weights of its newest checkpoints; otherwise best, "
    "or last without a validation)",
)
TRUST_CODE = switch(
    "--trust-code",
    "allow running the Python modules that a model folder contains or names, such as a custom "
    "block; check first that you trust the author of the folder (default: run only code that is "
    "named on the command line)",
)
