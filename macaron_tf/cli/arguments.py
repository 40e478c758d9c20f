"""Commands as tables of their arguments: the parsers, and parts that any command may have.

A part adds one argument or several to a parser. The functions that commands run are named, not
imported: `--help` answers without TensorFlow.
"""

import argparse
import contextlib
import functools
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence

from macaron_tf.cli.program import exit_on_user_error
from macaron_tf.command_names import as_typed
from macaron_tf.errors import UserError, check_path
from macaron_tf.plug_ins import trusting

# Adds arguments to a parser, and returns them where others want to know them.
Part = Callable[[argparse.ArgumentParser], Sequence[argparse.Action] | None]
# Name, help, `module:function` that gets the parsed options, arguments.
Command = tuple[str, str, str, tuple[Part, ...]]
# Completes the options, told whether they are a process's own words.
Prepare = Callable[[argparse.Namespace, bool], None]


class Parser(argparse.ArgumentParser):
    """A parser that keeps the lines of its text, and writes commands as the user typed this one."""

    def __init__(self, *, prog: str = "", **options):
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=as_typed(prog), formatter_class=layout, **options)

    def format_help(self) -> str:
        """The help, see `as_typed`."""
        return as_typed(super().format_help())


def program(
    module: str,
    text: str,
    *commands: Command,
    forms: str = "",
    default: str | None = None,
    prepare: Prepare | None = None,
) -> Callable[..., int]:
    """The `main` of `python -m MODULE COMMAND`.

    Args:
        text: the help, examples included.
        forms: the last part of every help, such as the forms of sources.
        default: the command of words that begin with none.
        prepare: called before a command's function.
    """
    parser = Parser(prog=f"python -m {module}", description=text, epilog=forms)
    add = parser.add_subparsers(dest="command", required=True, metavar="COMMAND").add_parser
    for name, help_, run, parts in commands:
        _fill(add(name, help=help_, description=help_, epilog=forms), run, parts)
    known = {"-h", "--help", *(name for name, *_ in commands)}

    def completed(words: list[str]) -> list[str]:
        return words if not default or not words or words[0] in known else [default, *words]

    return _main(lambda words: parser.parse_args(completed(words)), prepare)


def single_program(
    module: str, text: str, run: str, *parts: Part, forms: str = "", prepare: Prepare | None = None
) -> Callable[..., int]:
    """The `main` of `python -m MODULE`, which has no sub-commands; see `program`."""
    parser = Parser(prog=f"python -m {module}", description=text, epilog=forms)
    _fill(parser, run, parts)
    return _main(parser.parse_intermixed_args, prepare)


def _fill(parser: argparse.ArgumentParser, run: str, parts: tuple[Part, ...]) -> None:
    parser.set_defaults(function=run)
    together(*parts, TRUST_CODE)(parser)


def _main(
    parse: Callable[[list[str]], argparse.Namespace], prepare: Prepare | None
) -> Callable[..., int]:
    @exit_on_user_error
    def main(arguments: list[str] | None = None) -> int | None:
        """Runs the command with the parsed arguments and `arguments`, the words given."""
        words = sys.argv[1:] if arguments is None else arguments
        options = parse(words)
        options.arguments = words
        if written := vars(options).get("output"):
            for name in filter(None, vars(options).get("files") or [vars(options).get("input")]):
                if os.path.realpath(name) == os.path.realpath(written):
                    raise UserError(f"--output {written} is the input too: give another file")
        if prepare:
            prepare(options, arguments is None)
        with trusting(options.trust_code):
            return pkgutil.resolve_name(options.function)(options)

    return main


def command(name: str, text: str, run: str, *parts: Part) -> Command:
    """A command of a `program`."""
    return name, text, run, parts


def argument(form: str, text: str, **options) -> Part:
    """An argument with its help.

    Args:
        form: its name, and a flag's value after a space, such as `--out DIR`.
        options: of `add_argument`.
    """
    name, _, value = form.partition(" ")
    options |= {"metavar": value} if value else {}
    if name.startswith("--") and not options.keys() & {"type", "action", "choices"}:
        options["type"] = functools.partial(_word, name)
    return lambda parser: [parser.add_argument(name, help=text, **options)]


def _word(name: str, text: str) -> str:
    if not text:
        raise UserError(f"{name} is empty: leave it out, or give it (is a shell's variable unset?)")
    return text


def place(form: str, text: str, local: bool = False, **options) -> Part:
    """An argument that names a file, a folder, or a source in one; see `check_path`."""
    checked = functools.partial(check_path, local=local, name=form.partition(" ")[0])
    return argument(form, text, type=checked, **options)


local_place = functools.partial(place, local=True)


def switch(name: str, text: str) -> Part:
    """A flag without a value."""
    return argument(name, text, action="store_true")


def yes_or_no(name: str, text: str) -> Part:
    """`--NAME` and `--no-NAME`; None where neither is given."""
    return argument(name, text, action=argparse.BooleanOptionalAction, default=None)


class Distinct(argparse.Action):
    """Stores the values of a flag; refuses one that is given twice."""

    def __call__(self, parser, namespace, values, option_string=None):
        if len(set(values)) < len(values):
            raise UserError(f"{option_string} {' '.join(map(str, values))}: give each once")
        setattr(namespace, self.dest, values)


def count(form: str, text: str, default=None, least=1, below=None, **options) -> Part:
    """A flag that takes a number within a range; others are refused in a sentence.

    Args:
        least, below: the range. An int for `least` takes whole numbers only; None = what
            TensorFlow's int32 and float32 can hold.
    """
    kind, name = type(least), form.partition(" ")[0]
    if below is None:
        span = f"{least:g} or more, at most {'2147483647' if kind is int else '3.4e38'}"
    else:
        span = f"{least} to {below - 1}" if kind is int else f"{least:g} to below {below}"
    below = below or (2**31 if kind is int else 3.4e38)

    def checked(given: str) -> float:
        with contextlib.suppress(ValueError):
            if (kind is float or re.fullmatch("-?[0-9]+", given)) and least <= kind(given) < below:
                return kind(given)
        shown = given if len(given) < 40 else f"{given[:40]}..."
        raise UserError(f"{name} {shown}: give a {'whole ' * (kind is int)}number of {span}")

    return argument(form, text, type=checked, default=default, **options)


def together(*parts: Part) -> Part:
    """Several parts as one."""

    return lambda parser: [action for part in parts for action in part(parser) or ()]


def group(title: str, *parts: Part, text: str | None = None) -> Part:
    """Parts under a title of their own in the help."""
    return lambda parser: together(*parts)(parser.add_argument_group(title, text))


def settings(examples: str, flag: str = "--set") -> Part:
    """`--set PATH=VALUE`, as often as wanted."""
    text = f"replace a setting, such as {examples}"
    return argument(f"{flag} PATH=VALUE", text, action="append", default=[])


def checkpoint(names: str = "best, last or a step's number (default: best)") -> Part:
    """`--checkpoint`, with the names it takes."""
    return argument("--checkpoint NAME", names)


TRUST_CODE = switch(
    "--trust-code", "import the modules that a folder names, such as its author's block"
)
