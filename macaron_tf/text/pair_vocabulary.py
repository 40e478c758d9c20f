"""Vocabularies of pre-trained models where a translation has one: the source's and the target's."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Sequence

import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.special_ids import BOS, EOS, PAD
from macaron_tf.text.base import RECORD, PieceVocabulary
from macaron_tf.text.loading import load_encoder_vocabulary
from macaron_tf.text.normalization import (
    NormalizationConfig,
    in_chunks,
    normalize,
    normalize_lines,
)
from macaron_tf.text.vocabulary import Vocabulary, check_vocabulary
from macaron_tf.text.words import spelled, spelled_in_graph

_SIDES = ("source", "target")


class PairVocabulary:
    """Lines of two languages to ids, and ids to lines of the target, as `Vocabulary` does.

    Args:
        source, target: of each side; one and the same where both were learnt together.
        normalization: done to a line before it is cut.
        languages: of the source and the target.

    Attributes:
        pieces: real ids of the target.

    Raises:
        UserError: the special ids of a side are not an encoder-decoder's.
    """

    def __init__(
        self,
        source: PieceVocabulary,
        target: PieceVocabulary,
        normalization: NormalizationConfig | None = None,
        languages: Sequence[str] = ("en", "de"),
    ):
        for side in (source, target):
            check_ends(side)
        self.source, self.target = source, target
        self.normalization = normalization or NormalizationConfig()
        self.languages = tuple(languages)
        self.pieces = target.pieces
        self.spellings = target.spellings()

    @property
    def size(self) -> int:
        """Greater than every id of both sides."""
        return max(self.source.size, self.target.size)

    @property
    def hash(self) -> str:
        """SHA-256 (hex) over both vocabularies and the settings."""
        record = [self.source.hash, self.target.hash, self._settings()]
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()

    def _settings(self) -> dict:
        return {
            "normalization": dataclasses.asdict(self.normalization),
            "languages": list(self.languages),
        }

    def _side(self, language: str | None) -> tuple[PieceVocabulary, str]:
        """The vocabulary of a language, the source's by default, and the language."""
        language = language or self.languages[0]
        return (self.target if language == self.languages[1] else self.source), language

    def encode(self, strings: tf.Tensor, language: str | None = None) -> tf.RaggedTensor:
        """Lines `(B,)` to ids `(B, None)` int32, in-graph; no special ids are added."""
        vocabulary, language = self._side(language)
        lines = normalize(strings, self.normalization, language)
        return tf.cast(vocabulary.encode(lines), tf.int32)

    def decode(self, ids: tf.Tensor) -> tf.Tensor:
        """Ids `(B, L)` to lines `(B,)`, in-graph: a row ends at its first EOS."""
        # (B, L): how many EOS stand before.
        ended = tf.cumsum(tf.cast(ids == EOS, tf.int32), axis=1)
        kept = tf.where((ended == 0) & (ids < self.pieces), ids, PAD)
        texts = spelled_in_graph(self.spellings, kept, self.target.spaces_after)
        return tf.strings.regex_replace(texts, "^ ", "")

    def encode_lines(self, lines: Iterable[str], language: str | None = None) -> list[list[int]]:
        """`encode` for a corpus: a list of ids for each line."""
        vocabulary, language = self._side(language)
        rows = []
        for chunk in in_chunks(lines):
            rows += vocabulary.encode_lines(normalize_lines(chunk, self.normalization, language))
        return rows

    def decode_lines(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """`decode` outside a graph."""
        lines = []
        for row in rows:
            row = [int(i) for i in row]
            row = row[: row.index(EOS)] if EOS in row else row
            kept = (i for i in row if i < self.pieces)
            text = spelled(self.spellings, kept, self.target.spaces_after)
            lines.append(text.removeprefix(" "))
        return lines

    def trackables(self) -> list:
        """What a SavedModel has to track for `encode` and `decode` to work in it."""
        return [*self.source.trackables(), *self.target.trackables()]

    def save(self, directory: str | os.PathLike) -> None:
        """Writes both vocabularies and `vocabulary.json` into a folder, made when absent.

        Raises:
            UserError: the folder cannot be written.
        """
        directory = storage.as_path(directory)
        for name in _SIDES:
            getattr(self, name).save(directory / name)
        record = {**self._settings(), "pieces": self.pieces, "hash": self.hash}
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        storage.write_aside(directory / RECORD, text.encode())

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "PairVocabulary":
        """Reads what `save` wrote and verifies its hash.

        Raises:
            UserError: a file is missing, damaged, or not the one the hash was taken of.
        """
        directory = storage.as_path(directory)
        sides = [load_encoder_vocabulary(directory / name) for name in _SIDES]
        place = storage.join(directory, RECORD)
        try:
            record = json.loads(storage.read_bytes(place))
            normalization = NormalizationConfig(**record["normalization"])
            vocabulary = cls(*sides, normalization, record["languages"])
            expected = record["hash"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{place} is damaged: restore it or train the run again") from error
        check_vocabulary(expected, vocabulary, place)
        return vocabulary


def load_translation_vocabulary(directory: str | os.PathLike) -> Vocabulary | PairVocabulary:
    """Reads the vocabulary of a translation run, of whichever class.

    Args:
        directory: its folder, `gs://` included.

    Raises:
        UserError: see `Vocabulary.load` and `PairVocabulary.load`.
    """
    paired = (storage.as_path(directory) / _SIDES[0] / RECORD).exists()
    return (PairVocabulary if paired else Vocabulary).load(directory)


SOURCE, TARGET = "source", "target"


class TextVocabulary:
    """Lines to ids and back, what is too long being cut off.

    Args:
        vocabulary: whose [CLS] and [SEP] are BOS and EOS, as of all that are trained here.
        max_source, max_target: greatest number of ids of a line, EOS included.
        starts: whether the ids of a line begin with BOS, as BART's of Hugging Face.

    Attributes:
        languages: the names of the two sides, which stand where a translation has languages.

    Raises:
        UserError: the special ids are others.
    """

    languages = (SOURCE, TARGET)

    def __init__(
        self, vocabulary: PieceVocabulary, max_source: int, max_target: int, starts: bool = False
    ):
        check_ends(vocabulary)
        self.vocabulary = vocabulary
        self.limits = {SOURCE: max_source, TARGET: max_target}
        self.before = [BOS] if starts else []
        self.pieces, self.size, self.hash = vocabulary.pieces, vocabulary.size, vocabulary.hash

    def encode_lines(self, lines: Iterable[str], language: str = SOURCE) -> list[list[int]]:
        """Lines to ids, room being left for EOS.

        Args:
            lines: any number of lines.
            language: `"source"` or `"target"`.

        Returns:
            A list of ids for each line; none for a line without text.
        """
        room = self.limits[language] - 1
        rows = self.vocabulary.encode_lines(lines)
        return [[*self.before, *row][:room] if row else [] for row in rows]

    def decode_lines(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Ids to lines, see `PieceVocabulary.decode_lines`."""
        return self.vocabulary.decode_lines(rows)


def check_ends(vocabulary: PieceVocabulary) -> None:
    """Raises a UserError where [CLS] and [SEP] are not an encoder-decoder's BOS and EOS."""
    if (vocabulary.cls_id, vocabulary.sep_id) != (BOS, EOS):
        raise UserError(
            f"the vocabulary has [CLS] and [SEP] at ids {vocabulary.cls_id} and "
            f"{vocabulary.sep_id}, an encoder-decoder needs {BOS} and {EOS}: take a run whose "
            "vocabulary was trained here"
        )
