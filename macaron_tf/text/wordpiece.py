"""BERT's WordPiece vocabulary: text cut into words, and a word into its longest pieces."""
# ruff: noqa: RUF001 -- a sigma is no "o" here

import collections
import functools
import itertools
import os
import re
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece
import tensorflow as tf
import tensorflow_text

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import Progress
from macaron_tf.special_ids import PAD, SPECIAL_PIECES
from macaron_tf.text.base import NO_TEXT, PieceVocabulary, says_unknown, too_large, too_small
from macaron_tf.text.normalization import map_lines
from macaron_tf.text.sentencepiece import WORD_START, train_pieces

CONTINUES = "##"  # begins a piece that continues a word
# BERT gives up on words of more than 100 characters; one takes four bytes at most in UTF-8.
LONG_WORD_BYTES = 400

# Everything that `str.isspace` or BERT takes for white space, the no-break spaces included.
_SPACE = r"\s\x{85}\pZ"
# ASCII signs count as punctuation even where Unicode calls them symbols, such as "$" and "+".
_PUNCTUATION = r"!-/:-@\[-`{-~\pP"
# "CJK Unified Ideographs" and their extensions: each character is a word.
_IDEOGRAPHS = (
    r"\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{20000}-\x{2a6df}\x{2a700}-\x{2b73f}"
    r"\x{2b740}-\x{2b81f}\x{2b820}-\x{2ceaf}\x{f900}-\x{faff}\x{2f800}-\x{2fa1f}"
)
_IDEOGRAPH = re.compile(
    "[" + re.sub(r"\\x\{(\w+)\}", lambda code: chr(int(code[1], 16)), _IDEOGRAPHS) + "]"
)
# Between single spaces: over the classes above, {101,} takes RE2 more memory than it allows.
_LONG_WORD = "[^ ]{101,}"
# A character of no meaning that `clean` removes everywhere else: no piece can hold it.
_UNKNOWN_WORD = "\U0010ffff"


def clean(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """BERT's text cleaning, in-graph, `(B,)` strings to `(B,)` strings without control characters.

    Invalid UTF-8 is left out, and a word of more than 100 characters becomes one unknown character.

    Args:
        lower_case: lower-case and strip accents (BERT does both or neither).
    """
    lines = _without_case(strings, lower_case)
    # Few lines have so long a run without a space: only these are examined more closely.
    return _where(
        lines,
        f"(?s).*{_LONG_WORD}.*",
        True,
        lambda found: tf.strings.regex_replace(_spaced(found), _LONG_WORD, _UNKNOWN_WORD),
    )


def spaced_words(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """`clean`, with words set apart by single spaces; words too long for BERT are left out."""
    lines = tf.strings.regex_replace(clean(strings, lower_case), _UNKNOWN_WORD, " ")
    return tf.strings.strip(_spaced(lines))


def basic_words(strings: tf.Tensor) -> tf.Tensor:
    """BERT's "uncased" basic tokenizer: `spaced_words` with words of any length."""
    return tf.strings.strip(_spaced(_without_case(strings, lower_case=True)))


def _without_case(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """`clean` without its limit of a word's length."""
    # Most lines of English are plain ASCII, which the slower ops leave as it is.
    lines = _where(strings, "[ -~]*", False, lambda found: _without_oddities(found, lower_case))
    return tf.strings.lower(lines, encoding="utf-8") if lower_case else lines


def _where(lines: tf.Tensor, pattern: str, matching: bool, change) -> tf.Tensor:
    """Applies `change` to the lines that match a pattern as a whole, or to all others."""
    matches = tf.strings.regex_full_match(lines, pattern)
    chosen = tf.where(matches == matching)  # (n, 1)
    return tf.tensor_scatter_nd_update(lines, chosen, change(tf.gather(lines, chosen[:, 0])))


def _without_oddities(lines: tf.Tensor, lower_case: bool) -> tf.Tensor:
    lines = tf.strings.unicode_transcode(lines, "UTF-8", "UTF-8", errors="replace")
    lines = tf.strings.regex_replace(lines, r"[\t\n\r]", " ")
    lines = tf.strings.regex_replace(lines, r"[\pC\x{fffd}]+", "")
    if lower_case:
        lines = tensorflow_text.normalize_utf8(lines, "NFD")
        lines = tf.strings.regex_replace(lines, r"\p{Mn}+", "")
        # Character by character, as BERT's tokenizers do it: no final form of the sigma.
        lines = tf.strings.regex_replace(lines, "Σ", "σ")
    return lines


def _spaced(lines: tf.Tensor) -> tf.Tensor:
    lines = tf.strings.regex_replace(lines, rf"([{_PUNCTUATION}{_IDEOGRAPHS}])", r" \1 ")
    return tf.strings.regex_replace(lines, rf"[{_SPACE}]+", " ")


class WordPieceVocabulary(PieceVocabulary):
    """A WordPiece vocabulary; it cuts text exactly as BERT's tokenizer does.

    Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding; Schuster and Nakajima 2012 for WordPiece. A "[MASK]" or "[SEP]" within a
    text is text like any other, so that no document forges a special id.

    Args:
        words: the pieces, by id; one that continues a word begins with "##". An id without a
            piece has "", which no text gives and which adds nothing to one.
        lower_case: lower-case the text and take its accents off, for "uncased" models.
    """

    kind = "wordpiece"
    contents_name = "vocabulary.txt"
    options = ("lower_case",)

    def __init__(self, words: Sequence[str], lower_case: bool = True):
        self.lower_case = lower_case
        numbers = {word: number for number, word in enumerate(words)}
        # Of a piece that stands twice the last id counts, as in Hugging Face's tokenizers.
        self.words = tuple("" if numbers[w] != n else w for n, w in enumerate(words))
        missing = [piece for piece in SPECIAL_PIECES if piece not in numbers]
        if missing:
            raise UserError(f"the vocabulary has no piece {missing[0]}: give a BERT vocabulary")
        if numbers["[PAD]"] != PAD:
            raise UserError(
                f"[PAD] stands in line {numbers['[PAD]'] + 1} of the vocabulary: it must stand in "
                "the first, for 0 marks padding"
            )
        self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            numbers[piece] for piece in SPECIAL_PIECES[1:]
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike, lower_case: bool = True) -> "WordPieceVocabulary":
        """Reads a `vocab.txt` of BERT's releases: a piece a line."""
        contents = storage.read_bytes(path)
        try:
            return cls.from_contents(contents, {"lower_case": lower_case})
        except UserError as error:
            raise UserError(f"{os.fspath(path)}: {error}") from error

    @classmethod
    @says_unknown
    def train(
        cls,
        lines: Iterable[str],
        size: int,
        lower_case: bool = True,
        max_characters: int | None = None,
    ) -> "WordPieceVocabulary":
        """Learns a vocabulary; the same lines give the same vocabulary, byte for byte.

        The merges are SentencePiece's: `tokenizers` numbers equal merges by chance (two runs on six
        novels gave two vocabularies), and tensorflow_text's learner took 150 s for their 21,000
        words and gave 5,900 pieces where 8,000 were asked for.

        Args:
            size: number of pieces, the 5 special ones included.
            max_characters: only that many of the text's characters become pieces, the most
                frequent ones; a word with another one is [UNK]. See `_characters` for None.

        Raises:
            UserError: no text at all, or too little of it (or too much) for `size` pieces.
        """
        with Progress("training the vocabulary", "lines") as progress:
            lines = progress.over(lines)
            words = map_lines(lambda strings: spaced_words(strings, lower_case), lines)
            # SentencePiece would take its own mark in a text for a space.
            text = [line.replace(WORD_START, "").strip() for line in words]
            counts = collections.Counter(itertools.chain.from_iterable(text))
            counts.pop(" ", None)
            room = 3 * size // 4
            for _ in range(2):
                alphabet, continuing = _characters(counts, room, max_characters)
                kept = {*alphabet, " "}
                known = (" ".join(filter(kept.issuperset, line.split(" "))) for line in text)
                if not (known := [line for line in known if line]):
                    raise UserError(NO_TEXT)
                # In Unicode's order, each as a word's start and as a continuation.
                singles = [*alphabet, *(CONTINUES + character for character in continuing)]
                if size < (least := len(SPECIAL_PIECES) + len(singles)):
                    remedy = f"{least} pieces or more, or lower max_characters"
                    raise too_small(size, "the text's characters", least, remedy)
                merges = _merges(known, size - least + 2 * len(alphabet))
                if len(merges) >= size - least:
                    break
                # Ideographs alone have no merges: characters take their room.
                room = size - len(SPECIAL_PIECES) - len(merges)
            else:
                raise too_large(size, len(merges) + least)
        return cls([*SPECIAL_PIECES, *singles, *merges[: size - least]], lower_case)

    @property
    def pieces(self) -> int:
        return len(self.words)

    def contents(self) -> bytes:
        return "".join(f"{word}\n" for word in self.words).encode()

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict) -> "WordPieceVocabulary":
        try:
            # Line feeds only: a piece may be a character that `splitlines` takes for a line's end.
            words = contents.decode("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            line = contents[: error.start].count(b"\n") + 1
            raise UserError(f"line {line} is not UTF-8: give a BERT vocabulary") from error
        return cls([word.removesuffix("\r") for word in words], settings["lower_case"])

    def normalized(self, strings: tf.Tensor, language: str | None = None) -> tf.Tensor:
        return clean(strings, self.lower_case)

    def piece_bytes(self, number: int) -> bytes:
        if not (word := self.words[number]):
            return b""
        return (word.removeprefix(CONTINUES) if word.startswith(CONTINUES) else f" {word}").encode()

    def starts_word(self, number: int) -> bool:
        # A bare "##" is two signs, no continuation.
        return not self.words[number].startswith(CONTINUES) or self.words[number] == CONTINUES

    @functools.cached_property
    def tokenizer(self) -> tensorflow_text.FastBertTokenizer:
        """The in-graph tokenizer, made at its first use.

        4.8 times as fast as `BertTokenizer` on 13.7 MB of English; its own lower-casing is not
        BERT's ("ß" becomes "ss"): `clean` goes before it.
        """
        # A graph may be under construction: the model's tensor has to outlive it.
        with tf.init_scope():
            return tensorflow_text.FastBertTokenizer(
                # Names that no word has: the pieces of a tokenizer must differ.
                [word or f" {number}" for number, word in enumerate(self.words)],
                token_out_type=tf.int32,
                max_bytes_per_word=LONG_WORD_BYTES,
                lower_case_nfd_strip_accents=False,
            )

    def trackables(self) -> list:
        return [self.tokenizer]


def _characters(
    counts: collections.Counter, room: int, most: int | None
) -> tuple[list[str], list[str]]:
    """The characters that become pieces, and those of them that also continue a word; sorted.

    Args:
        room: the number of pieces that may be characters.
        most: the number of characters; None = 1,000, or 99.95% of the text, as SentencePiece
            advises for Chinese and Japanese. Where there is no room for both forms of these, an
            ideograph, always a word of its own, gets one piece.
    """
    # By number and character: a tie must not depend on the order of the text.
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    if most is None:
        covered = np.cumsum([counts[character] for character in ranked])
        most = max(1000, int(np.searchsorted(covered, 0.9995 * counts.total())) + 1)
        if most > 1000 and 2 * most > room:
            pieces = np.cumsum([1 if _IDEOGRAPH.match(character) else 2 for character in ranked])
            alphabet = sorted(ranked[: np.searchsorted(pieces, room, side="right")])
            return alphabet, [c for c in alphabet if not _IDEOGRAPH.match(c)]
    alphabet = sorted(ranked[:most])
    return alphabet, alphabet


def _merges(text: list[str], size: int) -> list[str]:
    """The merged pieces, WordPiece's way, in the order of the merges; fewer where the text ends."""
    special = 3  # UNK, BOS and EOS
    # SentencePiece counts these too: its specials, its own mark, and for each character the
    # character and at most one merge "▁" + character, which is a single here.
    proto = train_pieces(
        text,
        special + 1 + size,
        model_type="bpe",
        character_coverage=1.0,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    merged = (model.id_to_piece(i) for i in range(special, model.get_piece_size()))
    # With SentencePiece's mark a piece begins a word, without it goes on with one.
    merged = (f"{CONTINUES}{piece}".removeprefix(f"{CONTINUES}{WORD_START}") for piece in merged)
    return [piece for piece in merged if len(piece.removeprefix(CONTINUES)) > 1]
