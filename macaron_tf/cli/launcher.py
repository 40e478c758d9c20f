"""The program `macaron COMMAND`, which also runs as `python -m macaron_tf COMMAND`.

The commands are in the packages `experiments` and `export`. A checkout has these packages beside
`macaron_tf`. An installed wheel has them in `macaron_tf/commands`, because a wheel should have only
one top-level package. The program adds the folder of these packages to `sys.path`, so that modules
have the same names in a checkout and in a wheel. Training runs record the module names.
"""

import argparse
import importlib
import sys
import types

from macaron_tf import __version__
from macaron_tf.cli.arguments import Layout
from macaron_tf.cli.program import begin_command, exit_on_user_error
from macaron_tf.errors import COMMANDS_FOLDER, nearest

RUNS = "experiments.commands"  # the module of `train`, `evaluate`, `predict` and the like
# Maps each other command to its module and its help text.
COMMANDS = {
    "compare": ("experiments.compare.commands", "compare blocks, schemes or recipes by a test"),
    "few_shot": ("experiments.few_shot.commands", "evaluate language models with few-shot prompts"),
    "look": ("experiments.look", "plot attention weights and the memory of SwishRNN layers"),
    "export": ("export.saved_model", "export a trained model as a SavedModel"),
    "serve": ("export.serve", "serve a SavedModel on this machine over HTTP"),
}
_TEXT = """\
Train, evaluate, export and serve Macaron Net, SwishRNN and related models.

    macaron train demo runs/demo
    echo "Turn on the light." | macaron predict runs/demo
    macaron export runs/demo served/demo
    macaron serve served/demo

`macaron COMMAND --help` shows the examples and flags of a command.

commands:
"""


def import_command(module: str) -> types.ModuleType:
    """Imports a module of commands."""
    if str(COMMANDS_FOLDER) not in sys.path:
        # At the beginning, because the working directory may have a folder `experiments` too.
        sys.path.insert(0, str(COMMANDS_FOLDER))
    return importlib.import_module(module)


@exit_on_user_error
def main(arguments: list[str] | None = None) -> int:
    """Runs the command that the arguments name."""
    if arguments is None:  # a call from Python keeps its process's signal handlers
        begin_command()
    runs = import_command(RUNS)
    texts = {name: text.partition("\n")[0] for name, (text, *_) in runs.COMMANDS.items()}
    texts |= {name: text for name, (_, text) in COMMANDS.items()}
    width = max(map(len, texts))
    lines = (f"  {name:{width}}  {text}\n" for name, text in texts.items())
    parser = argparse.ArgumentParser(
        "macaron", "macaron COMMAND ...", _TEXT + "".join(lines), formatter_class=Layout
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("command", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    name = options.command
    if name not in texts:
        parser.error(f"no command is called {name!r}: see macaron --help{nearest(name, texts)}")
    if name in COMMANDS:
        return import_command(COMMANDS[name][0]).main(options.arguments)
    return runs.main([name, *options.arguments])
