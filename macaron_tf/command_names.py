"""Names of the commands, and how messages spell them."""

import os
import pathlib
import re

# The folder of the packages of commands: the checkout's root, or `commands` in an installed wheel.
_INSTALLED = pathlib.Path(__file__).with_name("commands")
FOLDER = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1]
# The script that the package installs, and an environment variable. In the variable, the launcher
# (`macaron_tf.cli.launcher`) tells all processes of a command how the user started it.
SCRIPT, FORM = "macaron", "MACARON_TF_COMMAND"
# For each command the module that `python -m` runs in a checkout, and its help.
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
# Commands that two words name as well.
ALIASES = {("export", "hugging-face"): "hugging_face", ("export", "hub"): "hub"}


def as_typed(text: str) -> str:
    """Rewrites this project's commands in a text the way the user types them.

    This is the way this process was started, if a launcher started it. Otherwise, an installed
    wheel's commands become `macaron NAME`, and a checkout's stay `python -m MODULE`.
    """
    form = os.environ.get(FORM) or (SCRIPT if FOLDER == _INSTALLED else "")
    return spelled(text, form) if form else text


def spelled(text: str, form: str = SCRIPT) -> str:
    """Replaces each `python -m MODULE` in a text by `FORM NAME`, if the module is a command."""

    def command(found: re.Match) -> str:
        name = name_of(found[1])
        return f"{form} {name}" if name else found[0]

    return re.sub(r"python\s+-m\s+((?:experiments|export)(?:\.\w+)+)", command, text)


def name_of(module: str) -> str:
    """The name of a module's command; "" if it is none.

    Args:
        module: full name of the module, or the last part of it.
    """
    known = {place: name for name, (place, _) in COMMANDS.items()}
    return known.get(module) or {m.rpartition(".")[2]: n for m, n in known.items()}.get(module, "")
