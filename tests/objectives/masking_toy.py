"""A vocabulary and rows of it, for tests of what is masked."""

import dataclasses

import numpy as np

UNK, CLS, SEP, MASK = 1, 2, 3, 4
SPECIAL = (0, UNK, CLS, SEP, MASK)


@dataclasses.dataclass(frozen=True)
class ToyVocabulary:
    """Ids 0 to 4 are special; the last `continuing` pieces continue a word."""

    pieces: int = 60
    continuing: int = 0
    mask_id: int = MASK
    special_ids: tuple[int, ...] = SPECIAL

    @property
    def size(self) -> int:
        return -(-self.pieces // 8) * 8

    def word_starts(self) -> np.ndarray:
        return np.arange(self.size) < self.pieces - self.continuing


def full_rows(rows: int, length: int, pieces: int = 60, seed: int = 0) -> np.ndarray:
    """`[CLS] a ... [SEP]` without padding: `(B, L)` int32."""
    ids = np.random.default_rng(seed).integers(5, pieces, (rows, length)).astype("int32")
    ids[:, 0], ids[:, -1] = CLS, SEP
    return ids


def ragged_rows(lengths, length: int, pieces: int = 60, seed: int = 0) -> np.ndarray:
    """Rows of as many ordinary ids as `lengths` says, [CLS] before, two [SEP] and padding."""
    ids = np.random.default_rng(seed).integers(5, pieces, (len(lengths), length)).astype("int32")
    for row, count in zip(ids, lengths, strict=True):
        first = count // 2 + 1
        row[0] = CLS
        row[first + 1 : count + 2] = row[first : count + 1].copy()
        row[first] = row[count + 2] = SEP
        row[count + 3 :] = 0
    return ids
