"""Parsers of the commands: sub-commands and the options that several commands share."""

import argparse
import re
from collections.abc import Callable

from macaron_tf.errors import UserError

# macaron_tf.distribution.STRATEGIES, which cannot be imported without TensorFlow.
_STRATEGIES = ("cpu", "one_gpu", "mirrored", "multi_worker", "tpu")


def command_parser(
    prog: str, text: str, forms: str
) -> tuple[argparse.ArgumentParser, Callable[[str, str], argparse.ArgumentParser]]:
    """A parser of sub-commands.

    Args:
        prog: the command line without its arguments.
        text: the help, examples included.
        forms: the last part of every help, such as the forms of sources.

    Returns:
        The parser, and `command(name, text)`, which adds a command and returns its parser.
    """
    layout = dict(epilog=forms, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser = argparse.ArgumentParser(prog=prog, description=text, **layout)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, **layout)

    return parser, command


def source_forms(forms: dict[str, str]) -> str:
    """A line for each form of source, such as `macaron_tf.data.sources.names.PAIRS`."""
    width = max(map(len, forms))
    return "".join(f"  {form:{width}}  {text}\n" for form, text in forms.items())


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


def recipe_options(parser: argparse.ArgumentParser, settings: str) -> None:
    """The argument RECIPE, its data and its `--set`, with examples of `settings`."""
    parser.add_argument("recipe", help="name of a recipe; `recipes` lists them")
    tfds_options(parser)
    set_option(parser, settings)


def run_to_train(parser: argparse.ArgumentParser) -> None:
    """The argument RUN of a training."""
    parser.add_argument("run", help="folder of the run; made, or resumed where it exists")


def vocabulary_option(parser: argparse.ArgumentParser) -> None:
    """`--vocabulary` of a command that otherwise trains one."""
    parser.add_argument(
        "--vocabulary", metavar="DIR", help="use this vocabulary instead of training one"
    )


def run_option(
    parser: argparse.ArgumentParser, names: str = "best, last or a step's number (default: best)"
) -> None:
    """The argument RUN, and `--checkpoint` with the names it takes."""
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("--checkpoint", metavar="NAME", help=names)


def init_options(parser: argparse.ArgumentParser) -> None:
    """`--model` and `--vocabulary`, which go with `--init none`, and `--lower-case`."""
    parser.add_argument("--model", metavar="NAME", help="of the model catalog, with --init none")
    parser.add_argument("--vocabulary", metavar="DIR", help="a vocabulary, with --init none")
    lower_case_option(parser)


def lower_case_option(parser: argparse.ArgumentParser) -> None:
    """`--lower-case` and `--no-lower-case`."""
    parser.add_argument(
        "--lower-case",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether a hugging-face: model lower-cases, where its files do not say",
    )


def checkpoint_option(parser: argparse.ArgumentParser) -> None:
    """`--checkpoint NAME`."""
    parser.add_argument(
        "--checkpoint", metavar="NAME", help="best, last or a step's number (default: best)"
    )


def count_option(
    parser: argparse.ArgumentParser, flag: str, text: str, least: int = 1, **more
) -> None:
    """A flag that takes a whole number of at least `least`; others are refused in a sentence.

    Args:
        text: the help.
        more: `default` or `metavar` of `add_argument`.
    """

    def count(given: str) -> int:
        if not re.fullmatch("-?[0-9]+", given) or int(given) < least:
            raise UserError(f"{flag} {given}: give a whole number of {least} or more")
        return int(given)

    parser.add_argument(flag, type=count, help=text, **{"metavar": "N", **more})


def recipes_command(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """The command `recipes [NAME]`."""
    parser = command("recipes", "list the recipes, or all settings of one")
    parser.add_argument("name", nargs="?", help="a recipe: every setting, its range, what it is")


def strategy_options(parser: argparse.ArgumentParser) -> None:
    """`--strategy`, `--replicas` and `--tpu`."""
    group = parser.add_argument_group(
        "devices", "batches and results are the same on any number of devices"
    )
    group.add_argument(
        "--strategy",
        choices=_STRATEGIES,
        help="mirrored: all of this machine's GPUs; multi_worker: this process and the others that "
        "TF_CONFIG names; by default the first GPU, or the CPU without one",
    )
    group.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        help="with mirrored: N devices; without a GPU N parts of the CPU (default 2)",
    )
    group.add_argument(
        "--tpu", metavar="NAME", help="with tpu: its name, or local on a TPU VM (default local)"
    )


def devices(options: argparse.Namespace):
    """The strategy that the options ask for; TensorFlow must not have been used before.

    Returns:
        A `tf.distribute.Strategy`; None where the command has no such options.

    Raises:
        UserError: see `macaron_tf.distribution.make_strategy`.
    """
    if not hasattr(options, "strategy"):
        return None
    from macaron_tf.distribution import make_strategy  # --help answers without TensorFlow

    return make_strategy(options.strategy, options.tpu, options.replicas)
