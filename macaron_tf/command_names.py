"""Names of the commands, and how their packages are installed."""

import pathlib

# Parent folder of the packages `experiments` and `export`: the root of a checkout, or
# `macaron_tf/commands` in an installed wheel.
_INSTALLED = pathlib.Path(__file__).with_name("commands")
FOLDER = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1]
SCRIPT = "macaron"  # name of the installed script
# Maps each command to its module and its help text.
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
    "serve": ("export.serve", "serve a SavedModel on this machine over HTTP"),
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
