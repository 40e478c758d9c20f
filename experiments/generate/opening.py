"""Opens a model that writes text: a run, or a Hugging Face directory."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import keras

from experiments.pretrain.recipe import CAUSAL, CORRUPTING
from experiments.run import read_kind
from experiments.text_to_text.recipe import TextRecipe
from experiments.text_to_text.run import TaskGenerator, TextRun
from macaron_tf.decoding import SequenceGenerator, TextGenerator, TextScorer
from macaron_tf.errors import UserError
from macaron_tf.pretrained import is_library, load
from macaron_tf.text.base import PieceVocabulary

_WINDOW = 512  # tokens that T5, which has no greatest length, was trained on
# The commands for runs of other kinds.
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
        network: a `LanguageModel`, an `EncoderDecoder`, or another with their `init_decode` and
            `decode_step`.
        vocabulary: the one it was trained with.
        longest: tokens of a row (or of a source) beyond which it knows no position; None = any
            number.
        window: tokens of the rows that it was trained on.
        checkpoint: which weights.
        objective: of its training, see `PretrainingRecipe`.
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
        """The generator that goes on with texts, or answers them."""
        if self.objective in CORRUPTING:
            return SequenceGenerator(
                self.network, self.vocabulary, self.longest, self.sentinels, **self.ends
            )
        return TextGenerator(self.network, self.vocabulary, self.longest, self.starts)

    def scorer(self, window: int) -> TextScorer:
        """The scorer of texts, in rows of `window` tokens."""
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
        checkpoint: which weights, see `find_checkpoint`.
        causal: take a language model only, which says how likely any text is.

    Raises:
        UserError: it is no run, one of another kind or objective, or has no such checkpoint.
    """
    given = os.fspath(path)
    library = is_library(given)
    kind = "" if library else read_kind(path)
    if kind == TextRecipe.kind and not causal:
        return _open_task(path, checkpoint)
    if kind not in ("", "pretraining"):
        raise _no_writer(given, kind)
    if library and checkpoint:
        raise UserError(f"{given} has no checkpoints: leave --checkpoint {checkpoint} out")
    found = load(f"{given}@{checkpoint}" if checkpoint else given)
    if library and causal and found.objective in CORRUPTING:
        raise UserError(
            f"{given} answers texts and does not say how likely one is: give a GPT or "
            f"GPT-2, or `python -m experiments.generate complete {given}`"
        )
    if found.objective not in (CAUSAL if causal else (*CAUSAL, *CORRUPTING)):
        raise _no_writer(given, kind, found.objective)
    if found.vocabulary is None:
        named = "GPT" if found.objective in CAUSAL else "model"
        raise UserError(f"{given} is a {named} without a tokenizer: put its files there")
    longest = found.config.longest
    window = found.trained_length or longest or _WINDOW
    if found.trained_length and longest is not None:
        # Learned positions behind the rows of the training have learnt nothing. Corrupted texts
        # are read without [CLS].
        longest = window - (found.objective in CORRUPTING)
    return OpenedModel(
        found.name,
        found.network,
        found.vocabulary,
        longest,
        window,
        found.checkpoint,
        found.objective,
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


def _no_writer(given: str, kind: str, objective: str | None = None) -> UserError:
    if kind not in _OTHER_COMMANDS:
        named = f"of kind {kind!r}" if kind else f"a model of {objective or 'another kind'}"
        return UserError(
            f"{given} is {named} and writes no text: give a pre-training run, or a GPT, GPT-2, T5 "
            "or BART of Hugging Face"
        )
    command = _OTHER_COMMANDS[kind]
    if objective in CORRUPTING:
        command = "python -m experiments.generate complete"
    return UserError(
        f"{given} has not learnt to go on with a text: give a run of the objective "
        f"causal_language, such as gpt2_tiny's, or ask this one by `{command} {given}`"
    )
