"""In-graph byte-pair encoding (BPE) of bytes (GPT-2, RoBERTa) or of characters (GPT, XLM)."""

import abc
import dataclasses
import functools
import json
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf
import tensorflow_text

from macaron_tf.errors import UserError, check_choice, needed, parse_json
from macaron_tf.io.paths import refuse_damage
from macaron_tf.special import SPECIAL_PIECES, Special
from macaron_tf.text.base import NO_TEXT, PieceVocabulary, reports, too_large, too_small
from macaron_tf.text.normalization import LocatedPieces, map_lines, moses_words
from macaron_tf.text.wordpiece import basic_words

_SPECIAL = Special(mask=4)  # in vocabularies that are trained here
WORD_END = "</w>"  # suffix of a piece that ends a word, in character-level BPE

# White space as `\s` matches it in Python and Rust; RE2's `\s` is ASCII only.
_SPACE = r"\t-\r\x{85}\pZ"
# Temporary separator of words. `normalized` may remove it from a text, because it is a Unicode
# noncharacter.
_MARK = "\U0010ffff"
# Radford et al. 2019: contractions, then runs of letters, digits or symbols, each with an optional
# space before it. Their pattern has a lookahead, which gives the last of several spaces to the next
# word. RE2 has no lookahead, so `words` inserts `_MARK` before that space.
_GPT2 = (
    "'s|'t|'re|'ve|'m|'ll|'d"
    rf"| ?\pL+| ?\pN+| ?[^{_SPACE}\pL\pN{_MARK}]+|[{_SPACE}]+"
)
# The released tokenizer of Dubey et al. 2024: a run of letters may include one symbol before it,
# digits form groups of up to three, and line ends form words or end a run of symbols.
_LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    rf"|[^\r\n\pL\pN{_MARK}]?\pL+|\pN{{1,3}}| ?[^{_SPACE}\pL\pN{_MARK}]+[\r\n]*"
    rf"|[{_SPACE}]*[\r\n]+|[{_SPACE}]+"
)
# In Qwen 2 and 3, each digit is a word.
_QWEN = _LLAMA.replace("{1,3}", "")
_WORDS = {"gpt2": _GPT2, "llama3": _LLAMA, "cl100k": _LLAMA, "qwen2": _QWEN}
# White space that becomes part of the next word if it ends a run of white space.
_LAST_SPACE = r"[\t\v\f\x{85}\pZ]"
_SHIFT = 1 << 32  # the lookup key of a pair of ids is left * _SHIFT + right


@dataclasses.dataclass(eq=False, repr=False)
class MergedPieceVocabulary(PieceVocabulary):
    """Base class of BPE vocabularies.

    Args:
        units: pieces in the order of their ids, which start at 5, after the ids of PAD, UNK, [CLS],
            [SEP] and [MASK]. With `special`, the ids start at 0, `units` has the names of all
            tokens, and "" marks an unused id.
        merges: merges as `"left right"`, in the order of training.
        special: ids of the special tokens in a vocabulary from another library. `None` means a
            vocabulary that is trained here.

    Attributes:
        allows_unlisted_units: whether a merge may use or produce units that are not pieces, as in
            XLM. A unit that remains after the last merge and is not a piece is encoded as UNK. If
            `allows_unlisted_units` is False, the constructor raises a UserError for a merge that
            involves a unit that is not a piece.

    References: Sennrich et al. 2016, section 3.2.
    """

    contents_name = "vocabulary.bpe"
    allows_unlisted_units = False

    units: Sequence[str]
    merges: Sequence[str]
    special: dataclasses.InitVar[Special | None] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, special: Special | None):
        self.special = special or _SPECIAL
        self.units = tuple(self.units)
        self.names = (*(SPECIAL_PIECES if special is None else ()), *self.units)
        self.pieces = len(self.names)
        # The last rank of a repeated merge counts, as in Hugging Face's tokenizers.
        self.merges = tuple(dict.fromkeys(reversed(self.merges)))[::-1]
        text_ids = self._text_ids
        text_units = [self.names[token_id] for token_id in text_ids]
        self.unit_ids = dict(zip(text_units, text_ids, strict=True))
        rows = []
        for merge in self.merges:
            left, _, right = merge.partition(" ")
            merge_units = (left, right, left + right)
            if self.allows_unlisted_units:
                for unit in merge_units:
                    self.unit_ids.setdefault(unit, len(self.names) + len(self.unit_ids))
            rows.append([self.unit_ids.get(unit) for unit in merge_units])
            if None in rows[-1]:
                raise UserError(f"the vocabulary lacks a piece of the merge {merge!r}")
        # (merges, 3): ids of the left, the right and the merged piece.
        self._merge_ids = np.array(rows, np.int64).reshape(-1, 3)

    @property
    def _text_ids(self) -> list[int]:
        return [token_id for token_id in super()._text_ids if self.names[token_id]]

    def contents(self) -> bytes:
        record = {"pieces": self.units, "merges": self.merges}
        return json.dumps(record, ensure_ascii=False, indent=0).encode()

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict[str, Any]) -> Self:
        with refuse_damage(f"the file of the {cls.kind} vocabulary", "restore it from a copy"):
            record = parse_json(contents, pieces=list, merges=list)
        return cls(record["pieces"], record["merges"], **settings)

    @abc.abstractmethod
    def words(self, lines: tf.Tensor) -> tf.RaggedTensor:
        """Splits normalized lines `(B,)` into words `(B, None)`."""

    @abc.abstractmethod
    def letters(self, words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Splits words `(N,)` into bytes or characters, the initial units of BPE.

        Returns the unit ids of all words, a flat int64 array, and the number of units in each word,
        `(N,)` int32.
        """

    def tokenize(self, lines: tf.Tensor) -> tf.RaggedTensor:
        """Encodes normalized lines `(B,)` as ids `(B, None)` int32."""
        words = self.words(lines)
        # Most words occur repeatedly, so each distinct word is encoded once.
        distinct, positions = tf.unique(words.values)
        merged = self._apply_merges(*self.letters(distinct))
        if self.allows_unlisted_units:
            ids = tf.where(merged.values < self.pieces, merged.values, self.special.unk)
            merged = merged.with_values(ids)
        pieces = tf.gather(merged, positions)  # (words, None)
        # (B, None, None) -> (B, None)
        return words.with_values(pieces).merge_dims(1, 2)

    @functools.cached_property
    def ranks(self) -> tf.lookup.StaticHashTable:
        """Lookup table from a pair of ids to the rank of its merge.

        The key of a pair is `left * 2**32 + right`. The first merge has the rank 0. A pair without
        a merge has the rank `len(merges)`.
        """
        left, right, _ = self._merge_ids.T
        # The last key, -1, is not a pair. The key is needed because TensorFlow rejects an empty
        # table.
        keys = np.append(left * _SHIFT + right, -1)
        ranks = np.arange(len(keys), dtype=np.int64)
        return _table(keys, ranks, len(self.merges))

    def trackables(self) -> list:
        return [self.ranks]

    def _apply_merges(self, ids: tf.Tensor, lengths: tf.Tensor) -> tf.RaggedTensor:
        """Applies the merges within N words, in the order in which training learned them.

        Each round applies in each word the earliest-learned merge that occurs there, at all of its
        positions. English text takes about ten rounds. `ids` is flat int64, `lengths` `(N,)`, and
        the result `(N, None)`.
        """
        count = tf.size(lengths)
        no_rank = len(self.merges)  # the rank of a pair without a merge
        merged = np.append(self._merge_ids[:, 2], 0)

        def merge_round(ids, owners, more):
            """Applies the merge with the lowest rank in each word, at all of its positions."""
            in_same_word = owners[:-1] == owners[1:]
            rank = tf.where(in_same_word, self.ranks.lookup(ids[:-1] * _SHIFT + ids[1:]), no_rank)
            best = tf.math.unsorted_segment_min(rank, owners[:-1], count)
            chosen = (rank < no_rank) & (rank == tf.gather(best, owners[:-1]))
            chosen = _every_second(chosen)  # pairs must not overlap: "aaa" becomes "aa a"
            ids = tf.concat([tf.where(chosen, tf.gather(merged, rank), ids[:-1]), ids[-1:]], 0)
            is_kept = tf.concat([tf.ones_like(ids[:1], tf.bool), ~chosen], 0)
            ids, owners = (tf.boolean_mask(values, is_kept) for values in (ids, owners))
            return ids, owners, tf.reduce_any(chosen)

        any_length = tf.TensorShape([None])
        ids, owners, _ = tf.while_loop(
            lambda ids, owners, more: more,
            merge_round,
            (ids, tf.repeat(tf.range(count), lengths), tf.constant(True)),
            shape_invariants=(any_length, any_length, tf.TensorShape([])),
        )
        return tf.RaggedTensor.from_value_rowids(
            tf.cast(ids, tf.int32), tf.cast(owners, tf.int64), tf.cast(count, tf.int64)
        )


def _table(keys: Sequence, values: Sequence[int], default: int) -> tf.lookup.StaticHashTable:
    # Lifted out of the graph under construction, because later graphs use the table too.
    with tf.init_scope():
        entries = tf.lookup.KeyValueTensorInitializer(keys, values, value_dtype=tf.int64)
        return tf.lookup.StaticHashTable(entries, default)


def _every_second(chosen: tf.Tensor) -> tf.Tensor:
    """Keeps every second True in each run of consecutive True values, starting with the first."""
    positions = tf.range(tf.size(chosen))
    starts = chosen & ~tf.concat([tf.zeros_like(chosen[:1]), chosen[:-1]], 0)
    runs = tf.cumsum(tf.cast(starts, tf.int32))
    first = tf.concat([[0], tf.boolean_mask(positions, starts)], 0)
    return chosen & ((positions - tf.gather(first, runs)) % 2 == 0)


# Characters that stand for the 256 byte values in GPT-2's pieces. None of the characters is white
# space. A printable Latin-1 byte stands for itself. All other bytes are represented by U+0100,
# U+0101, ... in order.
_PRINTED = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTED]
BYTE_ALPHABET = tuple(
    chr(byte if byte in _PRINTED else 0x100 + _OTHERS.index(byte)) for byte in range(256)
)
BYTES = {unit: bytes([byte]) for byte, unit in enumerate(BYTE_ALPHABET)}
_SPACE_UNITS = frozenset(BYTE_ALPHABET[ord(space)] for space in " \t\n\v\f\r")


@dataclasses.dataclass(eq=False, repr=False)
class BytePairVocabulary(MergedPieceVocabulary):
    """Byte-level BPE vocabulary, which tokenizes text exactly as GPT-2, Llama 3 or Qwen does.

    No text is encoded as UNK. A word includes the space before it, so a piece that begins with
    white space begins a word.

    Args:
        units, merges, special: see `MergedPieceVocabulary`. In a piece, each byte is written as a
            character of `BYTE_ALPHABET`.
        add_prefix_space: whether to add a space before a line without a leading space, so that the
            first word is tokenized like every other word. RoBERTa and GPT-2 do not add a space.
        composed: whether to normalize text to Unicode's composed form NFC, as ModernBERT does.
        pattern: rule that splits text into words: that of `"gpt2"`, `"llama3"`, `"qwen2"` (Qwen 2
            and 3) or `"cl100k"` (GPT-4). The rules of Llama 3 and GPT-4 are equal, but with
            `"llama3"`, a word that equals a piece is always encoded as this single piece.
        mask_takes_space: see `PieceVocabulary`. RoBERTa's and ModernBERT's [MASK] does.

    References: Radford et al. 2019 (GPT-2), section 2.2; Liu et al. 2019 (RoBERTa), section 4.4.
    """

    kind = "byte_bpe"

    lower_case: bool = False
    add_prefix_space: bool = False
    pair_separators: int = 1
    composed: bool = False
    pattern: str = "gpt2"
    mask_takes_space: bool = True

    def __post_init__(self, special: Special | None):
        super().__post_init__(special)
        check_choice("pattern", self.pattern, tuple(_WORDS))
        self.leading_space = "^ " if self.add_prefix_space else ""
        missing = [byte for byte, unit in enumerate(BYTE_ALPHABET) if unit not in self.unit_ids]
        if missing:
            raise UserError(f"the vocabulary has no piece for the byte {missing[0]}")
        self._byte_ids = np.array([self.unit_ids[unit] for unit in BYTE_ALPHABET], np.int64)

    @classmethod
    @reports
    def train(cls, lines: Iterable[str], size: int, lower_case: bool = False) -> Self:
        """Trains a vocabulary with `add_prefix_space=True`; the same lines give the same one.

        `size` includes 5 special pieces and the 256 bytes.
        """
        with needed("training a byte-level BPE vocabulary"):
            from tokenizers import Tokenizer, models, pre_tokenizers, trainers
        # A vocabulary without merges normalizes the training text.
        plain = cls(BYTE_ALPHABET, [], lower_case, add_prefix_space=True)
        if size < plain.pieces:
            raise too_small(size, "the bytes", plain.pieces)
        text = map_lines(lambda strings: plain.spaced(plain.normalized(strings)), lines)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=size - len(SPECIAL_PIECES),
            initial_alphabet=list(BYTE_ALPHABET),
            show_progress=False,
        )
        tokenizer.train_from_iterator(filter(str.strip, text), trainer)
        model = json.loads(tokenizer.to_str())["model"]
        pieces = sorted(model["vocab"], key=model["vocab"].get)
        merges = [" ".join(merge) for merge in model["merges"]]
        if (maximum := len(pieces) + len(SPECIAL_PIECES)) < size:
            raise too_large(size, maximum) if merges else UserError(NO_TEXT)
        return cls(pieces, merges, lower_case, add_prefix_space=True)

    def normalized(self, strings: tf.Tensor, language: str | None = None) -> tf.Tensor:
        lines = tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")
        lines = tf.strings.regex_replace(lines, _MARK, "")
        # `regex_split` drops a line with a NUL.
        lines = tf.strings.regex_replace(lines, r"\x00", "\ufffd")
        if self.composed:
            lines = tensorflow_text.normalize_utf8(lines, "NFC")
        return tf.strings.lower(lines, encoding="utf-8") if self.lower_case else lines

    def spaced(self, lines: tf.Tensor) -> tf.Tensor:
        """Adds a space before lines without a leading space, if `add_prefix_space` is True."""
        if not self.add_prefix_space:
            return lines
        return tf.strings.regex_replace(lines, r"^([^ ])", r" \1")

    def words(self, lines: tf.Tensor) -> tf.RaggedTensor:
        pattern = _WORDS[self.pattern]
        last_space = f"[{_SPACE}]" if self.pattern == "gpt2" else _LAST_SPACE
        marked = tf.strings.regex_replace(
            self.spaced(lines), rf"([{_SPACE}]+)({last_space}[^{_SPACE}])", rf"\1{_MARK}\2"
        )
        words = tensorflow_text.regex_split(marked, pattern, keep_delim_regex_pattern=pattern)
        return tf.ragged.boolean_mask(words, (words != _MARK) & (words != ""))

    def letters(self, words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        letters = tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8)  # (all bytes,)
        ids = tf.gather(self._byte_ids, tf.cast(letters, tf.int32))
        lengths = tf.strings.length(words)
        if self.pattern != "llama3":
            return ids, lengths
        # A word that is a piece is a single unit, which no merge changes.
        word_ids = self.piece_ids.lookup(words)  # (N,); -1 for other words
        letters = tf.RaggedTensor.from_row_lengths(ids, lengths)
        piece_ids = tf.gather(word_ids, letters.value_rowids())
        is_kept = (piece_ids < 0) | (tf.ragged.range(lengths).values == 0)
        ids = tf.boolean_mask(tf.where(piece_ids < 0, ids, piece_ids), is_kept)
        return ids, tf.where(word_ids < 0, lengths, 1)

    @functools.cached_property
    def piece_ids(self) -> tf.lookup.StaticHashTable:
        """Lookup table from the bytes of a piece to its id. The id of any other string is -1."""
        ids_by_bytes = {self.piece_bytes(token_id): token_id for token_id in self._text_ids}
        return _table(list(ids_by_bytes), list(ids_by_bytes.values()), -1)

    def trackables(self) -> list:
        return [self.ranks, *([self.piece_ids] if self.pattern == "llama3" else [])]

    def tokenize_with_offsets(
        self, lines: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Encodes normalized lines `(B,)` as ids `(B, None)` int32, and locates the pieces.

        Also returns the byte offsets where each piece starts and ends, `(B, None)` int64 each.
        """
        ids = self.tokenize(lines)  # (B, None)
        lengths, text_ids = np.zeros(self.pieces, np.int64), self._text_ids
        lengths[text_ids] = [len(self.names[token_id]) for token_id in text_ids]
        lengths = tf.gather(lengths, ids.values)
        # Number of bytes before the original text of a line, including all added spaces.
        sizes = tf.cast(tf.strings.length(self.spaced(lines)), tf.int64)
        added = sizes - tf.cast(tf.strings.length(lines), tf.int64)
        line_starts = tf.gather(tf.cumsum(sizes, exclusive=True) + added, ids.value_rowids())
        ends = tf.cumsum(lengths) - line_starts
        starts = tf.maximum(ends - lengths, 0)
        return ids, ids.with_values(starts), ids.with_values(ends)

    def piece_bytes(self, token_id: int) -> bytes:
        # An added token, such as GPT-2's <|endoftext|>, is plain text.
        unit = self.names[token_id]
        if unit in self.added:
            return unit.encode()
        return b"".join(BYTES.get(letter, letter.encode()) for letter in unit)

    def starts_word(self, token_id: int) -> bool:
        return self.names[token_id][0] in _SPACE_UNITS


class CharacterPairVocabulary(MergedPieceVocabulary):
    """Character-level BPE vocabulary, as in GPT.

    Text is lower-cased, stripped of accents, and split into words as by BERT's "uncased" tokenizer.
    A piece that ends a word includes the space after the word. A character without a piece is
    encoded as UNK.

    Args:
        units, merges, special: see `MergedPieceVocabulary`. A piece that ends a word has the suffix
            `</w>`.

    References: Radford et al. 2018 (GPT), section 4.1.
    """

    kind = "character_bpe"
    spaces_after = True

    def normalized(self, strings: tf.Tensor, language: str | None = None) -> tf.Tensor:
        return basic_words(strings)

    def words(self, lines: tf.Tensor) -> tf.RaggedTensor:
        words = tf.strings.split(lines, " ")  # (B, None)
        return tf.ragged.boolean_mask(words, words != "")

    def letters(self, words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        letters = tf.strings.unicode_split(words, "UTF-8")  # (N, None)
        owners = letters.value_rowids()
        last = tf.concat([owners[1:] != owners[:-1], tf.ones_like(owners[:1], tf.bool)], 0)
        ends = tf.where(last, WORD_END, "")
        ids = self.letter_ids.lookup(tf.strings.join([letters.values, ends]))
        return ids, tf.cast(letters.row_lengths(), tf.int32)

    @functools.cached_property
    def letter_ids(self) -> tf.lookup.StaticHashTable:
        """Lookup table from a character, with or without the suffix `WORD_END`, to an id or UNK."""
        letters = [unit for unit in self.unit_ids if len(unit.removesuffix(WORD_END)) <= 1]
        return _table(letters, [self.unit_ids[unit] for unit in letters], self.special.unk)

    def trackables(self) -> list:
        return [self.ranks, self.letter_ids]

    def encode_with_offsets(self, strings: tf.Tensor) -> LocatedPieces:
        raise UserError(f"a {self.kind} vocabulary cannot map its pieces to positions in a text")

    def piece_bytes(self, token_id: int) -> bytes:
        unit = self.names[token_id]
        text = f"{unit.removesuffix(WORD_END)} " if unit.endswith(WORD_END) else unit
        return text.encode()


@dataclasses.dataclass(eq=False, repr=False)
class MosesPairVocabulary(CharacterPairVocabulary):
    """XLM's character-level BPE vocabulary, which splits text into words by Moses' rules.

    The rules depend on the language. `moses_words` applies the rules in Python. A SavedModel
    therefore cannot contain this vocabulary, and takes ids instead of text.

    Args:
        languages: language codes of the texts, with the default language first. If `languages` is
            empty, the default language is English.
        lower_case: whether to lower-case text and strip accents.

    References: Conneau and Lample 2019 (XLM), section 5.1.
    """

    kind = "moses_bpe"
    allows_unlisted_units = True

    languages: Sequence[str] = ()
    lower_case: bool = True

    def __post_init__(self, special: Special | None):
        super().__post_init__(special)
        is_single = isinstance(self.languages, str)
        self.languages = (self.languages,) if is_single else tuple(self.languages)

    def normalized(self, strings: tf.Tensor, language: str | None = None) -> tf.Tensor:
        language = language or next(iter(self.languages), "en")

        def words(lines: np.ndarray) -> np.ndarray:
            texts = (line.decode("utf-8", "replace") for line in lines)
            split_lines = (" ".join(moses_words(text, language, self.lower_case)) for text in texts)
            return np.array([line.encode() for line in split_lines], object)

        return tf.ensure_shape(tf.numpy_function(words, [strings], tf.string), strings.shape)

    def trackables(self) -> list:
        raise UserError(
            f"a {self.kind} vocabulary splits words in Python, which a SavedModel cannot contain: "
            "export only the network, and pass token ids to it"
        )
