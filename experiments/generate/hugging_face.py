"""Hugging Face directories as models that write text: GPT, GPT-2, T5 and BART."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments.generate.opening import OpenedModel
from experiments.kind import library_folder
from macaron_tf.decoding import SequenceGenerator, TextGenerator
from macaron_tf.errors import UserError
from macaron_tf.interop.hugging_face_language_models import read_hugging_face_language_model
from macaron_tf.interop.hugging_face_text_models import is_text_model, read_hugging_face_text_model

_WINDOW = 512  # tokens that T5, which has no greatest length, was trained on


@dataclasses.dataclass(frozen=True)
class ImportedTextModel(OpenedModel):
    """An encoder-decoder that was pre-trained elsewhere.

    Attributes: those of `OpenedModel`, and
        sentinels, ends: see `TextModelImport`.
    """

    sentinels: int = 0
    ends: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def generator(self) -> TextGenerator:
        return SequenceGenerator(
            self.network, self.vocabulary, self.longest, self.sentinels, **self.ends
        )


def open_hugging_face(
    given: str, checkpoint: str | None = None, causal: bool = False
) -> OpenedModel:
    """Opens a directory, see `open_model`.

    Args:
        given: `hugging-face:DIR`.
        checkpoint: there is none to choose.
        causal: as of `open_model`.

    Raises:
        UserError: there is no such directory, its model or tokenizer cannot be read, or it does
            not go on with texts where `causal` asks for that.
    """
    if checkpoint:
        raise UserError(f"{given} has no checkpoints: leave --checkpoint {checkpoint} out")
    folder = library_folder(given)
    if is_text_model(folder):
        if causal:
            raise UserError(
                f"{given} answers texts and does not say how likely one is: give a GPT or "
                f"GPT-2, or `python -m experiments.generate complete {given}`"
            )
        text = read_hugging_face_text_model(folder)
        longest = text.model.config.longest
        return ImportedTextModel(
            folder.name,
            text.model,
            text.vocabulary,
            longest,
            longest or _WINDOW,
            given,
            sentinels=text.sentinels,
            ends=text.ends,
        )
    found = read_hugging_face_language_model(folder)
    if found.vocabulary is None:
        raise UserError(
            f"{given} is a GPT without a tokenizer: put its vocab.json and merges.txt there"
        )
    longest, starts = found.model.config.longest, found.starts
    opened = (folder.name, found.model, found.vocabulary, longest, longest, given)
    return OpenedModel(*opened, starts=starts)
