"""What BPE vocabularies have in common: numbered pieces, and merges in the order of learning."""

import json
from collections.abc import Sequence

import tensorflow as tf

from macaron_tf.data.byte_pairs_merging import ByteMerges, CharacterMerges
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.errors import UserError
from macaron_tf.special_ids import UNK

CLS, SEP, MASK = 2, 3, 4
SPECIAL = 5


class MergedPieceVocabulary(PieceVocabulary):
    """Pieces that grow by merges: 0 to 4 are PAD, UNK, [CLS], [SEP] and [MASK].

    Args:
        units: the pieces from id 5 on.
        merges: `"left right"`, in the order of learning.

    Raises:
        UserError: a piece occurs twice, or a merge is not of pieces.

    References: Sennrich et al. 2016, section 3.2.
    """

    contents_name = "vocabulary.bpe"
    unk_id, cls_id, sep_id, mask_id = UNK, CLS, SEP, MASK

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

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict) -> "MergedPieceVocabulary":
        try:
            record = json.loads(contents)
            pieces, merges = record["pieces"], record["merges"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"it is no file of a vocabulary of kind {cls.kind}") from error
        return cls(pieces, merges, **settings)

    def cut(self, words: tf.RaggedTensor) -> tf.RaggedTensor:
        """The pieces of lines of words, `(B, None)` string to `(B, None)` ids."""
        # A text has few words that it does not repeat.
        different, places = tf.unique(words.values)
        pieces = tf.gather(self.merging(different), places)  # (words, None)
        # (B, None, None) -> (B, None)
        return words.with_values(pieces).merge_dims(1, 2)

    @property
    def merging(self) -> ByteMerges | CharacterMerges:
        """The in-graph merges, made at their first use."""
        if self._merging is None:
            merges = []
            for merge in self.merges:
                left, right = merge.split(" ")
                merges.append(tuple(self._numbers[unit] for unit in (left, right, left + right)))
            # A graph may be under construction: the tables have to outlive it.
            with tf.init_scope():
                self._merging = self.make_merging(merges)
        return self._merging

    def make_merging(self, merges: list[tuple[int, int, int]]) -> ByteMerges | CharacterMerges:
        """The in-graph merges, given each one's ids: left, right and merged."""
        raise NotImplementedError
