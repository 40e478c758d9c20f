"""Opens a model that writes text: a run, or a Hugging Face directory."""

import dataclasses
import os

from experiments.pretrain.recipe import CAUSAL, CORRUPTING
from experiments.run import read_kind
from experiments.text_to_text.recipe import TextRecipe
from experiments.text_to_text.run import TaskGenerator, TextRun
from macaron_tf.decoding import SequenceGenerator, TextGenerator, TextScorer
from macaron_tf.errors import UserError
from macaron_tf.models.pretrained import Pretrained
from macaron_tf.pretrained import is_library, load

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


@dataclasses.dataclass(frozen=True, eq=False)
class OpenedModel(Pretrained):
    """A model that writes text.

    Attributes:
        longest: tokens of a row (or of a source) beyond which it knows no position; None = any
            number.
        window: tokens of the rows that it was trained on.
        task: of a text-to-text run: names the task whose lines it answers, and their limits.
    """

    longest: int | None = None
    window: int = _WINDOW
    task: TextRecipe | None = None

    def generator(self) -> TextGenerator:
        """The generator that goes on with texts, or answers them."""
        if self.task:
            return TaskGenerator(self.network, self.vocabulary, self.task)
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
        path: its folder, `gs://` included; or `hugging-face:DIR`.
        checkpoint: which weights, see `find_checkpoint`.
        causal: take a language model only, which says how likely any text is.

    Raises:
        UserError: it is no run, one of another kind or objective, or has no such checkpoint.
    """
    given = os.fspath(path)
    library = is_library(given)
    kind = "" if library else read_kind(path)
    task = TextRun.open(path).recipe if kind == TextRecipe.kind and not causal else None
    if kind not in ("", "pretraining") and not task:
        raise _no_writer(given, kind)
    if library and checkpoint:
        raise UserError(f"{given} has no checkpoints: leave --checkpoint {checkpoint} out")
    found = load(f"{given}@{checkpoint}" if checkpoint else given)
    if task:
        most = task.max_source
        return OpenedModel(**vars(found), longest=most, window=most, task=task)
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
    return OpenedModel(**vars(found), longest=longest, window=window)


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
