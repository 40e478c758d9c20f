"""Launcher of all commands: `macaron COMMAND`, or `python -m macaron_tf COMMAND`.

The commands are in the packages `experiments` and `export`. A checkout has these packages beside
`macaron_tf`. An installed wheel has them in `macaron_tf/commands`, because a wheel should have only
one top-level package. The launcher adds the folder of these packages to `sys.path`, so that modules
have the same names in a checkout and in a wheel. Training runs record the module names, and child
processes import the modules by name.
"""

import argparse
import os
import runpy
import sys

from macaron_tf import __version__
from macaron_tf.cli.program import begin_command, exit_on_user_error
from macaron_tf.command_names import ALIASES, COMMANDS, FOLDER, SCRIPT
from macaron_tf.errors import nearest

_TEXT = """\
Train, evaluate, export and serve Macaron Net, SwishRNN and related models.

    macaron translate train demo runs/demo
    echo "Turn on the light." | macaron translate translate runs/demo
    macaron export runs/demo served/demo
    macaron serve served/demo

`macaron COMMAND --help` shows the examples and flags of a command.

commands:
"""


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Parses the name of a command, and runs the command's module as `python -m` would do."""
    begin_command()
    width = max(map(len, COMMANDS))
    lines = (f"  {name:{width}}  {text}\n" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=SCRIPT,
        usage=f"{SCRIPT} COMMAND ...",
        description=_TEXT + "".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("command", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    folder = str(FOLDER)
    # Insert at the beginning, because the working directory may have a folder `experiments` too.
    sys.path.insert(0, folder)
    if alias := ALIASES.get((options.command, *options.arguments[:1])):
        options.command, options.arguments = alias, options.arguments[1:]
    if options.command not in COMMANDS:
        suggestion = nearest(options.command, COMMANDS)
        parser.error(f"no command is called {options.command!r}: see {SCRIPT} --help{suggestion}")
    module, _ = COMMANDS[options.command]
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.argv = [f"{SCRIPT} {options.command}", *options.arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
