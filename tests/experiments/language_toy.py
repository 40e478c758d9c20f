"""A language model of the letters' language, trained by the command line in seconds."""

import functools
import pathlib

from experiments.pretrain.__main__ import main
from tests.experiments.pretraining_toy import flags, toy_settings, write_documents


@functools.cache
def train_language_toy(folder: pathlib.Path, kind: str = "byte_bpe", steps: int = 40) -> str:
    """Trains in FOLDER/KIND and returns that run's path.

    Args:
        folder: holds the documents too.
        kind: of the vocabulary.
        steps: updates.
    """
    (folder / "text").mkdir(exist_ok=True)
    size = 272 if kind == "byte_bpe" else 27
    settings = toy_settings(write_documents(folder / "text"), steps)
    settings += [f"vocabulary.size={size}", f"vocabulary.kind={kind}"]
    run = str(folder / kind)
    assert main(["train", "gpt2_tiny", run, *flags(settings)]) == 0
    return run
