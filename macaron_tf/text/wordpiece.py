"""BERT's WordPiece vocabulary: cuts text into words, and words into the longest known pieces."""
# ruff: noqa: RUF001 -- the sigma in a string is meant

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

CONTINUES = "##"  # prefix of a piece that continues a word
# In BERT a word of more than 100 characters is unknown. A character has at most 4 bytes in UTF-8.
LONG_WORD_BYTES = 400

# White space according to `str.isspace` or BERT, with no-break spaces.
_SPACE = r"\s\x{85}\pZ"
# In BERT all ASCII signs are punctuation, also "$" and "+", which are symbols in Unicode.
_PUNCTUATION = r"!-/:-@\[-`{-~\pP"
# "CJK Unified Ideographs" and their extensions: each of these characters is a word.
_IDEOGRAPHS = (
    r"\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{20000}-\x{2a6df}\x{2a700}-\x{2b73f}"
    r"\x{2b740}-\x{2b81f}\x{2b820}-\x{2ceaf}\x{f900}-\x{faff}\x{2f800}-\x{2fa1f}"
)
_IDEOGRAPH = re.compile(
    "[" + re.sub(r"\\x\{(\w+)\}", lambda code: chr(int(code[1], 16)), _IDEOGRAPHS) + "]"
)
# Between spaces alone: with the classes above, {101,} exceeds RE2's memory limit.
_LONG_WORD = "[^ ]{101,}"
# A noncharacter. `clean` removes it from texts, so that no piece contains it.
_UNKNOWN_WORD = "\U0010ffff"


def clean(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """Cleans text as BERT does, in-graph: `(B,)` strings to `(B,)` strings.

    It removes control characters and invalid UTF-8, and replaces a word of more than 100 characters
    by one unknown character.

    Args:
        strings: `(B,)` lines.
        lower_case: whether to lower-case and strip accents (BERT does both or neither).
    """
    lines = _without_case(strings, lower_case)
    # Few lines have such a run without a space: only these are split into words here.
    return _where(
        lines,
        f"(?s).*{_LONG_WORD}.*",
        True,
        lambda found: tf.strings.regex_replace(_spaced(found), _LONG_WORD, _UNKNOWN_WORD),
    )


def spaced_words(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """Cleans text and puts single spaces between words; drops words of over 100 characters."""
    lines = tf.strings.regex_replace(clean(strings, lower_case), _UNKNOWN_WORD, " ")
    return tf.strings.strip(_spaced(lines))


def basic_words(strings: tf.Tensor) -> tf.Tensor:
    """Applies BERT's "uncased" basic tokenizer: `spaced_words` that keeps words of any length."""
    return tf.strings.strip(_spaced(_without_case(strings, lower_case=True)))


def _without_case(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """Cleans text as `clean` does, without the limit on the length of words."""
    # Most English lines are plain ASCII, which the slower ops would not change.
    lines = _where(strings, "[ -~]*", False, lambda found: _without_oddities(found, lower_case))
    return tf.strings.lower(lines, encoding="utf-8") if lower_case else lines


def _where(lines: tf.Tensor, pattern: str, matching: bool, change) -> tf.Tensor:
    """Applies `change` to lines that fully match a pattern, or if not `matching` to the others."""
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
        # BERT's tokenizers lower-case single characters, which gives no final form of the sigma.
        lines = tf.strings.regex_replace(lines, "Σ", "σ")
    return lines


def _spaced(lines: tf.Tensor) -> tf.Tensor:
    lines = tf.strings.regex_replace(lines, rf"([{_PUNCTUATION}{_IDEOGRAPHS}])", r" \1 ")
    return tf.strings.regex_replace(lines, rf"[{_SPACE}]+", " ")


class WordPieceVocabulary(PieceVocabulary):
    """A WordPiece vocabulary; it cuts text exactly as BERT's tokenizer does.

    "[MASK]" or "[SEP]" within a text is ordinary text, so that no document can inject a special id.

    Args:
        words: the pieces, by id. A piece that continues a word begins with "##". An empty string
            marks an unused id, which is never produced and decodes to nothing.
        lower_case: whether to lower-case text and strip accents, as "uncased" models need.

    References: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for
    Language Understanding"; Schuster and Nakajima 2012 for WordPiece.
    """

    kind = "wordpiece"
    contents_name = "vocabulary.txt"
    options = ("lower_case",)

    def __init__(self, words: Sequence[str], lower_case: bool = True):
        self.lower_case = lower_case
        numbers = {word: number for number, word in enumerate(words)}
        # A repeated piece has its last id, as in Hugging Face's tokenizers.
        self.words = tuple("" if numbers[w] != n else w for n, w in enumerate(words))
        missing = [piece for piece in SPECIAL_PIECES if piece not in numbers]
        if missing:
            raise UserError(f"the vocabulary has no piece {missing[0]}: give a BERT vocabulary")
        if numbers["[PAD]"] != PAD:
            raise UserError(
                f"[PAD] is in line {numbers['[PAD]'] + 1} of the vocabulary: move it to the first, "
                "because id 0 marks padding"
            )
        self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            numbers[piece] for piece in SPECIAL_PIECES[1:]
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike, lower_case: bool = True) -> "WordPieceVocabulary":
        """Reads the `vocab.txt` of a BERT release, which has one piece per line."""
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
        """Trains a vocabulary; the same lines give the same vocabulary, byte for byte.

        SentencePiece learns the merges, because `tokenizers` orders ties at random (two runs on six
        novels gave two vocabularies), and tensorflow_text's learner took 150 s for the 21,000
        words of these novels and returned 5,900 pieces instead of 8,000.

        Args:
            lines: the training text.
            size: number of pieces, the 5 special ones included.
            lower_case: see `WordPieceVocabulary`.
            max_characters: number of characters, the most frequent ones, that become pieces. Words
                with other characters are [UNK]. None: 1,000, or those of 99.95% of the text if
                they are more.

        Raises:
            UserError: there is no text, or `size` is too small or too large for it.
        """
        with Progress("training the vocabulary", "lines") as progress:
            lines = progress.over(lines)
            words = map_lines(lambda strings: spaced_words(strings, lower_case), lines)
            # SentencePiece would read its own mark of a space in a text as a space.
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
                # In Unicode's order: first as the start of a word, then as a continuation.
                singles = [*alphabet, *(CONTINUES + character for character in continuing)]
                if size < (least := len(SPECIAL_PIECES) + len(singles)):
                    remedy = f"{least} pieces or more, or lower max_characters"
                    raise too_small(size, "the text's characters", least, remedy)
                merges = _merges(known, size - least + 2 * len(alphabet))
                if len(merges) >= size - least:
                    break
                # A text of ideographs has few merges: more characters fill the vocabulary.
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
            # Not `splitlines`: a piece may be one of the other characters that it cuts at.
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
        # "##" itself is a piece of two signs, not a continuation.
        return not self.words[number].startswith(CONTINUES) or self.words[number] == CONTINUES

    @functools.cached_property
    def tokenizer(self) -> tensorflow_text.FastBertTokenizer:
        """The in-graph tokenizer, built at first use.

        On 13.7 MB of English it is 4.8 times as fast as `BertTokenizer`. Its own lower-casing
        differs from BERT's ("ß" becomes "ss"), so it is off, and `clean` runs first.
        """
        # Built outside of a graph under construction, because its tensor is used in later ones.
        with tf.init_scope():
            return tensorflow_text.FastBertTokenizer(
                # The pieces must differ: unused ids get names with a space, which no word has.
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
    """Returns the characters that become pieces, and those that also continue a word, sorted.

    Args:
        counts: the number of times that each character occurs.
        room: most pieces that may be single characters.
        most: most characters. None: 1,000, or those of 99.95% of the text if they are more (the
            share that SentencePiece recommends for Chinese and Japanese). If twice that number
            exceeds `room`, an ideograph gets only one piece, because each is a word of its own,
            and the most frequent characters fill the room.
    """
    # By count and character: ties must not depend on the order of the text.
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
    """Learns `size` merges or fewer, if the text has no more; returns the pieces in their order.

    Pieces that continue a word begin with "##".
    """
    special = 3  # UNK, BOS and EOS
    # SentencePiece's size includes its special pieces, its mark of a space, and each character with
    # at most one merge of the mark and the character, which here is a single character.
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
    # A piece with SentencePiece's mark of a space begins a word; the others continue one.
    merged = (f"{CONTINUES}{piece}".removeprefix(f"{CONTINUES}{WORD_START}") for piece in merged)
    return [piece for piece in merged if len(piece.removeprefix(CONTINUES)) > 1]
