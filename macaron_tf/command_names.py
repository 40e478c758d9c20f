"""Names of the commands, and the form in which messages show a command."""

import os
import pathlib
import re

# Parent folder of the packages `experiments` and `export`: the root of a checkout, or
# `macaron_tf/commands` in an installed wheel.
_INSTALLED = pathlib.Path(__file__).with_name("commands")
FOLDER = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1]
# SCRIPT is the name of the installed script. PREFIX_VARIABLE names an environment variable in which
# the launcher (`macaron_tf.cli.launcher`) tells child processes how the user started a command.
SCRIPT, PREFIX_VARIABLE = "macaron", "MACARON_TF_COMMAND"
# Maps each command to its module, which `python -m` runs in a checkout, and its help text.
COMMANDS = {
    "translate": ("experiments.translate", "train and evaluate translation models; translate text"),
    "pretrain": (
        "experiments.pretrain",
        "pre-train BERT, GPT and other models; predict masked words",
    ),
    "finetune": (
        "experiments.finetune",
        "fine-tune for classification, regression, tagging or question answering",
    ),
    "embed": ("experiments.embed", "train sentence encoders; encode and search sentences"),
    "generate": ("experiments.generate", "continue text with a language model"),
    "text_to_text": ("experiments.text_to_text", "fine-tune T5 and BART on text-to-text tasks"),
    "few_shot": ("experiments.few_shot", "evaluate language models with few-shot prompts"),
    "elmo": ("experiments.elmo", "train ELMo and compute contextual word vectors"),
    "tcn": ("experiments.tcn", "compare temporal convolutional networks with RNNs"),
    "export": ("export.saved_model", "export a trained model as a SavedModel"),
    "keras_model": ("export.keras_model", "export a .keras file and a vocabulary as a SavedModel"),
    "hugging_face": (
        "export.hugging_face",
        "export a trained model for Hugging Face's transformers",
    ),
    "hub": ("export.hub", "upload a trained model and its model card to the Hugging Face Hub"),
    "serve": ("export.serve", "serve a SavedModel on this machine over REST and gRPC"),
    "demo": ("experiments.demo", "train, score, export and serve a translator in 3 to 6 minutes"),
    "look": ("experiments.look", "plot attention weights and the memory of SwishRNN layers"),
    "compare": (
        "experiments.compare",
        "compare blocks, splitting schemes or recipes over several seeds",
    ),
}
# Two-word aliases of commands.
ALIASES = {("export", "hugging-face"): "hugging_face", ("export", "hub"): "hub"}


def install_command(extra: str) -> str:
    """Returns the command that installs an extra of this wheel or of this checkout."""
    if FOLDER == _INSTALLED:
        return f"pip install 'macaron_tf[{extra}]'"
    return f"pip install -e '{FOLDER}[{extra}]'"


def as_typed(text: str) -> str:
    """Rewrites the commands in a text to the form that the user types.

    For example, `python -m experiments.translate` becomes `macaron translate` if the user started
    this process by the script `macaron`. It becomes `python -m macaron_tf translate` if the user
    started this process by `python -m macaron_tf`. Otherwise, an installed wheel uses `macaron
    translate`, and a checkout leaves the text unchanged.
    """
    prefix = os.environ.get(PREFIX_VARIABLE) or (SCRIPT if FOLDER == _INSTALLED else "")
    return spelled(text, prefix) if prefix else text


def spelled(text: str, prefix: str = SCRIPT) -> str:
    """Replaces `python -m MODULE` in a text by `prefix` and the name of the module's command.

    With the prefix `macaron`, `python -m experiments.translate` becomes `macaron translate`.
    Modules that are not commands stay unchanged.
    """

    def command(match: re.Match) -> str:
        name = command_of(match[1])
        return f"{prefix} {name}" if name else match[0]

    return re.sub(r"python\s+-m\s+((?:experiments|export)(?:\.\w+)+)", command, text)


def command_of(module: str) -> str:
    """Returns the name of a module's command, or "" if the module is not a command.

    Args:
        module: full module name, such as "experiments.translate", or its last component.
    """
    commands = {module_name: name for name, (module_name, _) in COMMANDS.items()}
    return commands.get(module) or {m.rpartition(".")[2]: n for m, n in commands.items()}.get(
        module, ""
    )
