"""Which pairs of a corpus are fit to learn from, and how many were not, for each reason."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from macaron_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class CleaningConfig:
    """Limits of a training pair. Words are what white space separates.

    Args:
        min_length: least number of words on each side.
        max_length: greatest number of words on each side; None = no limit.
        max_ratio: greatest ratio of the two numbers of words; None = no limit.
        deduplicate: keep the first of equal pairs only.
        max_tokens: greatest number of pieces on each side, EOS included: the longest row of a
            batch, hence never without a limit.
    """

    min_length: int = 1
    max_length: int | None = 175
    max_ratio: float | None = None
    deduplicate: bool = False
    max_tokens: int = 256

    def __post_init__(self):
        if self.min_length < 1:
            raise UserError(f"min_length is {self.min_length}: it must be 1 or more")
        if self.max_length is not None and self.max_length < self.min_length:
            raise UserError(
                f"max_length {self.max_length} is less than min_length {self.min_length}: raise it"
            )
        if self.max_ratio is not None and self.max_ratio < 1:
            raise UserError(f"max_ratio is {self.max_ratio}: it must be 1 or more")
        if self.max_tokens < 2:
            raise UserError(f"max_tokens is {self.max_tokens}: it must be 2 or more (EOS is one)")


def clean_pairs(
    pairs: Sequence[tuple[str, str]], config: CleaningConfig
) -> tuple[np.ndarray, dict[str, int]]:
    """Chooses the pairs within the limits on words.

    Args:
        pairs: (source, target) lines.
        config: the limits.

    Returns:
        Indices of the kept pairs, int64, ascending; and the number of removed pairs by reason:
        "empty", "too short", "too long", "ratio", "duplicate" (the first that applies).
    """
    counts = dict.fromkeys(("empty", "too short", "too long", "ratio", "duplicate"), 0)
    kept = []
    seen: set[tuple[str, str]] = set()
    for index, pair in enumerate(pairs):
        words = [len(side.split()) for side in pair]
        least, most = min(words), max(words)
        if least == 0:
            counts["empty"] += 1
        elif least < config.min_length:
            counts["too short"] += 1
        elif config.max_length is not None and most > config.max_length:
            counts["too long"] += 1
        elif config.max_ratio is not None and most > config.max_ratio * least:
            counts["ratio"] += 1
        elif config.deduplicate and pair in seen:
            counts["duplicate"] += 1
        else:
            if config.deduplicate:
                seen.add(pair)
            kept.append(index)
    return np.asarray(kept, np.int64), counts
