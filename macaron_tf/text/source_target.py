"""Vocabularies for the source and the target of a model with an encoder and a decoder."""

import base64
import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any, Self

import tensorflow as tf

from macaron_tf.errors import UserError, parse_json
from macaron_tf.io.paths import refuse_damage
from macaron_tf.text.base import PieceVocabulary, Vocabulary
from macaron_tf.text.normalization import NormalizationConfig, normalize, normalize_lines
from macaron_tf.text.token_rows import TokenRows


@dataclasses.dataclass(eq=False, repr=False)
class PairVocabulary(PieceVocabulary):
    """Pair of vocabularies for the source and the target language of a translation model.

    `encode` uses the target vocabulary for the target language, and otherwise the source
    vocabulary. `decode` uses the target vocabulary.

    Args:
        normalization: additional normalization before the vocabularies' own normalization.
    """

    kind = "pair"
    contents_name = "vocabulary.pair"

    source: PieceVocabulary
    target: PieceVocabulary
    normalization: NormalizationConfig = NormalizationConfig()
    languages: Sequence[str] = ("en", "de")

    def __post_init__(self):
        target = self.target
        sides = (self.source.special, target.special)
        if len({(special.pad, special.begin, special.end) for special in sides}) > 1:
            raise UserError(
                "the two vocabularies have their special tokens at different ids: train both here, "
                "or use one vocabulary for both languages"
            )
        self.languages = tuple(self.languages)
        self.special, self.pieces = target.special, target.pieces
        self.spaces_after, self.leading_space = target.spaces_after, target.leading_space
        self.byte_fallback = target.byte_fallback

    @property
    def size(self) -> int:
        """V, the size of the larger vocabulary."""
        return max(self.source.size, self.target.size)

    def contents(self) -> bytes:
        sides = {}
        for name, side in (("source", self.source), ("target", self.target)):
            contents = base64.b64encode(side.contents()).decode()
            sides[name] = {"kind": side.kind, "settings": side.settings(), "contents": contents}
        return json.dumps(sides, indent=0, sort_keys=True).encode()

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict[str, Any]) -> Self:
        vocabularies, classes = [], Vocabulary.classes
        with refuse_damage("the file of two vocabularies", "restore it from a copy"):
            sides = parse_json(contents, source=dict, target=dict)
            for side in (sides["source"], sides["target"]):
                side_contents = base64.b64decode(side["contents"])
                vocabularies.append(classes[side["kind"]].restore(side_contents, side["settings"]))
        return cls(*vocabularies, **settings)

    def _side(self, language: str | None) -> tuple[PieceVocabulary, str]:
        """Returns the vocabulary of a language, and the language. `None` means the source."""
        language = language or self.languages[0]
        return (self.target if language == self.languages[1] else self.source), language

    def encode(self, strings: tf.Tensor, language: str | None = None) -> tf.RaggedTensor:
        side, language = self._side(language)
        return side.encode(normalize(strings, self.normalization, language), language)

    def encode_rows(self, lines: Iterable[str], language: str | None = None) -> TokenRows:
        side, language = self._side(language)
        return side.encode_rows(normalize_lines(lines, self.normalization, language), language)

    def piece_bytes(self, token_id: int) -> bytes:
        return self.target.piece_bytes(token_id)

    def trackables(self) -> list:
        return [*self.source.trackables(), *self.target.trackables()]


class TextVocabulary:
    """Vocabulary that encodes and truncates sources and targets of a text-to-text model.

    Args:
        max_source: maximum number of ids in a source, including EOS.
        max_target: maximum number of ids in a target, including EOS.
        starts: whether the ids of a line begin with BOS, as in Hugging Face's BART.

    Attributes:
        languages: the names "source" and "target", which are used instead of language codes.
    """

    languages = ("source", "target")

    def __init__(
        self, vocabulary: PieceVocabulary, max_source: int, max_target: int, starts: bool = False
    ):
        self.vocabulary = vocabulary
        self.limits = dict(zip(self.languages, (max_source, max_target), strict=True))
        self.special = vocabulary.special
        self.prefix = [self.special.begin] if starts else []
        self.pieces, self.size, self.hash = vocabulary.pieces, vocabulary.size, vocabulary.hash
        self.decode_lines = vocabulary.decode_lines

    def encode_lines(self, lines: Iterable[str], language: str = "source") -> list[list[int]]:
        """Encodes lines, and truncates each line so that the caller can append EOS."""
        max_ids = self.limits[language] - 1
        rows = self.vocabulary.encode_lines(lines)
        return [[*self.prefix, *row][:max_ids] if row else [] for row in rows]

    def encode_rows(self, lines: Iterable[str], language: str = "source") -> TokenRows:
        """Encodes lines like `encode_lines`, but returns the ids in one flat array."""
        return TokenRows.from_lists(self.encode_lines(lines, language), self.size)
