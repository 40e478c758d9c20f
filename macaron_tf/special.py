"""Ids of special tokens, which a vocabulary gives to networks, objectives, decoders and tasks."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

CLS_SEGMENT = 2  # segment id of [CLS] at the end of a row (Yang et al. 2019, section 2.5)
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclasses.dataclass(frozen=True)
class Special:
    """Ids of a vocabulary's special tokens. `None` means that the vocabulary lacks the token.

    The defaults are the ids of vocabularies that are trained here. A model from another library
    keeps its own ids. A token that the other library lacks and that a model needs, such as the
    padding of GPT-2, has an id after the ids of all tokens.

    Attributes:
        pad: padding, which no token attends to, no loss counts and no decoder produces.
        unk: token for text outside the vocabulary.
        begin: [CLS] of an encoder, or the first input of a decoder, BOS. The id may equal `end`, as
            in GPT-2, or `pad`, as in T5.
        end: [SEP] of an encoder, or the last token of a source or target, EOS.
        mask: [MASK].
        sentinels: ids of T5's sentinels, first sentinel first, if the vocabulary contains them.
        rows: number of embedding rows in the other library's checkpoint. The ids from `rows` on
            have no embedding there. `None` means a vocabulary that was trained here.
    """

    pad: int = 0
    unk: int | None = 1
    begin: int = 2
    end: int = 3
    mask: int | None = None
    sentinels: tuple[int, ...] = ()
    rows: int | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Builds the object from a dict of JSON types."""
        return cls(**{**values, "sentinels": tuple(values.get("sentinels", ()))})

    @property
    def roles(self) -> tuple[int | None, ...]:
        """Ids of PAD, UNK, [CLS], [SEP] and [MASK], in the order of `SPECIAL_PIECES`."""
        return self.pad, self.unk, self.begin, self.end, self.mask

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of all tokens except the sentinels, without duplicates."""
        return tuple(dict.fromkeys(i for i in self.roles if i is not None))

    @property
    def size(self) -> int:
        """Minimum number of embedding rows, a multiple of 8."""
        return -(-max(self.rows or 0, *(token_id + 1 for token_id in self.ids)) // 8) * 8


SPECIAL = Special()
