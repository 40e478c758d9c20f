"""The commands' names, and how a message writes them."""

import os
import re

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
    "serve": ("export.serve", "serve a SavedModel on this machine, over REST and gRPC"),
    "client": ("export.client", "ask a server"),
    "demo": ("experiments.demo", "train, score, export and serve a translator in ten minutes"),
    "look": ("experiments.look", "pictures of attention, and of how far a recurrence remembers"),
    "compare": ("experiments.compare", "blocks, schemes or recipes, seed by seed, with a verdict"),
    "data_service": ("experiments.data_service", "make a training's batches on another machine"),
}
# Other spellings of a command, by its first two words.
ALIASES = {("export", "hugging-face"): "hugging_face"}


def as_typed(text: str) -> str:
    """Text with this project's commands in the form that the user started this process by."""
    form = os.environ.get(FORM)
    if not form:
        return text

    names = {module: name for name, (module, _) in COMMANDS.items()}

    def spelled(found: re.Match) -> str:
        return f"{form} {names[found[1]]}" if found[1] in names else found[0]

    return re.sub(r"python\s+-m\s+((?:experiments|export)(?:\.\w+)+)", spelled, text)
