"""A SentencePiece vocabulary for encoders, with [CLS], [SEP] and [MASK]."""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import sentencepiece
import tensorflow as tf
import tensorflow_text
from sentencepiece import sentencepiece_model_pb2

from macaron_tf.errors import UserError
from macaron_tf.special_ids import PAD, UNK
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.normalization import (
    NormalizationConfig,
    in_chunks,
    normalize,
    normalize_lines,
)
from macaron_tf.text.offsets import LocatedPieces, locate
from macaron_tf.text.sentencepiece import living_tokenizer, normalized_text, train_pieces
from macaron_tf.text.token_rows import TokenRows

CLS, SEP, MASK = 2, 3, 4
CONTROL = ("[CLS]", "[SEP]", "[MASK]")
_WORD_START = "\u2581"
_FLAGS = ("fold_accents", "cls_last")


class SentencePieceEncoderVocabulary(PieceVocabulary):
    """A SentencePiece model whose pieces 0 to 4 are PAD, UNK, [CLS], [SEP] and [MASK].

    Args:
        proto: the serialized model.
        normalization: what is done to a line before it is cut.
        language: whose punctuation rules the normalization applies.
        fold_accents: before all else, take accents off and write LaTeX's quotation marks as `"`,
            as ALBERT does.
        pair_separators, cls_last: see `PieceVocabulary`.

    Attributes:
        processor: SentencePiece's own processor of the model.

    Raises:
        UserError: `proto` is no SentencePiece model, or its special pieces are others.
    """

    kind = "sentencepiece"
    contents_name = "vocabulary.model"
    unk_id, cls_id, sep_id, mask_id = UNK, CLS, SEP, MASK

    def __init__(
        self,
        proto: bytes,
        normalization: NormalizationConfig | None = None,
        language: str = "en",
        fold_accents: bool = False,
        pair_separators: int = 1,
        cls_last: bool = False,
    ):
        self.proto = bytes(proto)
        self.normalization = normalization or NormalizationConfig()
        self.language = language
        self.fold_accents = fold_accents
        self.pair_separators = pair_separators
        self.cls_last = cls_last
        self.processor = sentencepiece.SentencePieceProcessor()
        try:
            self.processor.LoadFromSerializedProto(self.proto)
        except RuntimeError as error:
            raise UserError(
                "the vocabulary's model is not a SentencePiece model: train the vocabulary again"
            ) from error
        numbers = self.processor.piece_to_id(list(CONTROL))
        found = (self.processor.pad_id(), self.processor.unk_id(), *numbers)
        control = all(self.processor.is_control(i) for i in numbers)
        if found != (PAD, UNK, CLS, SEP, MASK) or not control:
            raise UserError(
                "the SentencePiece model does not hold PAD, UNK, [CLS], [SEP] and [MASK] as its "
                f"control pieces 0 to 4: train it with pad_id={PAD} unk_id={UNK} bos_id=-1 "
                f"eos_id=-1 control_symbols={','.join(CONTROL)}"
            )
        self._tokenizer = None

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        size: int,
        *,
        normalization: NormalizationConfig | None = None,
        language: str = "en",
        fold_accents: bool = False,
        model_type: str = "bpe",
        character_coverage: float = 0.9999,
        unicode_rule: str = "nmt_nfkc",
        max_lines: int = 10_000_000,
    ) -> "SentencePieceEncoderVocabulary":
        """Trains a vocabulary; the same lines give the same vocabulary, byte for byte.

        Args:
            lines: lines of text.
            size: number of pieces, the 5 special ones included.
            normalization, language, fold_accents: as for the class.
            model_type: "bpe" or "unigram".
            character_coverage: part of the text's characters that become pieces: all but one in
                10,000, for an encyclopedia holds thousands of characters that occur once.
            unicode_rule: SentencePiece's own normalization: "nmt_nfkc", "nfkc" or "identity".
            max_lines: lines read at most; the first ones are taken.

        Returns:
            The vocabulary.

        Raises:
            UserError: no text at all, or too little of it (or too much) for `size` pieces.
        """
        normalization = normalization or NormalizationConfig()
        if fold_accents:
            lines = _folded_lines(lines)
        proto = train_pieces(
            normalized_text(lines, normalization, [language], max_lines),
            size,
            model_type=model_type,
            character_coverage=character_coverage,
            normalization_rule_name=unicode_rule,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=-1,
            eos_id=-1,
            control_symbols=list(CONTROL),
        )
        return cls(proto, normalization, language, fold_accents)

    @property
    def pieces(self) -> int:
        return self.processor.get_piece_size()

    def contents(self) -> bytes:
        return self.proto

    def settings(self) -> dict:
        settings = {
            "normalization": dataclasses.asdict(self.normalization),
            "language": self.language,
        }
        # Left out where it is not so: vocabularies from before it have that hash.
        others = {name: True for name in _FLAGS if getattr(self, name)}
        return self._with_separators({**settings, **others})

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict) -> "SentencePieceEncoderVocabulary":
        settings = dict(settings)
        normalization = NormalizationConfig(**settings.pop("normalization"))
        return cls(contents, normalization, **settings)

    @property
    def model_type(self) -> str:
        """The trainer's: "bpe" or "unigram", or another of SentencePiece's."""
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString(self.proto)
        kinds = sentencepiece_model_pb2.TrainerSpec.ModelType
        return kinds.Name(model.trainer_spec.model_type).lower()

    def encode(self, strings: tf.Tensor) -> tf.RaggedTensor:
        strings = _folded(strings) if self.fold_accents else strings
        return self.tokenizer.tokenize(normalize(strings, self.normalization, self.language))

    def encode_with_offsets(self, strings: tf.Tensor) -> LocatedPieces:
        def normalized(lines: tf.Tensor) -> tf.Tensor:
            lines = _folded(lines) if self.fold_accents else lines
            return normalize(lines, self.normalization, self.language)

        return locate(strings, normalized, self.tokenizer)

    def encode_rows(self, lines: Iterable[str]) -> TokenRows:
        """As the base's, through SentencePiece's own threads."""
        rows = []
        lines = _folded_lines(lines) if self.fold_accents else lines
        for chunk in in_chunks(lines):
            text = normalize_lines(chunk, self.normalization, self.language)
            rows += self.processor.encode(text, num_threads=os.cpu_count() or 1)
        return TokenRows.from_lists(rows, self.size)

    def decode_lines(self, rows: Iterable[Sequence[int]]) -> list[str]:
        kept = list(self._text_ids(rows))
        return self.processor.decode(kept) if kept else []

    def spellings(self) -> list[bytes]:
        pieces = self.processor.id_to_piece
        return self._spelled(lambda i: pieces(i).replace(_WORD_START, " ").encode())

    def word_starts(self) -> np.ndarray:
        starts = np.ones(self.size, bool)
        for number in range(MASK + 1, self.pieces):
            starts[number] = self.processor.id_to_piece(number).startswith(_WORD_START)
        return starts

    @property
    def tokenizer(self) -> tensorflow_text.SentencepieceTokenizer:
        """The in-graph tokenizer, see `living_tokenizer`."""
        self._tokenizer = living_tokenizer(self._tokenizer, self.proto)
        return self._tokenizer

    def trackables(self) -> list:
        return [self.tokenizer]


def _folded(strings: tf.Tensor) -> tf.Tensor:
    """ALBERT's text cleaning but for its case: `(B,)` strings to `(B,)` strings."""
    lines = tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")
    lines = tf.strings.regex_replace(lines, "``|''", '"')
    return tf.strings.regex_replace(tensorflow_text.normalize_utf8(lines, "NFKD"), r"\pM+", "")


def _folded_lines(lines: Iterable[str]) -> Iterator[str]:
    for chunk in in_chunks(lines):
        with tf.device("CPU"):
            raw = [line.encode("utf-8", "surrogatepass") for line in chunk]
            folded = _folded(tf.constant(raw)).numpy().tolist()
        yield from (line.decode("utf-8") for line in folded)
