"""Opens a model that writes text: a run, or a Hugging Face directory."""

import os

from experiments.pretrain.recipe import CAUSAL, CORRUPTING
from experiments.run import read_kind
from experiments.text_to_text.run import TaskGenerator
from macaron_tf.decoding import SequenceGenerator, TextGenerator, TextScorer
from macaron_tf.errors import UserError
from macaron_tf.models.pretrained import Pretrained
from macaron_tf.pretrained import is_library, load, run_place

_WINDOW = 512  # tokens that T5, which has no greatest length, was trained on
# The commands for runs of other kinds.
_OTHER_COMMANDS = {
    "translation": "translate translate",
    "finetuning": "finetune predict",
    "embedding": "embed encode",
    "text_to_text": "text_to_text predict",
    "elmo": "elmo embed",
    "pretraining": "pretrain fill",
}


class OpenedModel(Pretrained):
    """A model that writes text."""

    @property
    def window(self) -> int:
        """Tokens of the rows that it was trained on."""
        return self.trained_length or self.config.longest or _WINDOW

    @property
    def longest(self) -> int | None:
        """Tokens of a row, or a source, beyond which it knows no position; None = any number."""
        if self.answers:
            return self.trained_length
        if self.trained_length and self.config.longest is not None:
            # Learned positions behind the rows of the training have learnt nothing. Corrupted texts
            # are read without [CLS].
            return self.trained_length - (self.objective in CORRUPTING)
        return self.config.longest

    def generator(self) -> TextGenerator:
        """The generator that goes on with texts, or answers them."""
        if self.answers:
            return TaskGenerator(self.network, self.vocabulary, **self.answers)
        if self.objective in CORRUPTING:
            return SequenceGenerator(
                self.network, self.vocabulary, self.longest, self.sentinels, **self.ends
            )
        return TextGenerator(self.network, self.vocabulary, self.longest, self.starts)

    def scorer(self, window: int) -> TextScorer:
        """The scorer of texts, in rows of `window` tokens."""
        return TextScorer(self.network, self.vocabulary, window, starts=self.starts)


def open_model(
    path: str | os.PathLike, checkpoint: str | None = None, causal: bool = False
) -> OpenedModel:
    """Opens a pre-training or a text-to-text run, which have learnt to write text.

    Args:
        path: RUN or RUN@CHECKPOINT, `gs://` included; or `hugging-face:DIR`.
        checkpoint: which weights, see `find_checkpoint`.
        causal: take a language model only, which says how likely any text is.
    """
    given = os.fspath(path)
    library = is_library(given)
    if library and checkpoint:
        raise UserError(f"{given} has no checkpoints: leave --checkpoint {checkpoint} out")
    kind = "" if library else read_kind(run_place(given)[0])
    if kind not in (("", "pretraining") if causal else ("", "pretraining", "text_to_text")):
        raise _no_writer(given, kind)
    opened = OpenedModel(**vars(load(f"{given}@{checkpoint}" if checkpoint else given)))
    if library and causal and opened.objective in CORRUPTING:
        raise UserError(
            f"{given} answers texts and does not say how likely one is: give a GPT or "
            f"GPT-2, or `python -m experiments.generate complete {given}`"
        )
    known = CAUSAL if causal else (*CAUSAL, *CORRUPTING)
    if opened.objective not in known and not opened.answers:
        raise _no_writer(given, kind, opened.objective)
    if opened.vocabulary is None:
        named = "GPT" if opened.objective in CAUSAL else "model"
        raise UserError(f"{given} is a {named} without a tokenizer: put its files there")
    return opened


def _no_writer(given: str, kind: str, objective: str | None = None) -> UserError:
    if kind not in _OTHER_COMMANDS:
        named = f"of kind {kind!r}" if kind else f"a model of {objective or 'another kind'}"
        return UserError(
            f"{given} is {named} and writes no text: give a pre-training run, or a GPT, GPT-2, T5 "
            "or BART of Hugging Face"
        )
    command = "generate complete" if objective in CORRUPTING else _OTHER_COMMANDS[kind]
    return UserError(
        f"{given} has not learnt to go on with a text: give a run of the objective "
        "causal_language, such as gpt2_tiny's, or ask this one by `python -m "
        f"experiments.{command} {given}`"
    )
