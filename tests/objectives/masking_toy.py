"""A vocabulary and rows of it, for tests of what is masked."""

import dataclasses

import numpy as np

UNK, CLS, SEP, MASK = 1, 2, 3, 4
CHOICES = ("tokens", "whole_words", "ngrams", "spans")
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


# Ids 5 to 44 begin a word and 45 to 59 go on with it.
WORD_VOCABULARY = ToyVocabulary(continuing=15)


def words_of(sizes, seed=0):
    """Token ids of words of these sizes, in `WORD_VOCABULARY`."""
    rng = np.random.default_rng(seed)
    return [
        int(rng.integers(5, 45) if place == 0 else rng.integers(45, 60))
        for size in sizes
        for place in range(size)
    ]


def text_rows(rows, length, seed=0):
    """`[CLS] words [SEP]` of words like those of text: 1 to 5 pieces, 1.4 on average."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((rows, length), "int32")
    for row in ids:
        sizes = rng.choice([1, 2, 3, 4, 5], length, p=[0.75, 0.15, 0.06, 0.03, 0.01])
        row[:] = [CLS, *words_of(sizes, int(rng.integers(1 << 30)))[: length - 2], SEP]
    return ids


def word_numbers(row):
    """The word of each token, -1 for special ones."""
    starts = (row < 45) | (np.r_[0, row[:-1]] < 5)
    return np.where(row < 5, -1, np.cumsum(starts))
