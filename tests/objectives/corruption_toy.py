"""A vocabulary and rows of it, for tests of what is done to whole texts."""

import dataclasses

import numpy as np

from tests.objectives.masking_toy import CLS, SEP, ToyVocabulary

STOP = 9


@dataclasses.dataclass(frozen=True)
class TextVocabulary(ToyVocabulary):
    """Id 9 is the full stop."""

    cls_id: int = CLS
    sep_id: int = SEP

    def encode_lines(self, lines):
        return [[10] * (len(line) - 1) + [STOP] for line in lines]


VOCABULARY = TextVocabulary()


def texts(lengths, room: int, first: int = 10) -> np.ndarray:
    """Texts `first`, `first` + 1, ... of so many tokens: `(B, R)` int32."""
    columns = np.arange(room)
    return np.where(columns < np.array(lengths)[:, None], columns + first, 0).astype("int32")


def rows_of(text: np.ndarray) -> np.ndarray:
    """`[CLS] text [SEP]`: `(B, R) -> (B, R + 2)`; a text of no token is a row of padding."""
    rows = np.zeros((len(text), text.shape[1] + 2), "int32")
    for row, one in zip(rows, text, strict=True):
        ids = one[one != 0]
        if len(ids):
            row[: len(ids) + 2] = [CLS, *ids, SEP]
    return rows
