"""What every encoder vocabulary shares: its special ids, its hash, its files."""

import abc
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.special_ids import PAD
from macaron_tf.text.normalization import in_chunks
from macaron_tf.text.offsets import LocatedPieces
from macaron_tf.text.token_rows import TokenRows
from macaron_tf.text.vocabulary import check_vocabulary

RECORD = "vocabulary.json"


class PieceVocabulary(abc.ABC):
    """Base of the vocabularies of encoders: rows are `[CLS] a [SEP]`, or end with `b [SEP]`.

    A subclass sets `kind` and `contents_name`, the attributes below, and overrides `pieces`,
    `contents`, `settings`, `encode`, `word_starts`, `trackables`, `decode_lines`, `spellings` and
    `from_contents`.

    Attributes:
        pad_id, unk_id, cls_id, sep_id, mask_id: the special ids; `pad_id` is 0.
        pair_separators: how many [SEP] stand between two texts; RoBERTa's and XLM-R's have 2.
        spaces_after: whether a piece that ends a word brings the space after it along, where
            others have one that begins a word bring the space before it.
        cls_last: whether [CLS] ends a classification's row, as XLNet's, and does not begin it.
    """

    kind = ""
    contents_name = ""
    pad_id = PAD
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    pair_separators = 1
    cls_last = False
    spaces_after = False

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The five ids that stand for no text of their own: never hidden, never drawn."""
        return (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)

    @property
    @abc.abstractmethod
    def pieces(self) -> int:
        """Number of real pieces, without the padding rows."""

    @property
    def size(self) -> int:
        """V, the rows of an embedding table: the pieces, padded to a multiple of 8."""
        return -(-self.pieces // 8) * 8

    @property
    def hash(self) -> str:
        """SHA-256 (hex) over the contents and the settings: what must never be mismatched."""
        record = json.dumps({"kind": self.kind, **self.settings()}, sort_keys=True).encode()
        return hashlib.sha256(record + b"\0" + self.contents()).hexdigest()

    @abc.abstractmethod
    def contents(self) -> bytes:
        """The bytes of the vocabulary's own file."""

    @abc.abstractmethod
    def settings(self) -> dict:
        """What is done to text besides cutting it, as JSON takes it."""

    @classmethod
    @abc.abstractmethod
    def from_contents(cls, contents: bytes, settings: dict) -> "PieceVocabulary":
        """Makes the vocabulary again from `contents` and `settings`.

        Args:
            contents: the bytes of its file.
            settings: its settings.

        Returns:
            The vocabulary.

        Raises:
            UserError: the contents are not such a file's.
        """

    @abc.abstractmethod
    def encode(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Lines to ids, in-graph, without special ids.

        Args:
            strings: (B,) string tensor.

        Returns:
            (B, None) int32 ragged tensor; a line without text gives an empty row.
        """

    def encode_with_offsets(self, strings: tf.Tensor) -> LocatedPieces:
        """`encode`, in-graph, and where in the text each piece lies.

        Args:
            strings: (B,) string tensor of UTF-8.

        Returns:
            The pieces. What the vocabulary does to a text with an eye on more than one character
            (punctuation rules, BERT's limit of 100 characters a word) is left out.

        Raises:
            UserError: this kind of vocabulary cannot say.
        """
        raise UserError(
            f"a {self.kind} vocabulary cannot say where in a text its pieces lie: take a model "
            "with a WordPiece or SentencePiece vocabulary"
        )

    def encode_rows(self, lines: Iterable[str]) -> TokenRows:
        """`encode` for a corpus: the same ids, packed.

        Args:
            lines: any number of lines.

        Returns:
            A row of ids for each line.
        """
        dtype = np.uint16 if self.size <= 1 << 16 else np.int32
        ids, lengths = [np.zeros(0, dtype)], [np.zeros(1, np.int64)]
        for chunk in in_chunks(lines):
            # A lone surrogate, which UTF-8 cannot hold, is mended by `encode`.
            raw = [line.encode("utf-8", "surrogatepass") for line in chunk]
            with tf.device("CPU"):
                rows = self.encode(tf.constant(raw))  # (chunk, None)
            ids.append(rows.values.numpy().astype(dtype))
            lengths.append(rows.row_lengths().numpy())
        return TokenRows(np.concatenate(ids), np.cumsum(np.concatenate(lengths)))

    def encode_lines(self, lines: Iterable[str]) -> list[list[int]]:
        """`encode` outside a graph.

        Args:
            lines: any number of lines.

        Returns:
            A list of ids for each line.
        """
        rows = self.encode_rows(lines)
        ids, offsets = rows.ids.tolist(), rows.offsets.tolist()
        return [ids[a:b] for a, b in itertools.pairwise(offsets)]

    @abc.abstractmethod
    def decode_lines(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Ids to lines; special ids and those of no piece are left out.

        Args:
            rows: the ids of each line, a list or an array.

        Returns:
            The lines.
        """

    @abc.abstractmethod
    def spellings(self) -> list[bytes]:
        """What each of the V ids adds to a text: UTF-8, or a part of a character.

        A piece that begins a word brings the space before it along (or see `spaces_after`); special
        ids and those of no piece add nothing.
        """

    def _spelled(self, spelling: Callable[[int], bytes]) -> list[bytes]:
        """`spellings` from that of an id which stands for text."""
        special = set(self.special_ids)
        kept = (number < self.pieces and number not in special for number in range(self.size))
        return [spelling(number) if text else b"" for number, text in enumerate(kept)]

    @abc.abstractmethod
    def word_starts(self) -> np.ndarray:
        """(V,) bool: False where a piece continues the word that the piece before it is of."""

    @abc.abstractmethod
    def trackables(self) -> list:
        """The objects that a SavedModel has to track for `encode` to work in it."""

    def _with_separators(self, settings: dict) -> dict:
        # Left out where there is one: vocabularies from before it have that hash.
        count = self.pair_separators
        return settings if count == 1 else {**settings, "pair_separators": count}

    def _text_ids(self, rows: Iterable[Sequence[int]]) -> Iterator[list[int]]:
        special = set(self.special_ids)
        for row in rows:
            yield [int(i) for i in row if 0 <= i < self.pieces and int(i) not in special]

    def save(self, directory: str | os.PathLike) -> None:
        """Writes the vocabulary's file and `vocabulary.json` into a folder, each one atomically.

        Args:
            directory: the folder, `gs://` included; it is made when absent.

        Raises:
            UserError: the folder cannot be written.
        """
        record = {
            "kind": self.kind,
            "settings": self.settings(),
            "pieces": self.pieces,
            "size": self.size,
            "hash": self.hash,
        }
        # The contents go first: a record always finds them, and `load` compares the hash.
        storage.write_aside(storage.join(directory, self.contents_name), self.contents())
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        storage.write_aside(storage.join(directory, RECORD), text.encode())

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "PieceVocabulary":
        """Reads a vocabulary that `save` wrote and verifies its hash.

        Args:
            directory: its folder, `gs://` included.

        Returns:
            The vocabulary.

        Raises:
            UserError: a file is missing, damaged, of another kind of vocabulary, or not the one
                the hash was taken of.
        """
        place = storage.join(directory, RECORD)
        record = read_record(directory)
        if record["kind"] != cls.kind:
            raise UserError(
                f"{place} is of a {record['kind']!r} vocabulary, not of a {cls.kind!r} one: "
                "give the folder of the right one"
            )
        path = storage.join(directory, cls.contents_name)
        contents = storage.read_bytes(path)
        try:
            vocabulary = cls.from_contents(contents, record["settings"])
            expected = record["hash"]
        except (KeyError, TypeError) as error:
            raise UserError(f"{place} is damaged: restore it or train the vocabulary again") from (
                error
            )
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        check_vocabulary(expected, vocabulary, place)
        return vocabulary


def read_record(directory: str | os.PathLike) -> dict:
    """Reads what `vocabulary.json` says.

    Args:
        directory: the vocabulary's folder.

    Returns:
        The record; it has a "kind".

    Raises:
        UserError: no such file, a damaged one, or that of a translation vocabulary.
    """
    place = storage.join(directory, RECORD)
    if not storage.exists(place):
        raise UserError(
            f"no vocabulary in {os.fspath(directory)}: there is no {RECORD}; "
            "train a vocabulary there or give the folder of one"
        )
    try:
        record = json.loads(storage.read_bytes(place))
    except ValueError as error:
        raise UserError(f"{place} is damaged: restore it or train the vocabulary again") from error
    if not isinstance(record, dict) or "kind" not in record:
        raise UserError(
            f"{place} is not of an encoder vocabulary: give the folder of a WordPiece or "
            "SentencePiece vocabulary that was trained for encoders"
        )
    return record
