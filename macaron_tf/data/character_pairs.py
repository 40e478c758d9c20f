"""A BPE vocabulary of characters, GPT's kind: words in small letters, each piece inside one."""

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.byte_pairs_merging import WORD_END, CharacterMerges
from macaron_tf.data.merged_pieces import SPECIAL, MergedPieceVocabulary
from macaron_tf.data.wordpiece_text import basic_words
from macaron_tf.errors import UserError


class CharacterPairVocabulary(MergedPieceVocabulary):
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
    spaces_after = True

    def settings(self) -> dict:
        return {}

    def encode(self, strings: tf.Tensor) -> tf.RaggedTensor:
        lines = tf.strings.split(basic_words(strings, lower_case=True), " ")  # (B, None)
        return self.cut(tf.ragged.boolean_mask(lines, lines != ""))

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

    def make_merging(self, merges: list[tuple[int, int, int]]) -> CharacterMerges:
        return CharacterMerges(self._numbers, merges)

    def trackables(self) -> list:
        return [self.merging.ranks, self.merging.letters]
