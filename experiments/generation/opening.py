"""Which model a command of generation is given, and how it is opened."""

import dataclasses
import os

import keras

from experiments.kind import read_kind
from experiments.pretraining.run import PretrainingRun
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.decoding import TextGenerator
from macaron_tf.errors import UserError

# What runs of other kinds are for.
_OTHER_COMMANDS = {
    "translation": "python -m experiments.translate translate",
    "finetuning": "python -m experiments.finetune predict",
    "embedding": "python -m experiments.embed encode",
    "pretraining": "python -m experiments.pretrain fill",
}


@dataclasses.dataclass(frozen=True)
class OpenedModel:
    """A language model with its weights.

    Attributes:
        name: what tables call it.
        network: a `LanguageModel`, or what has its `start`, `step`, `hidden_states` and `logits`.
        vocabulary: the one it was trained with.
        longest: tokens of a row beyond which it knows no position; None = any number.
        window: tokens of the rows that it was trained on.
        checkpoint: which weights.
    """

    name: str
    network: keras.Model
    vocabulary: PieceVocabulary
    longest: int | None
    window: int
    checkpoint: str

    def generator(self) -> TextGenerator:
        """What continues texts with it."""
        return TextGenerator(self.network, self.vocabulary, self.longest)


def open_model(path: str | os.PathLike, checkpoint: str | None = None) -> OpenedModel:
    """Opens a run that has learnt to go on with texts.

    Args:
        path: its folder, `gs://` included.
        checkpoint: which weights, see `Run.checkpoint`.

    Raises:
        UserError: it is no run, one of another kind or objective, or has no such checkpoint.
    """
    kind = read_kind(path)
    if kind != "pretraining":
        raise _no_generator(path, kind)
    run = PretrainingRun.open(path)
    if run.recipe.objective not in CAUSAL:
        raise _no_generator(path, kind)
    weights = run.checkpoint(checkpoint)
    network = run.load_network(weights)
    window = run.recipe.corpus.sequence_length
    # Learned positions behind the rows of the training have learnt nothing.
    longest = window if network.config.longest is not None else None
    return OpenedModel(run.path.name, network, run.vocabulary, longest, window, weights.name)


# The objectives of pre-training whose networks go on with a text by themselves.
CAUSAL = ("causal_language",)


def _no_generator(path: str | os.PathLike, kind: str) -> UserError:
    if kind not in _OTHER_COMMANDS:
        return UserError(f"{path} is a run of an unknown kind {kind!r}: give a pre-training run")
    return UserError(
        f"{path} has not learnt to go on with a text: give a run of the objective causal_language, "
        f"such as gpt2_tiny's, or ask this one by `{_OTHER_COMMANDS[kind]} {path}`"
    )
