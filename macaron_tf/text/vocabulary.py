"""A SentencePiece vocabulary with its normalization: trained, saved, hashed, used in-graph."""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Sequence

import sentencepiece
import tensorflow as tf
import tensorflow_text

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.special_ids import BOS, EOS, PAD, UNK
from macaron_tf.text.normalization import (
    NormalizationConfig,
    in_chunks,
    normalize,
    normalize_lines,
)
from macaron_tf.text.sentencepiece import living_tokenizer, normalized_text, train_pieces


class Vocabulary:
    """A SentencePiece model, the normalization that precedes it and its pair of languages.

    Args:
        proto: the serialized SentencePiece model; its pieces 0 to 3 are PAD, UNK, BOS, EOS.
        normalization: what is done to a line before it is cut.
        languages: the source and the target language; they choose the punctuation rules.

    Attributes:
        processor: SentencePiece's own processor of the model.

    Raises:
        UserError: `proto` is no SentencePiece model, or its special ids are others.
    """

    def __init__(
        self,
        proto: bytes,
        normalization: NormalizationConfig | None = None,
        languages: Sequence[str] = ("en", "de"),
    ):
        self.proto = bytes(proto)
        self.normalization = normalization or NormalizationConfig()
        self.languages = tuple(languages)
        self.processor = sentencepiece.SentencePieceProcessor()
        try:
            self.processor.LoadFromSerializedProto(self.proto)
        except RuntimeError as error:
            raise UserError(
                "the vocabulary's model is not a SentencePiece model: train the vocabulary again"
            ) from error
        found = (
            self.processor.pad_id(),
            self.processor.unk_id(),
            self.processor.bos_id(),
            self.processor.eos_id(),
        )
        if found != (PAD, UNK, BOS, EOS):
            raise UserError(
                f"the SentencePiece model numbers PAD, UNK, BOS, EOS as {found}: "
                f"train it with pad_id={PAD} unk_id={UNK} bos_id={BOS} eos_id={EOS}"
            )
        self._tokenizer = None

    @classmethod
    def train(
        cls,
        lines: Iterable[str | tuple[str, str]],
        size: int,
        *,
        normalization: NormalizationConfig | None = None,
        languages: Sequence[str] = ("en", "de"),
        model_type: str = "bpe",
        character_coverage: float = 1.0,
        unicode_rule: str = "nmt_nfkc",
        max_lines: int = 10_000_000,
    ) -> "Vocabulary":
        """Trains a vocabulary; the same lines give the same vocabulary, byte for byte.

        Args:
            lines: lines of the source language, or (line, language) pairs; `interleave` makes
                the feed of a joint vocabulary from sentence pairs.
            size: number of pieces, the 4 special ones included.
            normalization: done to every line before it is counted; kept with the vocabulary.
            languages: source and target language.
            model_type: "bpe" (the papers') or "unigram".
            character_coverage: part of the characters that become pieces.
            unicode_rule: SentencePiece's own normalization: "nmt_nfkc", "nfkc" or "identity".
            max_lines: lines read at most; the first ones are taken.

        Returns:
            The vocabulary.

        Raises:
            UserError: no text at all, or too little of it (or too much) for `size` pieces.
        """
        normalization = normalization or NormalizationConfig()
        proto = train_pieces(
            normalized_text(lines, normalization, languages, max_lines),
            size,
            model_type=model_type,
            character_coverage=character_coverage,
            normalization_rule_name=unicode_rule,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
        )
        return cls(proto, normalization, languages)

    @property
    def pieces(self) -> int:
        """Number of real pieces, without the padding rows."""
        return self.processor.get_piece_size()

    @property
    def size(self) -> int:
        """Number of rows of an embedding table: the pieces, padded to a multiple of 8."""
        return -(-self.pieces // 8) * 8

    @property
    def hash(self) -> str:
        """SHA-256 (hex) over the model's bytes and the settings: what must never be mismatched."""
        settings = json.dumps(self._settings(), sort_keys=True).encode()
        return hashlib.sha256(settings + b"\0" + self.proto).hexdigest()

    def _settings(self) -> dict:
        return {
            "format": 1,
            "normalization": dataclasses.asdict(self.normalization),
            "languages": list(self.languages),
        }

    def save(self, directory: str | os.PathLike) -> None:
        """Writes `vocabulary.model` and `vocabulary.json` into a folder, each one atomically.

        Args:
            directory: the folder, `gs://` included; it is made when absent.

        Raises:
            UserError: the folder cannot be written.
        """
        directory = storage.as_path(directory)
        record = {**self._settings(), "pieces": self.pieces, "size": self.size, "hash": self.hash}
        # The model goes first: a record always finds its model, and `load` compares the hash.
        storage.write_aside(directory / "vocabulary.model", self.proto)
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        storage.write_aside(directory / "vocabulary.json", text.encode())

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "Vocabulary":
        """Reads a vocabulary that `save` wrote and verifies its hash.

        Args:
            directory: the folder with `vocabulary.model` and `vocabulary.json`, `gs://` included.

        Returns:
            The vocabulary.

        Raises:
            UserError: a file is missing, damaged, or not the one the hash was taken of.
        """
        directory = storage.as_path(directory)
        try:
            proto = (directory / "vocabulary.model").read_bytes()
            text = (directory / "vocabulary.json").read_bytes().decode()
        except (*storage.FILE_ERRORS, UnicodeDecodeError) as error:
            name = getattr(error, "filename", None) or directory / "vocabulary.json"
            raise UserError(
                f"no vocabulary in {directory}: cannot read {name}; "
                "train a vocabulary there or give the folder of one"
            ) from error
        record = directory / "vocabulary.json"
        try:
            settings = json.loads(text)
            vocabulary = cls(
                proto, NormalizationConfig(**settings["normalization"]), settings["languages"]
            )
            expected = settings["hash"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{record} is damaged: restore it or train the vocabulary again") from (
                error
            )
        except UserError as error:
            raise UserError(f"{directory / 'vocabulary.model'}: {error}") from error
        check_vocabulary(expected, vocabulary, str(record))
        return vocabulary

    def encode(self, strings: tf.Tensor, language: str | None = None) -> tf.RaggedTensor:
        """Lines to ids, in-graph: normalization, then pieces; no special ids are added.

        Args:
            strings: (B,) string tensor.
            language: whose punctuation rules apply; the source language when None.

        Returns:
            (B, None) int32 ragged tensor; an empty line gives an empty row.
        """
        lines = normalize(strings, self.normalization, language or self.languages[0])
        return self.tokenizer.tokenize(lines)

    def decode(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        """Ids to lines, in-graph: a row ends at its first EOS; PAD, UNK and BOS are left out.

        Args:
            ids: (B, L) int32 tensor, or ragged (B, None); ids of padding rows are left out too.

        Returns:
            (B,) string tensor.
        """
        if not isinstance(ids, tf.RaggedTensor):
            ids = tf.RaggedTensor.from_tensor(ids)
        ids = tf.cast(ids, tf.int32)
        # Flat over the batch, (N,): one line of 100,000 pieces must not widen all the others.
        flat, rows = ids.values, ids.value_rowids()
        places = tf.ragged.range(ids.row_lengths()).values
        eos_places = tf.where(flat == EOS, places, places.dtype.max)
        ends = tf.math.unsorted_segment_min(eos_places, rows, ids.nrows())  # (B,)
        kept = (places < tf.gather(ends, rows)) & (flat > EOS) & (flat < self.pieces)
        return self.tokenizer.detokenize(tf.ragged.boolean_mask(ids, ids.with_values(kept)))

    def encode_lines(self, lines: Iterable[str], language: str | None = None) -> list[list[int]]:
        """`encode` for a corpus: the same ids, through SentencePiece's own threads.

        Args:
            lines: any number of lines.
            language: as for `encode`.

        Returns:
            A list of ids for each line.
        """
        rows = []
        language = language or self.languages[0]
        for chunk in in_chunks(lines):
            text = normalize_lines(chunk, self.normalization, language)
            rows.extend(self.processor.encode(text, num_threads=os.cpu_count() or 1))
        return rows

    def decode_lines(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """`decode` outside a graph.

        Args:
            rows: the ids of each line, a list or an array.

        Returns:
            The lines.
        """
        kept = []
        for row in rows:
            row = [int(i) for i in row]
            row = row[: row.index(EOS)] if EOS in row else row
            kept.append([i for i in row if EOS < i < self.pieces])
        return self.processor.decode(kept) if kept else []

    @property
    def tokenizer(self) -> tensorflow_text.SentencepieceTokenizer:
        """The in-graph tokenizer, see `living_tokenizer`.

        FastSentencepieceTokenizer is 2.6 times as fast but wrong here: it cuts a BPE model's text
        as a unigram model does (0.04% of 58,000 lines came out equal), and cannot be tracked.
        """
        self._tokenizer = living_tokenizer(self._tokenizer, self.proto)
        return self._tokenizer

    def trackables(self) -> list:
        """The objects that a SavedModel has to track for `encode` and `decode` to work in it."""
        return [self.tokenizer]


def check_vocabulary(expected_hash: str, vocabulary: Vocabulary, where: str) -> None:
    """Refuses a vocabulary other than the one something was made with.

    Args:
        expected_hash: the `hash` that was recorded.
        vocabulary: the vocabulary at hand.
        where: what holds the recorded hash, for the message.

    Raises:
        UserError: the hashes differ.
    """
    if vocabulary.hash != expected_hash:
        raise UserError(
            f"vocabulary mismatch: {where} was made with vocabulary {str(expected_hash)[:12]} but "
            f"this one is {vocabulary.hash[:12]}; use the vocabulary saved beside it"
        )


def sample_lines(
    vocabulary: Vocabulary, lines: Iterable[str], dropout: float, seed: int, language: str
) -> list[list[int]]:
    """`Vocabulary.encode_lines` where every merge is left out with a probability.

    Provilkov et al. 2020, BPE-Dropout: Simple and Effective Subword Regularization, section 3.

    Args:
        vocabulary: a BPE vocabulary.
        lines: any number of lines.
        dropout: probability of leaving a merge out, in [0, 1].
        seed: the same seed gives the same ids.
        language: whose punctuation rules apply.

    Returns:
        A list of ids for each line.
    """
    encode = vocabulary.processor.encode

    def sample() -> list[list[int]]:
        return [
            encode(line, enable_sampling=True, alpha=dropout, nbest_size=-1)
            for chunk in in_chunks(lines)
            for line in normalize_lines(chunk, vocabulary.normalization, language)
        ]

    # SentencePiece seeds a thread's generator when the thread first draws: only a new thread
    # draws the same numbers again.
    sentencepiece.set_random_generator_seed(seed)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(sample).result()
