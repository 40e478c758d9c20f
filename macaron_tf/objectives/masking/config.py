"""Settings of masking."""

import dataclasses
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Gt, Le

from macaron_tf.settings import Count, Fraction, Settings


@dataclasses.dataclass(frozen=True)
class MaskingConfig(Settings):
    """Number, choice and replacement of the predicted tokens; the defaults are BERT's.

    `MaskingConfig(mask=1.0, random=0.0)` is the plain replacement of the SwishRNN paper,
    `MaskingConfig(choice="ngrams")` ALBERT's, `MaskingConfig(mask=1.0, random=0.0, round_up=True)`
    ELECTRA's and `MaskingConfig(choice="spans", fate="span", round_up=True)` SpanBERT's.

    Attributes:
        rate: part of a row's ordinary tokens that is chosen and predicted.
        mask: part of these that becomes [MASK].
        random: part of these that becomes a random piece; the rest stays as it is.
        choice: units of the choice: `"tokens"`; `"whole_words"`; `"ngrams"`, up to three whole
            words, n of them with p(n) ~ 1/n; `"spans"`, up to ten whole words, geometrically many.
        fate: whether each `"token"` becomes [MASK] or another piece by itself, or all tokens of
            a `"span"` (or n-gram, or word) together. Random pieces are drawn singly all the same.
        round_up: of n ordinary tokens mask the next number above `rate n`, not the nearest.
        duplicates: number of masks of a row, taken in turn epoch by epoch (static masking; 10 in
            BERT's released data); None = a new one each time (dynamic).

    References: Devlin et al. 2018 (BERT), appendix A.1; Lan et al. 2020 (ALBERT), section 4.1;
    Joshi et al. 2020 (SpanBERT), section 3.1; Clark et al. 2020 (ELECTRA), section 2; Liu et al.
    2019 (RoBERTa), section 4.1, for static and dynamic masks.
    """

    section: ClassVar[str] = "masking"
    rate: Annotated[float, Gt(0), Le(1)] = 0.15
    mask: Fraction = 0.8
    random: Fraction = 0.1
    choice: Literal["tokens", "whole_words", "ngrams", "spans"] = "tokens"
    fate: Literal["token", "span"] = "token"
    round_up: bool = False
    duplicates: Count | None = None

    def check(self):
        if self.mask + self.random > 1:
            raise self.error(
                f"mask={self.mask} and masking.random={self.random} must add up to 1 or less"
            )

    def positions(self, length: int) -> int:
        """P, room for the masked positions of a row of L tokens: a multiple of 8."""
        return multiple_of_8(int(rounded_up(self.rate, length)))

    def counts(self, length: int) -> np.ndarray:
        """Masked ones among n ordinary tokens: `(L + 1,)` int32 for n from 0 to L."""
        tokens = np.arange(1, length + 1)
        counts = rounded_up(self.rate, tokens) if self.round_up else np.rint(self.rate * tokens)
        return np.array([0, *np.maximum(1, counts)], np.int32)


def rounded_up(rate: float, tokens: int | np.ndarray) -> np.ndarray:
    """`ceil(rate n)` of numbers of tokens n, int32."""
    # 0.07 * 100 is 7.000000000000001 in float64, and must not become 8.
    return np.ceil(rate * np.asarray(tokens) - 1e-9).astype(np.int32)


def multiple_of_8(number: int) -> int:
    """The next multiple of 8."""
    return -(-number // 8) * 8
