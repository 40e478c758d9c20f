"""How much is masked, what is masked together, and what stands in its place."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from macaron_tf.errors import UserError

CHOICES = ("tokens", "whole_words", "ngrams", "spans")
FATES = ("token", "span")


class MaskingVocabulary(Protocol):
    """What masking asks of a vocabulary.

    Attributes:
        pieces: number of real pieces, without the padding rows of an embedding table.
        mask_id: id of [MASK].
        special_ids: ids that are neither masked nor drawn: padding, [UNK], [CLS], [SEP], [MASK].
    """

    pieces: int
    mask_id: int
    special_ids: Sequence[int]

    def word_starts(self) -> np.ndarray:
        """`(V,)` bool, False where a piece continues a word; not asked for by `"tokens"`."""


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """How many tokens are asked for and what stands in their place; the defaults are BERT's.

    `MaskingConfig(mask=1.0, random=0.0)` is the plain replacement of the SwishRNN paper,
    `MaskingConfig(choice="ngrams")` ALBERT's, `MaskingConfig(mask=1.0, random=0.0, round_up=True)`
    ELECTRA's and `MaskingConfig(choice="spans", fate="span", round_up=True)` SpanBERT's.

    Args:
        rate: part of a row's ordinary tokens that is asked for.
        mask: part of those that becomes [MASK].
        random: part of those that becomes a random piece; the rest stays as it is.
        choice: what is chosen: `"tokens"`; `"whole_words"`; `"ngrams"`, up to three whole words,
            n of them with p(n) ~ 1/n; `"spans"`, up to ten whole words, geometrically many.
        fate: whether every `"token"` becomes [MASK] or another piece by itself, or all those of
            a `"span"` (or n-gram, or word) that were chosen together. Random pieces are drawn
            singly all the same.
        round_up: of n ordinary tokens mask the next number above `rate n`, not the nearest.
        duplicates: how many masks a row has, taken in turn epoch by epoch (static masking; 10 in
            BERT's released data); None = a new one each time (dynamic).

    Raises:
        UserError: a field is out of its range; the sentence names the field.

    References: Devlin et al. 2018 (BERT), appendix A.1; Lan et al. 2020 (ALBERT), section 4.1;
    Joshi et al. 2020 (SpanBERT), section 3.1; Clark et al. 2020 (ELECTRA), section 2; Liu et al.
    2019 (RoBERTa), section 4.1, for static and dynamic masks.
    """

    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    choice: str = "tokens"
    fate: str = "token"
    round_up: bool = False
    duplicates: int | None = None

    def __post_init__(self):
        for name in ("rate", "mask", "random"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= 1:
                raise UserError(f"masking: {name} must be a number from 0 to 1, not {value!r}")
        if self.rate == 0:
            raise UserError("masking: rate must be above 0, or there is nothing to learn")
        if self.mask + self.random > 1:
            raise UserError(
                f"masking: mask and random must add up to 1 or less, not {self.mask} + "
                f"{self.random}"
            )
        for name, known in (("choice", CHOICES), ("fate", FATES)):
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"masking: {name} must be one of {', '.join(known)}, not {value!r}")
        if type(self.round_up) is not bool:
            raise UserError(f"masking: round_up must be true or false, not {self.round_up!r}")
        if self.duplicates is not None and (
            type(self.duplicates) is not int or self.duplicates < 1
        ):
            raise UserError(
                f"masking: duplicates must be 1 or more, or None, not {self.duplicates!r}"
            )

    def positions(self, length: int) -> int:
        """P, room for the masked positions of a row of L tokens: a multiple of 8."""
        return -(-self._most(length) // 8) * 8

    def counts(self, length: int) -> np.ndarray:
        """How many of n ordinary tokens are masked, `(L + 1,)` int32 for n from 0 to L."""
        rounded = self._most if self.round_up else lambda n: round(self.rate * n)
        counts = [max(1, rounded(n)) for n in range(length + 1)]
        return np.array([0, *counts[1:]], np.int32)

    def _most(self, length: int) -> int:
        # 0.07 * 100 is 7.000000000000001: no eighth token for that.
        return math.ceil(self.rate * length - 1e-9)
