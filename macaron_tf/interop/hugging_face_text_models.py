"""T5 and BART of Hugging Face with their tokenizers: text in, text out."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from macaron_tf.interop.hugging_face import read_config, read_json
from macaron_tf.interop.hugging_face_vocabularies import read_t5_vocabulary, read_vocabulary
from macaron_tf.interop.marian import read_bart
from macaron_tf.interop.t5 import read_t5
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.text.base import PieceVocabulary

TEXT_MODELS = ("t5", "bart")


@dataclasses.dataclass(frozen=True)
class TextModelImport:
    """What was read.

    Attributes:
        model: gives the same scores.
        vocabulary: cuts text into the model's ids.
        ids: `(V',)` int, at each of our ids the one of theirs; those that are no piece of the
            vocabulary and no sentinel are read and scored as their padding is.
        sentinels: how many of the ids behind the vocabulary's rows are one, as T5's are.
        ends: how a text and its answer begin where it is not as in models that are trained here:
            further arguments of `SequenceGenerator`.
    """

    model: EncoderDecoder
    vocabulary: PieceVocabulary
    ids: np.ndarray
    sentinels: int = 0
    ends: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def is_text_model(directory: pathlib.Path) -> bool:
    """Whether a Hugging Face directory is of one of these."""
    file = directory / "config.json"
    return file.is_file() and read_json(file).get("model_type") in TEXT_MODELS


def read_hugging_face_text_model(directory: str | pathlib.Path) -> TextModelImport:
    """Reads a T5 or a BART as `save_pretrained` of model and tokenizer writes it.

    Args:
        directory: holds what `read_t5` or `read_bart` reads, and `spiece.model`, or `vocab.json`
            and `merges.txt`, or `tokenizer.json`.

    Raises:
        UserError: a file is missing or damaged, or the model has what ours has no place for.
    """
    directory = pathlib.Path(directory)
    if read_config(directory, TEXT_MODELS)["model_type"] == "t5":
        vocabulary, pieces, sentinels = read_t5_vocabulary(directory)
        ids = _rows(vocabulary, pieces, sentinels)
        return TextModelImport(read_t5(directory, ids).model, vocabulary, ids, len(sentinels))
    vocabulary, pieces = read_vocabulary(directory)
    ids = _rows(vocabulary, pieces)
    # A source is <s> text </s>, an answer follows </s> <s>.
    start, end = vocabulary.cls_id, vocabulary.sep_id
    ends = {"source_start": (start,), "answer_start": (end, start)}
    return TextModelImport(read_bart(directory, ids).model, vocabulary, ids, ends=ends)


def _rows(
    vocabulary: PieceVocabulary, pieces: np.ndarray, sentinels: np.ndarray | tuple = ()
) -> np.ndarray:
    """Their ids of the table's rows: pieces and sentinels, both up to a multiple of 8."""
    ids = np.full(vocabulary.size + -(-len(sentinels) // 8) * 8, pieces[vocabulary.pad_id])
    ids[: len(pieces)] = np.where(pieces < 0, pieces[vocabulary.pad_id], pieces)
    ids[vocabulary.size : vocabulary.size + len(sentinels)] = sentinels
    return ids
