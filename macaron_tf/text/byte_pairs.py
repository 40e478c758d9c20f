"""A byte-level BPE vocabulary, GPT-2's and RoBERTa's kind: no text has an unknown piece."""

import itertools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.special_ids import UNK
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.byte_pair_ops import (
    WORD_END,
    ByteMerges,
    CharacterMerges,
    byte_alphabet,
    clean,
    words,
)
from macaron_tf.text.normalization import in_chunks
from macaron_tf.text.offsets import LocatedPieces, locate
from macaron_tf.text.token_rows import TokenRows
from macaron_tf.text.wordpiece import basic_words

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


def train_byte_pairs(
    lines: Iterable[str],
    size: int,
    *,
    special: int,
    lower_case: bool,
    add_prefix_space: bool,
    max_lines: int,
) -> tuple[list[str], list[str]]:
    """Learns pieces by merges of bytes within words; the same lines give the same pieces.

    Args:
        lines: lines of text.
        size: number of pieces, special ones included.
        special: number of those, which are not learnt.
        lower_case, add_prefix_space: as for `clean`.
        max_lines: lines read at most.

    Returns:
        The pieces, the 256 bytes first, and the merges, `"left right"`, in the order of learning.

    Raises:
        UserError: no text, too little of it for `size` pieces, or `size` is less than the bytes
            take; or the tokenizers package is not installed.
    """
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError:
        raise UserError(
            "training a byte-level BPE vocabulary needs a package: pip install tokenizers"
        ) from None
    least = special + len(byte_alphabet())
    if size < least:
        raise UserError(
            f"a vocabulary of {size} pieces is too small: the bytes alone need {least}; ask for "
            f"{least} pieces or more"
        )
    text = cleaned(itertools.islice(lines, max_lines), lower_case, add_prefix_space)
    text = filter(str.strip, text)
    first = next(text, None)
    if first is None:
        raise UserError("no text to train a vocabulary on: every line is empty")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - special, initial_alphabet=list(byte_alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(itertools.chain([first], text), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    if len(pieces) < size - special:
        most = len(pieces) + special
        raise UserError(
            f"a vocabulary of {size} pieces is too large for this text: it gives at most {most}; "
            f"ask for {most} or fewer, or bring more text"
        )
    return pieces, [" ".join(merge) for merge in model["merges"]]


def cleaned(lines: Iterable[str], lower_case: bool, add_prefix_space: bool) -> Iterator[str]:
    """`clean` outside a graph, chunk by chunk; a lone surrogate becomes U+FFFD."""
    for chunk in in_chunks(lines):
        raw = [line.encode("utf-8", "surrogatepass") for line in chunk]
        with tf.device("CPU"):
            text = clean(tf.constant(raw), lower_case, add_prefix_space).numpy().tolist()
        for line in text:
            yield line.decode("utf-8")


_BYTES = {unit: bytes([byte]) for byte, unit in enumerate(byte_alphabet())}


class BytePairVocabulary(MergedPieceVocabulary):
    """Pieces of bytes: 0 to 4 are PAD, UNK (which no text gives), [CLS], [SEP] and [MASK].

    Text is cut as GPT-2's tokenizer does it, to the same pieces. A word brings the space before it
    along: a piece that begins with white space begins a word.

    Args:
        units: the pieces from id 5 on, each byte written as its character of `byte_alphabet`.
        merges: `"left right"`, in the order of learning.
        lower_case: lower-case the text.
        add_prefix_space: begin each line with a space, so that its first word is as any other;
            RoBERTa and GPT-2 do not.
        pair_separators: see `PieceVocabulary`.

    Raises:
        UserError: a piece occurs twice, a byte is no piece, or a merge is not of pieces.

    References: Radford et al. 2019 (GPT-2), section 2.2; Liu et al. 2019 (RoBERTa), section 4.4.
    """

    kind = "byte_bpe"

    def __init__(
        self,
        units: Sequence[str],
        merges: Sequence[str],
        lower_case: bool = False,
        add_prefix_space: bool = False,
        pair_separators: int = 1,
    ):
        super().__init__(units, merges)
        self.lower_case = lower_case
        self.add_prefix_space = add_prefix_space
        self.pair_separators = pair_separators
        missing = [byte for byte, unit in enumerate(byte_alphabet()) if unit not in self._numbers]
        if missing:
            raise UserError(
                f"the vocabulary has no piece for the byte {missing[0]}: give a byte-level one"
            )
        self._fast = None

    @classmethod
    def from_files(
        cls,
        numbers: str | os.PathLike,
        merges: str | os.PathLike,
        left_out: Collection[str] = (),
        **options: Any,
    ) -> "BytePairVocabulary":
        """Reads the two files that GPT-2 and RoBERTa are published with.

        Args:
            numbers: `encoder.json` or `vocab.json`: an object of pieces and their ids.
            merges: `vocab.bpe` or `merges.txt`: a merge a line.
            left_out: names of special pieces among them, which ours stand for.
            options: further arguments of the class.

        Returns:
            The vocabulary; the pieces follow each other as their ids do, from 5 on.

        Raises:
            UserError: a file cannot be read, or they are no such vocabulary's.
        """
        found = _json_object(os.fspath(numbers))
        kept = sorted(found.keys() - set(left_out), key=found.__getitem__)
        try:
            lines = storage.read_bytes(os.fspath(merges)).decode("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{merges} is not UTF-8: give the merges that the vocabulary came with"
            ) from error
        # The first line may say which version of the format it is.
        lines = [line for line in lines if line and not line.startswith("#version")]
        return cls(kept, lines, **options)

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        size: int,
        lower_case: bool = False,
        add_prefix_space: bool = True,
        max_lines: int = 10_000_000,
    ) -> "BytePairVocabulary":
        """Learns a vocabulary; the same lines give the same vocabulary, byte for byte.

        Args:
            lines: lines of text.
            size: number of pieces, the 5 special ones and the 256 bytes included.
            lower_case, add_prefix_space: as for the class.
            max_lines: lines read at most; the first ones are taken.

        Returns:
            The vocabulary.

        Raises:
            UserError: as `train_byte_pairs`.
        """
        options = {"lower_case": lower_case, "add_prefix_space": add_prefix_space}
        learnt = train_byte_pairs(lines, size, special=SPECIAL, max_lines=max_lines, **options)
        return cls(*learnt, **options)

    def settings(self) -> dict:
        settings = {"lower_case": self.lower_case, "add_prefix_space": self.add_prefix_space}
        return self._with_separators(settings)

    def encode(self, strings: tf.Tensor) -> tf.RaggedTensor:
        return self.cut(words(clean(strings, self.lower_case, self.add_prefix_space)))

    def encode_with_offsets(self, strings: tf.Tensor) -> LocatedPieces:
        # A space before each single character would be no help to `locate`.
        return locate(strings, lambda lines: clean(lines, self.lower_case, False), self)

    def tokenize_with_offsets(
        self, lines: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Pieces of cleaned lines, and the bytes at which each begins and ends.

        Args:
            lines: (B,) string tensor.

        Returns:
            (B, None) ids, starts and ends.
        """
        spaced = clean(lines, False, self.add_prefix_space)
        ids = self.cut(words(spaced))  # (B, None)
        lengths = np.array([0] * SPECIAL + [len(unit) for unit in self.units], np.int64)
        ends = tf.cumsum(tf.gather(lengths, ids.values))
        # Bytes before a line, the space that it was given among them.
        sizes = tf.cast(tf.strings.length(spaced), tf.int64)
        added = sizes - tf.cast(tf.strings.length(lines), tf.int64)
        before = tf.gather(tf.cumsum(sizes, exclusive=True) + added, ids.value_rowids())
        ends = ends - before
        starts = tf.maximum(ends - tf.gather(lengths, ids.values), 0)
        return ids, ids.with_values(starts), ids.with_values(ends)

    def encode_rows(self, lines: Iterable[str]) -> TokenRows:
        """As the base's, by the tokenizers package where it is installed."""
        fast = self._fast_tokenizer()
        if fast is None:
            return super().encode_rows(lines)
        rows = []
        for chunk in in_chunks(cleaned(lines, self.lower_case, self.add_prefix_space)):
            rows += [found.ids for found in fast.encode_batch_fast(chunk, add_special_tokens=False)]
        return TokenRows.from_lists(rows, self.size)

    def decode_lines(self, rows: Iterable[Sequence[int]]) -> list[str]:
        lines = []
        for row in self._text_ids(rows):
            line = b"".join(map(self._spelling, row)).decode("utf-8", "replace")
            lines.append(line.removeprefix(" ") if self.add_prefix_space else line)
        return lines

    def spellings(self) -> list[bytes]:
        return self._spelled(self._spelling)

    def _spelling(self, number: int) -> bytes:
        # A piece that is none of bytes, such as GPT-2's <|endoftext|>, stands for itself.
        return b"".join(
            _BYTES.get(letter, letter.encode()) for letter in self.units[number - SPECIAL]
        )

    def word_starts(self) -> np.ndarray:
        spaces = {byte_alphabet()[ord(space)] for space in " \t\n\v\f\r"}
        starts = np.ones(self.size, bool)
        for number, unit in enumerate(self.units, SPECIAL):
            starts[number] = unit[0] in spaces
        return starts

    def make_merging(self, merges: list[tuple[int, int, int]]) -> ByteMerges:
        return ByteMerges([self._numbers[unit] for unit in byte_alphabet()], merges)

    def _fast_tokenizer(self):
        if self._fast is None:
            try:
                from tokenizers import Tokenizer, models, pre_tokenizers
            except ImportError:
                return None
            merges = [tuple(merge.split(" ")) for merge in self.merges]
            self._fast = Tokenizer(models.BPE(vocab=self._numbers, merges=merges))
            self._fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return self._fast

    def trackables(self) -> list:
        return [self.merging.ranks]


def _json_object(path: str) -> dict[str, int]:
    try:
        found = json.loads(storage.read_bytes(path))
    except ValueError as error:
        raise UserError(
            f"{path} is no JSON ({error}): give the pieces that the vocabulary came with"
        ) from error
    if not isinstance(found, dict) or not all(type(number) is int for number in found.values()):
        raise UserError(
            f"{path} holds no object of pieces and their ids: give the vocabulary's vocab.json"
        )
    return found


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
