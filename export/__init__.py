"""Commands that export a trained model, serve an exported model, and query a server."""

import sys

from macaron_tf.cli.program import begin_command

if sys.argv[:1] == ["-m"]:  # `python -m` is locating a module, so this process runs a command
    begin_command()
