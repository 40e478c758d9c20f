"""GPT-2's byte alphabet and its way of cutting text into words, as graph ops."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text

from macaron_tf.special_ids import UNK

# Python's and Rust's `\s`; RE2's own knows ASCII alone.
_SPACE = r"\t-\r\x{85}\pZ"
# Set between two words for a moment. No character (Unicode keeps it for such uses), so that it
# may be taken out of every text.
_MARK = "\U0010ffff"
# Radford et al. 2019: contractions, then letters, digits and signs, each with the one space before
# them. Their pattern leaves the last space of several to the next word by looking ahead, which
# RE2 cannot: `_MARK` is set there.
_WORD = (
    "'s|'t|'re|'ve|'m|'ll|'d"
    rf"| ?\pL+| ?\pN+| ?[^{_SPACE}\pL\pN{_MARK}]+|[{_SPACE}]+"
)


def byte_alphabet() -> tuple[str, ...]:
    """The character that stands for each of the 256 bytes in a piece: none is a space.

    Bytes that Latin-1 prints stand for themselves, the others for U+0100, U+0101, ... in turn.
    """
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printed else next(others)) for byte in range(256))


def clean(strings: tf.Tensor, lower_case: bool, add_prefix_space: bool) -> tf.Tensor:
    """What is done to text before it is cut.

    Args:
        strings: (B,) string tensor, nominally UTF-8; an invalid byte becomes U+FFFD.
        lower_case: lower-case it.
        add_prefix_space: begin every line with a space, so that its first word is as any other.

    Returns:
        (B,) string tensor of valid UTF-8.
    """
    lines = tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")
    lines = tf.strings.regex_replace(lines, _MARK, "")
    # `regex_split` loses a line that has a NUL.
    lines = tf.strings.regex_replace(lines, r"\x00", "\ufffd")
    if lower_case:
        lines = tf.strings.lower(lines, encoding="utf-8")
    if add_prefix_space:
        lines = tf.strings.regex_replace(lines, rf"^([^{_SPACE}])", r" \1")
    return lines


def words(lines: tf.Tensor) -> tf.RaggedTensor:
    """Cuts cleaned lines into words, which together are the line.

    Args:
        lines: (B,) string tensor, as `clean` gives it.

    Returns:
        (B, None) string ragged tensor.
    """
    marked = tf.strings.regex_replace(
        lines, rf"([{_SPACE}]+)([{_SPACE}][^{_SPACE}])", rf"\1{_MARK}\2"
    )
    found = tensorflow_text.regex_split(marked, _WORD, keep_delim_regex_pattern=_WORD)
    return tf.ragged.boolean_mask(found, (found != _MARK) & (found != ""))


# A pair of ids as one number.
_SHIFT = 1 << 32
WORD_END = "</w>"  # ends a piece that ends a word, where pieces are of characters


class Merges:
    """Applies the merges of a byte-pair vocabulary, the earliest learnt ones first.

    All words go at once, a merge of each a round: English takes about ten rounds.

    Args:
        merges: (left, right, merged) ids, in the order they were learnt.

    Attributes:
        ranks: the table of the pairs, which a SavedModel has to track.

    References: Sennrich et al. 2016, section 3.2.
    """

    def __init__(self, merges: Sequence[tuple[int, int, int]]):
        left, right, merged = np.array(merges, np.int64).reshape(-1, 3).T
        self.none = len(merged)  # the rank of a pair that is not merged
        self.merged = np.append(merged, 0)
        self.ranks = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                left * _SHIFT + right, np.arange(self.none, dtype=np.int64)
            ),
            default_value=self.none,
        )

    def merge(self, ids: tf.Tensor, lengths: tf.Tensor) -> tf.RaggedTensor:
        """The pieces of words.

        Args:
            ids: (all,) int64, of the letters of all words, one word after the other.
            lengths: (N,) int32, the number of letters of each word.

        Returns:
            (N, None) int32 ragged tensor.
        """
        count = tf.size(lengths)
        owners = tf.repeat(tf.range(count), lengths)
        anything = tf.TensorShape([None])
        ids, owners, _ = tf.while_loop(
            lambda ids, owners, more: more,
            lambda ids, owners, more: self._round(ids, owners, count),
            (ids, owners, tf.constant(True)),
            shape_invariants=(anything, anything, tf.TensorShape([])),
        )
        return tf.RaggedTensor.from_value_rowids(
            tf.cast(ids, tf.int32), tf.cast(owners, tf.int64), tf.cast(count, tf.int64)
        )

    def _round(self, ids: tf.Tensor, owners: tf.Tensor, count: tf.Tensor):
        """Merges the best pair of each word wherever it stands; whether there was any."""
        within = owners[:-1] == owners[1:]
        rank = tf.where(within, self.ranks.lookup(ids[:-1] * _SHIFT + ids[1:]), self.none)
        best = tf.math.unsorted_segment_min(rank, owners[:-1], count)
        chosen = (rank < self.none) & (rank == tf.gather(best, owners[:-1]))
        chosen = _every_second(chosen)  # of "aaa" the first two
        merged = tf.where(chosen, tf.gather(self.merged, rank), ids[:-1])
        kept = tf.concat([tf.ones_like(ids[:1], tf.bool), ~chosen], 0)
        ids = tf.boolean_mask(tf.concat([merged, ids[-1:]], 0), kept)
        return ids, tf.boolean_mask(owners, kept), tf.reduce_any(chosen)


class ByteMerges(Merges):
    """`Merges` over bytes.

    Args:
        byte_ids: the id of each of the 256 bytes.
        merges: see `Merges`.

    References: Radford et al. 2019 (GPT-2), section 2.2.
    """

    def __init__(self, byte_ids: Sequence[int], merges: Sequence[tuple[int, int, int]]):
        super().__init__(merges)
        self.byte_ids = np.array(byte_ids, np.int64)

    def __call__(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Words `(N,)` strings to pieces `(N, None)` int32 ragged."""
        letters = tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8)  # (all bytes,)
        ids = tf.gather(self.byte_ids, tf.cast(letters, tf.int32))
        return self.merge(ids, tf.strings.length(words))


class CharacterMerges(Merges):
    """`Merges` over characters, of which a word's last one has an id of its own.

    Args:
        numbers: pieces and their ids; those of one character, with or without `WORD_END`, are
            where the merges begin. A character that is none is UNK.
        merges: see `Merges`.

    Attributes:
        letters: the table of these, which a SavedModel has to track.

    References: Radford et al. 2018 (GPT), section 4.1.
    """

    def __init__(self, numbers: Mapping[str, int], merges: Sequence[tuple[int, int, int]]):
        super().__init__(merges)
        letters = [name for name in numbers if len(name.removesuffix(WORD_END)) <= 1]
        self.letters = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(letters, tf.string),
                tf.constant([numbers[name] for name in letters], tf.int64),
            ),
            default_value=UNK,
        )

    def __call__(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Words `(N,)` strings, none empty, to pieces `(N, None)` int32 ragged."""
        letters = tf.strings.unicode_split(words, "UTF-8")  # (N, None)
        owners = letters.value_rowids()
        last = tf.concat([owners[1:] != owners[:-1], tf.ones_like(owners[:1], tf.bool)], 0)
        ends = tf.where(last, WORD_END, "")
        ids = self.letters.lookup(tf.strings.join([letters.values, ends]))
        return self.merge(ids, tf.cast(letters.row_lengths(), tf.int32))


def _every_second(chosen: tf.Tensor) -> tf.Tensor:
    """Of each run of True the first, the third, the fifth, ..."""
    places = tf.range(tf.size(chosen))
    starts = chosen & ~tf.concat([tf.zeros_like(chosen[:1]), chosen[:-1]], 0)
    runs = tf.cumsum(tf.cast(starts, tf.int32))
    first = tf.concat([[0], tf.boolean_mask(places, starts)], 0)
    return chosen & ((places - tf.gather(first, runs)) % 2 == 0)
