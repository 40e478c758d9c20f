"""A BPE vocabulary of characters, GPT's kind: words in small letters, each piece inside one."""

import json
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.byte_pairs_merging import WORD_END, CharacterMerges
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.data.wordpiece_text import basic_words
from macaron_tf.errors import UserError
from macaron_tf.special_ids import UNK

CLS, SEP, MASK = 2, 3, 4
SPECIAL = 5


class CharacterPairVocabulary(PieceVocabulary):
    """Pieces of characters: 0 to 4 are PAD, UNK, [CLS], [SEP] and [MASK].

    Words are cut as BERT's "uncased" ones, without accents. A piece that ends a word brings the
    space after it along; a character that is no piece is UNK.

    Args:
        units: the pieces from id 5 on; one that ends a word ends with `</w>`.
        merges: `"left right"`, in the order of learning.

    Raises:
        UserError: a piece occurs twice, or a merge is not of pieces.

    References: Radford et al. 2018 (GPT), section 4.1.
    """

    kind = "character_bpe"
    contents_name = "vocabulary.bpe"
    unk_id, cls_id, sep_id, mask_id = UNK, CLS, SEP, MASK
    spaces_after = True

    def __init__(self, units: Sequence[str], merges: Sequence[str]):
        self.units = tuple(units)
        self.merges = tuple(merges)
        self._numbers = {unit: number for number, unit in enumerate(self.units, SPECIAL)}
        if len(self._numbers) < len(self.units):
            twice = next(u for n, u in enumerate(self.units, SPECIAL) if self._numbers[u] != n)
            raise UserError(f"the vocabulary holds the piece {twice!r} twice: remove one of them")
        for merge in self.merges:
            left, _, right = merge.partition(" ")
            if not {left, right, left + right} <= self._numbers.keys():
                raise UserError(
                    f"the vocabulary merges {merge!r}, and not all of that are pieces: the merges "
                    "are another vocabulary's"
                )
        self._merging = None

    @property
    def pieces(self) -> int:
        return SPECIAL + len(self.units)

    def contents(self) -> bytes:
        record = {"pieces": self.units, "merges": self.merges}
        return json.dumps(record, ensure_ascii=False, indent=0).encode()

    def settings(self) -> dict:
        return {}

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict) -> "CharacterPairVocabulary":
        try:
            record = json.loads(contents)
            pieces, merges = record["pieces"], record["merges"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError("it is no file of a BPE vocabulary of characters") from error
        return cls(pieces, merges, **settings)

    def encode(self, strings: tf.Tensor) -> tf.RaggedTensor:
        lines = tf.strings.split(basic_words(strings, lower_case=True), " ")  # (B, None)
        lines = tf.ragged.boolean_mask(lines, lines != "")
        # A text has few words that it does not repeat.
        different, places = tf.unique(lines.values)
        pieces = tf.gather(self.merging(different), places)  # (words, None)
        # (B, None, None) -> (B, None)
        return lines.with_values(pieces).merge_dims(1, 2)

    def decode_lines(self, rows: Iterable[Sequence[int]]) -> list[str]:
        texts = ("".join(map(self._spelling, row)) for row in self._text_ids(rows))
        return [text.removesuffix(" ") for text in texts]

    def spellings(self) -> list[bytes]:
        return self._spelled(lambda number: self._spelling(number).encode())

    def _spelling(self, number: int) -> str:
        unit = self.units[number - SPECIAL]
        return f"{unit.removesuffix(WORD_END)} " if unit.endswith(WORD_END) else unit

    def word_starts(self) -> np.ndarray:
        raise UserError(
            "a vocabulary of GPT's kind says where words end, not where they begin: take one of "
            "another kind to hide or to fill whole words"
        )

    @property
    def merging(self) -> CharacterMerges:
        """The in-graph merges, made at their first use."""
        if self._merging is None:
            merges = []
            for merge in self.merges:
                left, right = merge.split(" ")
                merges.append(tuple(self._numbers[unit] for unit in (left, right, left + right)))
            # A graph may be under construction: the tables have to outlive it.
            with tf.init_scope():
                self._merging = CharacterMerges(self._numbers, merges)
        return self._merging

    def trackables(self) -> list:
        return [self.merging.ranks, self.merging.letters]
