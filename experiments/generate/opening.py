"""Which model a command of generation is given, and how it is opened."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import keras

from experiments.pretrain.recipe import CAUSAL, CORRUPTING, PretrainingRecipe
from experiments.pretrain.run import PretrainingRun
from experiments.run import read_kind
from experiments.text_to_text.generator import TaskGenerator
from experiments.text_to_text.recipe import TextRecipe
from experiments.text_to_text.run import TextRun
from macaron_tf.decoding import SequenceGenerator, TextGenerator, TextScorer
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderDecoder, LanguageModel
from macaron_tf.objectives.corruption import SENTINELS
from macaron_tf.pretrained import load
from macaron_tf.text.base import PieceVocabulary

_WINDOW = 512  # tokens that T5, which has no greatest length, was trained on
# What runs of other kinds are for.
_OTHER_COMMANDS = {
    "translation": "python -m experiments.translate translate",
    "finetuning": "python -m experiments.finetune predict",
    "embedding": "python -m experiments.embed encode",
    "text_to_text": "python -m experiments.text_to_text predict",
    "elmo": "python -m experiments.elmo embed",
    "pretraining": "python -m experiments.pretrain fill",
}


@dataclasses.dataclass(frozen=True)
class OpenedModel:
    """A model that writes text, with its weights.

    Attributes:
        name: what tables call it.
        network: a `LanguageModel`, an `EncoderDecoder`, or what has their `start` and `step`.
        vocabulary: the one it was trained with.
        longest: tokens of a row (or of a source) beyond which it knows no position; None = any
            number.
        window: tokens of the rows that it was trained on.
        checkpoint: which weights.
        objective: what it has learnt, see `PretrainingRecipe`.
        starts: whether it begins texts, behind [CLS]; else it only goes on with them.
        sentinels, ends: of an encoder-decoder, see `Pretrained`.
    """

    name: str
    network: keras.Model
    vocabulary: PieceVocabulary
    longest: int | None
    window: int
    checkpoint: str
    objective: str = "causal_language"
    starts: bool = True
    sentinels: int = 0
    ends: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def generator(self) -> TextGenerator:
        """What goes on with texts, or answers them."""
        if self.objective in CORRUPTING:
            return SequenceGenerator(
                self.network, self.vocabulary, self.longest, self.sentinels, **self.ends
            )
        return TextGenerator(self.network, self.vocabulary, self.longest, self.starts)

    def scorer(self, window: int) -> TextScorer:
        """What says how likely texts are, in rows of `window` tokens."""
        return TextScorer(self.network, self.vocabulary, window, starts=self.starts)


@dataclasses.dataclass(frozen=True)
class OpenedTask(OpenedModel):
    """A text-to-text run, which answers lines of its task.

    Attributes: those of `OpenedModel`, and
        recipe: of the run.
    """

    recipe: TextRecipe | None = None

    def generator(self) -> TextGenerator:
        return TaskGenerator(self.network, self.vocabulary, self.recipe)


def open_model(
    path: str | os.PathLike, checkpoint: str | None = None, causal: bool = False
) -> OpenedModel:
    """Opens a pre-training or a text-to-text run, which have learnt to write text.

    Args:
        path: its folder, `gs://` included; or `hugging-face:DIR`.
        checkpoint: which weights, see `Run.checkpoint`.
        causal: take a language model only, which says how likely any text is.

    Raises:
        UserError: it is no run, one of another kind or objective, or has no such checkpoint.
    """
    if os.fspath(path).startswith("hugging-face:"):
        return _open_hugging_face(os.fspath(path), checkpoint, causal)
    kind = read_kind(path)
    if kind == TextRecipe.kind and not causal:
        return _open_task(path, checkpoint)
    if kind != "pretraining":
        raise _no_writer(path, kind)
    run = PretrainingRun.open(path)
    if run.recipe.objective not in (CAUSAL if causal else (*CAUSAL, *CORRUPTING)):
        raise _no_writer(path, kind, run.recipe)
    weights = run.checkpoint(checkpoint)
    network = run.load_network(weights)
    window = run.recipe.corpus.sequence_length
    # Learned positions behind the rows of the training have learnt nothing.
    longest = window if network.config.longest is not None else None
    if longest is not None and run.recipe.objective in CORRUPTING:
        longest -= 1  # its texts are read without [CLS]
    return OpenedModel(
        run.path.name,
        network,
        run.vocabulary,
        longest,
        window,
        weights.name,
        run.recipe.objective,
        sentinels=SENTINELS if run.recipe.objective == "span_corruption" else 0,
    )


def _open_hugging_face(given: str, checkpoint: str | None, causal: bool) -> OpenedModel:
    """A GPT, GPT-2, T5 or BART of Hugging Face."""
    if checkpoint:
        raise UserError(f"{given} has no checkpoints: leave --checkpoint {checkpoint} out")
    found = load(given)
    network, longest = found.network, found.config.longest
    if isinstance(network, EncoderDecoder) and causal:
        raise UserError(
            f"{given} answers texts and does not say how likely one is: give a GPT or "
            f"GPT-2, or `python -m experiments.generate complete {given}`"
        )
    if not isinstance(network, EncoderDecoder | LanguageModel):
        raise UserError(f"{given} writes no text: give a GPT, GPT-2, T5 or BART")
    if found.vocabulary is None:
        kind = "GPT" if isinstance(network, LanguageModel) else "model"
        raise UserError(f"{given} is a {kind} without a tokenizer: put its files there")
    objective = "causal_language"
    if isinstance(network, EncoderDecoder):
        objective = "denoising" if found.ends else "span_corruption"
    return OpenedModel(
        os.path.basename(os.path.normpath(given.partition(":")[2])),
        network,
        found.vocabulary,
        longest,
        longest or _WINDOW,
        given,
        objective,
        found.starts,
        found.sentinels,
        found.ends,
    )


def _open_task(path: str | os.PathLike, checkpoint: str | None) -> OpenedTask:
    run = TextRun.open(path)
    weights, most = run.checkpoint(checkpoint), run.recipe.max_source
    return OpenedTask(
        run.path.name,
        run.load_network(weights),
        run.vocabulary,
        most,
        most,
        weights.name,
        TextRecipe.kind,
        recipe=run.recipe,
    )


def _no_writer(
    path: str | os.PathLike, kind: str, recipe: PretrainingRecipe | None = None
) -> UserError:
    if kind not in _OTHER_COMMANDS:
        return UserError(f"{path} is of kind {kind!r} and writes no text: give a pre-training run")
    command = _OTHER_COMMANDS[kind]
    if recipe is not None and recipe.objective in CORRUPTING:
        command = "python -m experiments.generate complete"
    return UserError(
        f"{path} has not learnt to go on with a text: give a run of the objective causal_language, "
        f"such as gpt2_tiny's, or ask this one by `{command} {path}`"
    )
