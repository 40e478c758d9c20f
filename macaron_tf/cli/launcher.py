"""Launcher of all commands: `python -m macaron_tf COMMAND`, or `macaron COMMAND` for short.

The commands are in the packages `experiments` and `export`. A checkout has these packages beside
`macaron_tf`. An installed wheel has them in `macaron_tf/commands`, because a wheel should have only
one top-level package. The launcher adds the folder of these packages to `sys.path`, so that modules
have the same names in a checkout and in a wheel. Training runs record the module names, and child
processes import the modules by name.
"""

import argparse
import os
import pathlib
import runpy
import sys

from macaron_tf import __version__
from macaron_tf.cli.program import begin_command, exit_on_user_error
from macaron_tf.command_names import ALIASES, COMMANDS, FOLDER, PREFIX_VARIABLE, SCRIPT, command_of
from macaron_tf.errors import nearest

_TEXT = """\
Train, evaluate, export and serve Macaron Net, SwishRNN and related models.

    {prefix} translate train demo runs/demo
    echo "Turn on the light." | {prefix} translate translate runs/demo
    {prefix} export runs/demo served/demo
    {prefix} serve served/demo

`{prefix} COMMAND --help` shows the examples and flags of a command.

commands:
"""


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """Parses the name of a command, and runs the command's module as `python -m` would do."""
    begin_command()
    is_script = pathlib.PurePath(sys.argv[0]).name == SCRIPT
    prefix = SCRIPT if is_script else "python -m macaron_tf"
    width = max(map(len, COMMANDS))
    lines = (f"  {name:{width}}  {text}\n" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=prefix,
        usage=f"{prefix} COMMAND ...",
        description=_TEXT.format(prefix=prefix) + "".join(lines),
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
        if name := command_of(options.command):
            parser.error(f"no command is called {options.command!r}: use {prefix} {name}")
        suggestion = nearest(options.command, COMMANDS)
        parser.error(f"no command is called {options.command!r}: see {prefix} --help{suggestion}")
    module, _ = COMMANDS[options.command]
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), PREFIX_VARIABLE: prefix}
    sys.argv = [f"{prefix} {options.command}", *options.arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
