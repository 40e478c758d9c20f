"""The commands' names, and how a message writes them."""

import os
import pathlib
import re

# The packages of commands: beside this one in a checkout, within it in an installed wheel.
_INSTALLED = pathlib.Path(__file__).with_name("commands")
FOLDER = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1]
# The script that the package installs, and the variable by which the processes of one command know
# that it was started by the launcher, `macaron_tf.cli.launcher`: the words that it was started by.
SCRIPT, FORM = "macaron", "MACARON_TF_COMMAND"
# Name of a command: the module that `python -m` runs in a checkout, and its help.
COMMANDS = {
    "translate": ("experiments.translate", "translators: train, score, use"),
    "pretrain": ("experiments.pretrain", "BERT, GPT and other models of text: train, fill masks"),
    "finetune": ("experiments.finetune", "classes, numbers, tags and answers, from your table too"),
    "embed": ("experiments.embed", "sentence vectors: train, encode, search"),
    "generate": ("experiments.generate", "continue texts with a language model"),
    "text_to_text": ("experiments.text_to_text", "T5's tasks, each from text to text"),
    "few_shot": ("experiments.few_shot", "ask a language model by a few examples"),
    "elmo": ("experiments.elmo", "word vectors in context"),
    "tcn": ("experiments.tcn", "temporal convolutional networks"),
    "export": ("export.saved_model", "a run as a SavedModel"),
    "keras_model": ("export.keras_model", "a .keras file and its vocabulary as a SavedModel"),
    "hugging_face": ("export.hugging_face", "a run as a folder of Hugging Face's transformers"),
    "hub": ("export.hub", "a run, with its model card, on Hugging Face's hub"),
    "serve": ("export.serve", "serve a SavedModel on this machine, over REST and gRPC"),
    "client": ("export.client", "ask a server"),
    "demo": ("experiments.demo", "train, score, export and serve a translator in six minutes"),
    "look": ("experiments.look", "pictures of attention, and of how far a recurrence remembers"),
    "compare": ("experiments.compare", "blocks, schemes or recipes, seed by seed, with a verdict"),
    "data_service": ("experiments.data_service", "make a training's batches on another machine"),
}
# Other spellings of a command, by its first two words.
ALIASES = {("export", "hugging-face"): "hugging_face", ("export", "hub"): "hub"}


def as_typed(text: str) -> str:
    """Text with this project's commands as the user runs them.

    That is the form that started this process; otherwise `macaron NAME` where a wheel is
    installed, and the text's own `python -m MODULE` in a checkout.
    """
    form = os.environ.get(FORM) or (SCRIPT if FOLDER == _INSTALLED else "")
    return spelled(text, form) if form else text


def spelled(text: str, form: str = SCRIPT) -> str:
    """Text with `FORM NAME` for each `python -m MODULE` that is a command."""

    def command(found: re.Match) -> str:
        name = name_of(found[1])
        return f"{form} {name}" if name else found[0]

    return re.sub(r"python\s+-m\s+((?:experiments|export)(?:\.\w+)+)", command, text)


def name_of(module: str) -> str:
    """The command that a module is, also by the last part of its name; "" = none."""
    known = {place: name for name, (place, _) in COMMANDS.items()}
    return known.get(module) or {m.rpartition(".")[2]: n for m, n in known.items()}.get(module, "")
