"""BERT's WordPiece tokenization, which splits words into the longest pieces of a vocabulary."""
# ruff: noqa: RUF001 -- the sigma in a string is meant

import collections
import dataclasses
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
from macaron_tf.special import SPECIAL_PIECES, Special
from macaron_tf.text.base import NO_TEXT, PieceVocabulary, lines_of, reports, too_large, too_small
from macaron_tf.text.normalization import IDEOGRAPHS, PUNCTUATION, map_lines
from macaron_tf.text.sentencepiece import WORD_START, train_pieces

CONTINUES = "##"  # prefix of a piece that continues a word
# BERT maps a word of more than 100 characters to [UNK]. UTF-8 has at most 4 bytes per character.
LONG_WORD_BYTES = 400

# White space according to `str.isspace` or BERT, including no-break spaces.
_SPACE = r"\s\x{85}\pZ"
# Only a space ends the run: with the character classes above, {101,} exceeds RE2's memory limit.
_LONG_WORD = "[^ ]{101,}"
# Placeholder for a word that is too long. `clean` first removes this noncharacter from the text, so
# that no piece contains the placeholder.
_UNKNOWN_WORD = "\U0010ffff"


def clean(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """Cleans lines `(B,)` as BERT does, in-graph.

    Tabs and line ends become spaces; other control characters and invalid UTF-8 are removed. Each
    word of more than 100 characters becomes a placeholder that the tokenizer encodes as [UNK].
    `lower_case` also strips accents: BERT does both or neither.
    """
    lines = _without_case(strings, lower_case)

    def without_long_words(lines: tf.Tensor) -> tf.Tensor:
        return tf.strings.regex_replace(_spaced(lines), _LONG_WORD, _UNKNOWN_WORD)

    # Only the few lines with a long run of characters are split into words here.
    return _where(lines, f"(?s).*{_LONG_WORD}.*", True, without_long_words)


def spaced_words(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """Cleans lines, removes words of more than 100 characters, and separates words by one space."""
    lines = tf.strings.regex_replace(clean(strings, lower_case), _UNKNOWN_WORD, " ")
    return tf.strings.strip(_spaced(lines))


def basic_words(strings: tf.Tensor) -> tf.Tensor:
    """Lower-cases lines, strips accents and separates words by spaces, like BERT's basic tokenizer.

    Unlike `spaced_words`, this function keeps words of any length.
    """
    return tf.strings.strip(_spaced(_without_case(strings, lower_case=True)))


def _without_case(strings: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """Cleans lines like `clean`, but does not replace words of more than 100 characters."""
    # Most English lines are plain ASCII, which the slow ops would leave unchanged.
    lines = _where(strings, "[ -~]*", False, lambda lines: _clean_unicode(lines, lower_case))
    return tf.strings.lower(lines, encoding="utf-8") if lower_case else lines


def _where(lines: tf.Tensor, pattern: str, matching: bool, change) -> tf.Tensor:
    """Applies `change` to the lines that fully match `pattern` and keeps the other lines."""
    matches = tf.strings.regex_full_match(lines, pattern)
    indices = tf.where(matches == matching)  # (n, 1)
    return tf.tensor_scatter_nd_update(lines, indices, change(tf.gather(lines, indices[:, 0])))


def _clean_unicode(lines: tf.Tensor, lower_case: bool) -> tf.Tensor:
    lines = tf.strings.unicode_transcode(lines, "UTF-8", "UTF-8", errors="replace")
    lines = tf.strings.regex_replace(lines, r"[\t\n\r]", " ")
    lines = tf.strings.regex_replace(lines, r"[\pC\x{fffd}]+", "")
    if lower_case:
        lines = tensorflow_text.normalize_utf8(lines, "NFD")
        lines = tf.strings.regex_replace(lines, r"\p{Mn}+", "")
        # BERT lower-cases each character by itself, so a capital sigma never becomes a final sigma.
        lines = tf.strings.regex_replace(lines, "Σ", "σ")
    return lines


def _spaced(lines: tf.Tensor) -> tf.Tensor:
    lines = tf.strings.regex_replace(lines, rf"([{PUNCTUATION}{IDEOGRAPHS}])", r" \1 ")
    return tf.strings.regex_replace(lines, rf"[{_SPACE}]+", " ")


@dataclasses.dataclass(eq=False, repr=False)
class WordPieceVocabulary(PieceVocabulary):
    """WordPiece vocabulary, which tokenizes text exactly as BERT's tokenizer does.

    "[MASK]" or "[SEP]" in a text is tokenized as ordinary text, so a document cannot inject a
    special token.

    Args:
        words: pieces in the order of their ids. A piece that continues a word begins with "##". An
            empty string marks an unused id, which is never produced and decodes to "".
        lower_case: whether to lower-case text and strip accents, as for BERT's "uncased" models.
        special: ids of the special tokens; `None` means the ids of "[PAD]" and so on in `words`.

    References: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for
    Language Understanding"; Schuster and Nakajima 2012 for WordPiece.
    """

    kind = "wordpiece"
    contents_name = "vocabulary.txt"

    words: Sequence[str]
    lower_case: bool = True
    special: dataclasses.InitVar[Special | None] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, special: Special | None):
        ids_by_piece = {word: token_id for token_id, word in enumerate(self.words)}
        # The last id of a repeated piece counts, as in Hugging Face's tokenizers.
        self.words = tuple("" if ids_by_piece[w] != n else w for n, w in enumerate(self.words))
        self.pieces = len(self.words)
        missing = [piece for piece in SPECIAL_PIECES if piece not in ids_by_piece]
        if missing:
            raise UserError(f"the vocabulary has no token {missing[0]}: give a BERT vocabulary")
        self.special = special or Special(*(ids_by_piece[piece] for piece in SPECIAL_PIECES))

    @classmethod
    def from_file(cls, path: str | os.PathLike, lower_case: bool = True) -> "WordPieceVocabulary":
        """Reads a BERT `vocab.txt`, which contains one piece per line."""
        contents = storage.read_bytes(path)
        try:
            return cls.from_contents(contents, {"lower_case": lower_case})
        except UserError as error:
            raise UserError(f"cannot read {os.fspath(path)}: {error}") from error

    @classmethod
    @reports
    def train(
        cls,
        lines: Iterable[str],
        size: int,
        lower_case: bool = True,
        max_characters: int | None = None,
    ) -> "WordPieceVocabulary":
        """Trains a vocabulary. The same lines always give the same vocabulary.

        SentencePiece's BPE trainer learns the merges. Hugging Face's `tokenizers` breaks ties at
        random, so that two runs on six novels gave two different vocabularies. tensorflow_text's
        learner took 150 s for the 21,000 distinct words of these novels and returned 5,900 pieces
        instead of the requested 8,000.

        Args:
            size: number of pieces, including the 5 special pieces.
            max_characters: maximum number of distinct characters in pieces. The most frequent
                characters are chosen, and words with other characters are encoded as [UNK]. `None`
                means 1,000 characters, or more if 1,000 characters cover less than 99.95% of the
                text, a share that SentencePiece recommends for Chinese and Japanese.
        """
        words = map_lines(lambda strings: spaced_words(strings, lower_case), lines)
        # SentencePiece would read its own space mark in a text as a space.
        text = [line.replace(WORD_START, "").strip() for line in words]
        counts = collections.Counter(itertools.chain.from_iterable(text))
        counts.pop(" ", None)
        # Sorted by count, then by character, so that ties do not depend on the order of the text.
        ranked = sorted(counts, key=lambda character: (-counts[character], character))
        if max_characters is None:
            covered = np.cumsum([counts[character] for character in ranked])
            max_characters = int(np.searchsorted(covered, 0.9995 * counts.total())) + 1
            max_characters = max(1000, max_characters)
        alphabet = sorted(ranked[:max_characters])
        known_characters = {*alphabet, " "}
        known_lines = (
            " ".join(filter(known_characters.issuperset, line.split(" "))) for line in text
        )
        if not (known_lines := [line for line in known_lines if line]):
            raise UserError(NO_TEXT)
        # In Unicode order: first the pieces that start a word, then the continuations.
        singles = [*alphabet, *(CONTINUES + character for character in alphabet)]
        if size < (minimum := len(SPECIAL_PIECES) + len(singles)):
            remedy = ", or lower data.vocabulary.max_characters"
            raise too_small(size, "the text's characters", minimum, remedy)
        merges = _merges(known_lines, size - minimum + 2 * len(alphabet))
        if len(merges) < size - minimum:
            raise too_large(size, len(merges) + minimum)
        return cls([*SPECIAL_PIECES, *singles, *merges[: size - minimum]], lower_case)

    def contents(self) -> bytes:
        return "".join(f"{word}\n" for word in self.words).encode()

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict) -> "WordPieceVocabulary":
        return cls([word.removesuffix("\r") for word in lines_of(contents)], **settings)

    def normalized(self, strings: tf.Tensor, language: str | None = None) -> tf.Tensor:
        return clean(strings, self.lower_case)

    def piece_bytes(self, token_id: int) -> bytes:
        if not (word := self.words[token_id]):
            return b""
        return (word.removeprefix(CONTINUES) if word.startswith(CONTINUES) else f" {word}").encode()

    def starts_word(self, token_id: int) -> bool:
        # The piece "##" itself is two number signs, not a continuation.
        return not self.words[token_id].startswith(CONTINUES) or self.words[token_id] == CONTINUES

    @functools.cached_property
    def tokenizer(self) -> tensorflow_text.FastBertTokenizer:
        """In-graph tokenizer, built at first use.

        On 13.7 MB of English text, `FastBertTokenizer` is 4.8 times as fast as `BertTokenizer`. The
        lower-casing of `FastBertTokenizer` is off, because it would replace "ß" by "ss", unlike
        BERT. `clean` lower-cases the text instead.
        """
        # Lifted out of the graph under construction, because later graphs use the tensor too.
        with tf.init_scope():
            # A piece must be distinct and must not contain white space, which would change how the
            # words around it are split. The name of any other id starts with a control character,
            # which `clean` removes from texts.
            is_piece, numbered = re.compile(r"[^\s\x00]+").fullmatch, enumerate(self.words)
            return tensorflow_text.FastBertTokenizer(
                [word if is_piece(word) else f"\x01{token_id}" for token_id, word in numbered],
                token_out_type=tf.int32,
                max_bytes_per_word=LONG_WORD_BYTES,
                lower_case_nfd_strip_accents=False,
            )

    def trackables(self) -> list:
        return [self.tokenizer]


def _merges(text: list[str], size: int) -> list[str]:
    """Learns BPE merges, and returns the merged pieces in the order of training.

    In `text`, single spaces separate words. `size` also counts single characters, with and without
    the mark of a word start.
    """
    special = 3  # UNK, BOS and EOS
    # SentencePiece's vocabulary size counts its special pieces, its space mark, each character, and
    # merges of the space mark with one character. Such a merge is a single character here.
    proto = train_pieces(
        text,
        special + 1 + size,
        model_type="bpe",
        character_coverage=1.0,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=proto)
    pieces = (model.id_to_piece(i) for i in range(special, model.get_piece_size()))
    # A piece with SentencePiece's space mark starts a word; any other piece continues a word.
    pieces = (f"{CONTINUES}{piece}".removeprefix(f"{CONTINUES}{WORD_START}") for piece in pieces)
    return [piece for piece in pieces if len(piece.removeprefix(CONTINUES)) > 1]
