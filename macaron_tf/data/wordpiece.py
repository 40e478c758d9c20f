"""BERT's WordPiece vocabulary: text cut into words, and a word into its longest pieces."""

import os
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text

from macaron_tf.data import storage
from macaron_tf.data.aligned_text import LocatedPieces, locate
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.data.wordpiece_text import CONTINUES, LONG_WORD_BYTES, clean
from macaron_tf.data.wordpiece_training import train_wordpiece
from macaron_tf.errors import UserError
from macaron_tf.special_ids import PAD

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class WordPieceVocabulary(PieceVocabulary):
    """A WordPiece vocabulary; it cuts text exactly as BERT's tokenizer does.

    Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding; Schuster and Nakajima 2012 for WordPiece. Only, a "[MASK]" or "[SEP]" that
    stands in a text is text like any other: nobody's document may forge a special id.

    Args:
        words: the pieces, by id; one that continues a word begins with "##".
        lower_case: lower-case the text and take its accents off, as "uncased" models want it.

    Raises:
        UserError: a special piece is missing, [PAD] is not the first, or a piece occurs twice.
    """

    kind = "wordpiece"
    contents_name = "vocabulary.txt"

    def __init__(self, words: Sequence[str], lower_case: bool = True):
        self.words = tuple(words)
        self.lower_case = lower_case
        numbers = {word: number for number, word in enumerate(self.words)}
        missing = [piece for piece in SPECIAL_PIECES if piece not in numbers]
        if missing:
            raise UserError(f"the vocabulary has no piece {missing[0]}: give a BERT vocabulary")
        if numbers["[PAD]"] != PAD:
            raise UserError(
                f"[PAD] stands in line {numbers['[PAD]'] + 1} of the vocabulary: it must stand in "
                "the first, for 0 marks padding"
            )
        if len(numbers) < len(self.words):
            twice = next(w for n, w in enumerate(self.words) if numbers[w] != n)
            raise UserError(f"the vocabulary holds the piece {twice!r} twice: remove one of them")
        self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            numbers[piece] for piece in SPECIAL_PIECES[1:]
        )
        self._tokenizer = None

    @classmethod
    def from_file(cls, path: str | os.PathLike, lower_case: bool = True) -> "WordPieceVocabulary":
        """Reads a `vocab.txt` as BERT's releases hold it: a piece a line.

        Args:
            path: the file.
            lower_case: True for "uncased" models.

        Returns:
            The vocabulary.

        Raises:
            UserError: the file cannot be read, is not UTF-8, or is no such vocabulary.
        """
        try:
            return cls.from_contents(
                storage.read_bytes(os.fspath(path)), {"lower_case": lower_case}
            )
        except UserError as error:
            if os.fspath(path) in str(error):
                raise
            raise UserError(f"{os.fspath(path)}: {error}") from error

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        size: int,
        lower_case: bool = True,
        max_characters: int = 1000,
        max_lines: int = 10_000_000,
    ) -> "WordPieceVocabulary":
        """Learns a vocabulary; the same lines give the same vocabulary, byte for byte.

        Args:
            lines: lines of text.
            size: number of pieces, the 5 special ones included.
            lower_case: as for the class.
            max_characters: only that many of the text's characters become pieces, the most
                frequent ones; a word with another one is [UNK].
            max_lines: lines read at most; the first ones are taken.

        Returns:
            The vocabulary.

        Raises:
            UserError: no text at all, or too little of it (or too much) for `size` pieces.
        """
        words = train_wordpiece(
            lines,
            size,
            special=len(SPECIAL_PIECES),
            lower_case=lower_case,
            max_characters=max_characters,
            max_lines=max_lines,
        )
        return cls([*SPECIAL_PIECES, *words], lower_case)

    @property
    def pieces(self) -> int:
        return len(self.words)

    def contents(self) -> bytes:
        return "".join(f"{word}\n" for word in self.words).encode()

    def settings(self) -> dict:
        return {"lower_case": self.lower_case}

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict) -> "WordPieceVocabulary":
        try:
            # Line feeds only: a piece may be a character that `splitlines` takes for a line's end.
            words = contents.decode("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            line = contents[: error.start].count(b"\n") + 1
            raise UserError(f"line {line} is not UTF-8: give a BERT vocabulary") from error
        return cls([word.removesuffix("\r") for word in words], settings["lower_case"])

    def encode(self, strings: tf.Tensor) -> tf.RaggedTensor:
        return self.tokenizer.tokenize(clean(strings, self.lower_case))

    def encode_with_offsets(self, strings: tf.Tensor) -> LocatedPieces:
        return locate(strings, lambda lines: clean(lines, self.lower_case), self.tokenizer)

    def decode_lines(self, rows: Iterable[Sequence[int]]) -> list[str]:
        texts = ("".join(self._spelling(i) for i in row) for row in self._text_ids(rows))
        return [text.removeprefix(" ") for text in texts]

    def spellings(self) -> list[bytes]:
        return self._spelled(lambda i: self._spelling(i).encode())

    def _spelling(self, number: int) -> str:
        word = self.words[number]
        return word.removeprefix(CONTINUES) if word.startswith(CONTINUES) else f" {word}"

    def word_starts(self) -> np.ndarray:
        starts = np.ones(self.size, bool)
        for number, word in enumerate(self.words):
            # A bare "##" is two signs, no continuation.
            starts[number] = not (word.startswith(CONTINUES) and len(word) > len(CONTINUES))
        return starts

    @property
    def tokenizer(self) -> tensorflow_text.FastBertTokenizer:
        """The in-graph tokenizer, made at its first use.

        4.8 times as fast as `BertTokenizer` on 13.7 MB of English; its own lower-casing is not
        BERT's ("ß" becomes "ss"), so that `clean` goes before it.
        """
        if self._tokenizer is None:
            # A graph may be under construction: the model's tensor has to outlive it.
            with tf.init_scope():
                self._tokenizer = tensorflow_text.FastBertTokenizer(
                    list(self.words),
                    token_out_type=tf.int32,
                    max_bytes_per_word=LONG_WORD_BYTES,
                    lower_case_nfd_strip_accents=False,
                )
        return self._tokenizer

    def trackables(self) -> list:
        return [self.tokenizer]
