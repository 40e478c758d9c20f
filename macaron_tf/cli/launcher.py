"""The program `macaron COMMAND`, which also runs as `python -m macaron_tf COMMAND`.

The commands are in the packages `experiments` and `export`. A checkout has these packages beside
`macaron_tf`. An installed wheel has them in `macaron_tf/commands`, because a wheel should have only
one top-level package. The program adds the folder of these packages to `sys.path`, so that modules
have the same names in a checkout and in a wheel. Training runs record the module names.
"""

import argparse
import importlib
import sys
from collections.abc import Callable

from macaron_tf import __version__
from macaron_tf.cli.arguments import Parser
from macaron_tf.cli.program import begin_command, exit_on_user_error
from macaron_tf.errors import COMMANDS_FOLDER, nearest

# Maps each command to its module and its help text.
COMMANDS = {
    "translate": (
        "experiments.translate.commands",
        "train and evaluate translation models; translate text",
    ),
    "pretrain": (
        "experiments.pretrain.commands",
        "pre-train BERT, GPT and other models; predict masked words",
    ),
    "finetune": (
        "experiments.finetune.commands",
        "fine-tune for classification, regression, tagging or question answering",
    ),
    "embed": ("experiments.embed.commands", "train sentence encoders; encode and search sentences"),
    "generate": ("experiments.generate.commands", "continue text with a language model"),
    "text_to_text": (
        "experiments.text_to_text.commands",
        "fine-tune T5 and BART on text-to-text tasks",
    ),
    "few_shot": ("experiments.few_shot.commands", "evaluate language models with few-shot prompts"),
    "elmo": ("experiments.elmo.commands", "train ELMo and compute contextual word vectors"),
    "tcn": ("experiments.tcn.commands", "compare temporal convolutional networks with RNNs"),
    "export": ("export.saved_model", "export a trained model as a SavedModel"),
    "keras_model": ("export.keras_model", "export a .keras file and a vocabulary as a SavedModel"),
    "hugging_face": (
        "export.hugging_face",
        "export a trained model for Hugging Face's transformers",
    ),
    "hub": ("export.hub", "upload a trained model and its model card to the Hugging Face Hub"),
    "serve": ("export.serve", "serve a SavedModel on this machine over HTTP"),
    "demo": (
        "experiments.demo.commands",
        "train, score, export and serve a translator in 3 to 6 minutes",
    ),
    "look": ("experiments.look", "plot attention weights and the memory of SwishRNN layers"),
    "compare": (
        "experiments.compare.commands",
        "compare blocks, splitting schemes or recipes over several seeds",
    ),
}
_TEXT = """\
Train, evaluate, export and serve Macaron Net, SwishRNN and related models.

    macaron translate train demo runs/demo
    echo "Turn on the light." | macaron translate translate runs/demo
    macaron export runs/demo served/demo
    macaron serve served/demo

`macaron COMMAND --help` shows the examples and flags of a command.

commands:
"""


def command(name: str) -> Callable[[list[str]], int]:
    """Imports the module of a command, and returns its `main`, which returns the exit status."""
    if str(COMMANDS_FOLDER) not in sys.path:
        # At the beginning, because the working directory may have a folder `experiments` too.
        sys.path.insert(0, str(COMMANDS_FOLDER))
    return importlib.import_module(COMMANDS[name][0]).main


@exit_on_user_error
def main(arguments: list[str] | None = None) -> int:
    """Runs the command that the arguments name."""
    begin_command()
    width = max(map(len, COMMANDS))
    lines = (f"  {name:{width}}  {text}\n" for name, (_, text) in COMMANDS.items())
    parser = Parser(prog="macaron", usage="macaron COMMAND ...", description=_TEXT + "".join(lines))
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("command", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.command not in COMMANDS:
        suggestion = nearest(options.command, COMMANDS)
        parser.error(f"no command is called {options.command!r}: see macaron --help{suggestion}")
    return command(options.command)(options.arguments)
