"""Base classes of vocabularies, with methods to encode, decode, save and load."""

import abc
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.progress import Progress
from macaron_tf.special import SPECIAL, SPECIAL_PIECES, Special
from macaron_tf.text.detokenizer import Detokenizer
from macaron_tf.text.normalization import (
    CUT,
    AlignedText,
    LocatedPieces,
    NormalizationConfig,
    as_strings,
    in_chunks,
    in_spaced_script,
    map_lines,
    split_at,
)
from macaron_tf.text.token_rows import TokenRows

RECORD = "vocabulary.json"
Item = TypeVar("Item")


class Vocabulary(abc.ABC):
    """Base class of vocabularies, which can be saved in a folder.

    The folder has two files: `contents_name` with the tokens, and `vocabulary.json` with the
    settings and a hash of tokens and settings. Subclasses are dataclasses, and the fields with a
    default value are the settings.

    Class attributes:
        kind: name of the class in `vocabulary.json`, from which `load` finds the class.

    Attributes:
        special: ids of the special tokens.
        pieces: number of tokens, not counting the unused rows that pad an embedding table.
        added: dict mapping text to id, for tokens that were added to a Hugging Face tokenizer. Text
            that equals an added token is always encoded as this single token.
        unnormalized: names of the tokens in `added` that are found in a text before the text is
            normalized. All other added tokens are normalized, and found in the normalized text.
        languages: language codes of the texts. In a translation model, the source language comes
            first. The tuple is empty if no language is set.
    """

    kind: ClassVar[str] = ""
    contents_name: ClassVar[str] = ""
    classes: ClassVar[dict[str, type["Vocabulary"]]] = {}
    special: Special = SPECIAL
    pieces: int
    added: Mapping[str, int] = types.MappingProxyType({})
    unnormalized: Sequence[str] = ()
    languages: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if cls.kind:
            Vocabulary.classes[cls.kind] = cls

    @property
    def size(self) -> int:
        """V, the number of embedding rows, a multiple of 8: for all pieces and special tokens."""
        return max(-(-self.pieces // 8) * 8, self.special.size)

    @functools.cached_property
    def hash(self) -> str:
        """Hexadecimal SHA-256 of `kind`, the settings and the tokens."""
        record = json.dumps({"kind": self.kind, **self.settings()}, sort_keys=True).encode()
        return hashlib.sha256(record + b"\0" + self.contents()).hexdigest()

    @abc.abstractmethod
    def contents(self) -> bytes:
        """Returns the bytes of the file `contents_name`, which stores the tokens."""

    def settings(self) -> dict[str, Any]:
        """Returns a dict of JSON types: the fields with a default value and `added` tokens."""
        names = [f.name for f in dataclasses.fields(self) if f.default is not dataclasses.MISSING]
        values = {name: getattr(self, name) for name in names}
        values |= {"special": self.special} if self.special.rows is not None else {}
        values |= {"added": dict(self.added)} if self.added else {}
        values |= {"unnormalized": self.unnormalized} if self.unnormalized else {}
        return json.loads(json.dumps(values, default=dataclasses.asdict))

    @classmethod
    def from_contents(cls, contents: bytes, settings: dict[str, Any]) -> Self:
        """Builds a vocabulary from its `contents` and the arguments of its constructor."""
        return cls(contents, **settings)

    @classmethod
    def restore(cls, contents: bytes, settings: dict[str, Any]) -> Self:
        """Builds a vocabulary from the results of its methods `contents` and `settings`."""
        tokens = ("added", "unnormalized")
        options = {name: value for name, value in settings.items() if name not in tokens}
        if "special" in options:
            options["special"] = Special.of(options["special"])
        if "normalization" in options:
            normalization = options["normalization"]
            options["normalization"] = NormalizationConfig(**normalization, trust_code=False)
        vocabulary = cls.from_contents(contents, options)
        if "added" in settings:
            vocabulary.added = settings["added"]
            vocabulary.unnormalized = settings.get("unnormalized", ())
        return vocabulary

    def __reduce__(self):
        # Pickles the contents and settings, because a tokenizer's TensorFlow ops cannot be pickled.
        return type(self).restore, (self.contents(), self.settings())

    def trackables(self) -> list:
        """Returns the lookup tables and tokenizers that a SavedModel must track."""
        return []

    def save(self, directory: str | os.PathLike) -> None:
        """Saves the vocabulary in a folder, each of its two files atomically."""
        record = {"kind": self.kind, "settings": self.settings()}
        record |= {"pieces": self.pieces, "size": self.size, "hash": self.hash}
        # The contents are written first, so that `vocabulary.json` never exists without them.
        folder = storage.as_path(directory)
        storage.write_atomic(folder / self.contents_name, self.contents())
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        storage.write_atomic(folder / RECORD, text.encode())

    @classmethod
    def load(cls, directory: str | os.PathLike) -> Self:
        """Loads a vocabulary of this class or of a subclass, and verifies its hash."""
        folder = storage.as_path(directory)
        record_path = folder / RECORD
        if not record_path.exists():
            raise UserError(f"there is no vocabulary in {folder}, because {RECORD} is missing")
        mend = "restore it or train the vocabulary again"
        record = storage.read_json(record_path, mend=mend, kind=str, settings=dict, hash=str)
        name, settings, expected = record["kind"], record["settings"], record["hash"]
        classes = {kind: c for kind, c in Vocabulary.classes.items() if issubclass(c, cls)}
        if name not in classes:
            kinds = " or ".join(classes)
            raise UserError(f"the vocabulary in {record_path} is of kind {name!r}, not {kinds}")
        path = folder / classes[name].contents_name
        contents = storage.read_bytes(path)
        try:
            vocabulary = classes[name].restore(contents, settings)
        except (KeyError, TypeError) as error:
            raise UserError(f"{record_path} is damaged: {mend}") from error
        except UserError as error:
            raise UserError(f"cannot read {path}: {error}") from error
        if vocabulary.hash != expected:
            raise UserError(
                f"{path} and {record_path} have the hash {vocabulary.hash[:12]}, not the saved "
                f"{expected[:12] or 'hash'}: restore both, or train the vocabulary again"
            )
        return vocabulary


def lines_of(contents: bytes) -> list[str]:
    """Splits the contents of a file that has one piece or word per line."""
    try:
        # `splitlines` would also split at other characters, which may be pieces.
        return contents.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line = contents[: error.start].count(b"\n") + 1
        raise UserError(f"line {line} is not UTF-8: give a vocabulary in UTF-8") from error


MAX_LINES = 10_000_000  # maximum number of lines on which a vocabulary is trained
SAMPLE = 500_000  # number of sentence pairs to train a joint vocabulary, which takes 1 GB of memory
NO_TEXT = (
    "there is no text to train a vocabulary on, because every line is empty after normalization: "
    "give other text"
)


def draw_sample(items: Iterable[Item], count: int, seed: int = 0) -> Iterator[Item]:
    """Draws a uniform random sample of at most `count` items, in one pass over `items`.

    A sample of more items has another order than `items`. After an item is yielded, the function
    keeps no reference to it, so that its memory is freed.

    References: Vitter 1985, "Random Sampling with a Reservoir", algorithm R.
    """
    items, rng = iter(items), np.random.default_rng(seed)
    reservoir, num_read = list(itertools.islice(items, count)), count
    for chunk in in_chunks(items):
        positions = rng.integers(0, np.arange(num_read, num_read + len(chunk)), endpoint=True)
        for i in np.flatnonzero(positions < count):
            reservoir[positions[i]] = chunk[i]
        num_read += len(chunk)
    reservoir.reverse()
    return (reservoir.pop() for _ in range(len(reservoir)))


def reports(train: Callable) -> Callable:
    """Decorates a `train` method: at most `MAX_LINES` lines, and a report of the training."""

    @functools.wraps(train)
    def trained(cls, lines: Iterable[str | tuple[str, str]], *arguments, **options):
        sample, step = [], 1

        def sampled_lines() -> Iterator:
            nonlocal step
            for index, item in enumerate(itertools.islice(lines, MAX_LINES)):
                if index % step == 0:
                    sample.append(item if isinstance(item, str) else item[0])
                if len(sample) > 10_000:
                    del sample[1::2]
                    step *= 2
                yield item

        with Progress("training the vocabulary", "lines") as progress:
            vocabulary = train(cls, progress.over(sampled_lines()), *arguments, **options)
        share = np.mean(vocabulary.encode_rows(sample).ids == vocabulary.special.unk)
        summary = f"{share:.3%} of the tokens in {len(sample):,} lines"
        print(f"unknown to the vocabulary: {summary}", flush=True)
        return vocabulary

    return trained


def too_small(size: int, units: str, minimum: int | str, remedy: str = "") -> UserError:
    """Returns the error for a vocabulary size that is too small for all characters or bytes."""
    return UserError(
        f"a vocabulary of {size} pieces is too small, because {units} and the special pieces need "
        f"{minimum}: raise its size to at least {minimum}{remedy}"
    )


def too_large(size: int, maximum: int | str) -> UserError:
    """Returns the error for a vocabulary size that is too large for the training text."""
    found = (
        f"a vocabulary of {size} pieces is too large for this text, which gives at most {maximum}"
    )
    return UserError(f"{found}: lower data.vocabulary.size (in translation data.vocabulary_size)")


def check_vocabulary(
    expected: str, actual: str, where: str | os.PathLike, remedy: str = ""
) -> None:
    """Raises a UserError if two vocabulary hashes differ."""
    if actual != expected:
        raise UserError(
            f"vocabulary mismatch between {where} (hash {str(expected)[:12] or 'none'}) and the "
            f"vocabulary in use (hash {actual[:12] or 'none'}): {remedy or f'use that of {where}'}"
        )


class PieceVocabulary(Vocabulary):
    """Base class of vocabularies that split text into subword pieces and join pieces to text.

    Encoders read a text as `[CLS] a [SEP]` and a pair of texts as `[CLS] a [SEP] b [SEP]`.
    A subclass defines `normalized`, `tokenizer`, `piece_bytes`, `starts_word`, and the abstract
    methods of `Vocabulary`.

    Attributes:
        pair_separators: number of [SEP] tokens between two texts (2 for RoBERTa and XLM-R).
        cls_last: whether [CLS] is the last token of a sequence, as in XLNet, instead of the first.
        mask_takes_space: whether [MASK] includes the white space before it, like the word that it
            replaces.
        spaces_after: whether the last piece of a word includes the space after the word. Otherwise,
            the first piece of a word includes the space before the word.
        leading_space: regular expression that matches the space that decoding adds at the start of
            a line.
        byte_fallback: whether the pieces `<0x00>` to `<0xFF>` encode the bytes of characters
            without a piece.
    """

    pair_separators = 1
    cls_last = False
    mask_takes_space = False
    spaces_after = False
    leading_space = "^ "
    byte_fallback = False

    @property
    def cls_first(self) -> bool:
        """Whether rows begin with [CLS]. T5 has no [CLS]: its decoder begins with padding."""
        return not self.cls_last and self.special.begin != self.special.pad

    def normalized(self, strings: tf.Tensor, language: str | None = None) -> tf.Tensor:
        """Normalizes lines `(B,)` for the tokenizer, in-graph.

        Some normalizations use the language, by default the first of `languages`.
        """
        raise NotImplementedError

    @property
    def tokenizer(self) -> Any:
        """In-graph tokenizer of normalized lines, with the interface of tensorflow_text."""
        return self

    @abc.abstractmethod
    def piece_bytes(self, token_id: int) -> bytes:
        """Returns the UTF-8 bytes that a piece adds to a text.

        A piece may be a part of a character. `token_id` must not be a special id.
        """

    def piece_name(self, token_id: int) -> str:
        """Returns the text of a piece, including its space, or the name of a special id."""
        names = dict(zip(self.special.roles, SPECIAL_PIECES, strict=True))
        return names.get(token_id) or self.piece_bytes(token_id).decode("utf-8", "backslashreplace")

    def starts_word(self, token_id: int) -> bool:
        """Returns whether a piece begins a word. `token_id` must not be a special id."""
        raise UserError(f"whole words cannot be masked, as {self.kind} does not mark their starts")

    def encode(self, strings: tf.Tensor, language: str | None = None) -> tf.RaggedTensor:
        """Encodes lines `(B,)` in-graph as ids `(B, None)` int32, without special tokens."""
        raw, normalized = self._added_names()

        def tokenize(texts: tf.Tensor) -> Sequence[tf.RaggedTensor]:
            lines = self.normalized(texts, language)
            return _with_added(lines, normalized, lambda parts: [self.tokenizer.tokenize(parts)])

        return _with_added(strings, raw, tokenize)[0]

    def encode_with_offsets(self, strings: tf.Tensor) -> LocatedPieces:
        """Encodes lines and finds the position of each piece in its line (see `AlignedText`).

        The ids are those of `encode`, unless the normalization of a word depends on other words.
        """
        raw, normalized = self._added_names()

        def tokenize(texts: tf.Tensor) -> list[tf.RaggedTensor]:
            aligned, pieces = AlignedText(texts, self.normalized), self.tokenizer
            located = _with_added(aligned.normalized, normalized, pieces.tokenize_with_offsets)
            return [located[0], *aligned.original(*located[1:])]

        return LocatedPieces(*_with_added(strings, raw, tokenize, "UTF8_CHAR"))

    def _added_names(self) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the ids of added tokens by names: those in raw and those in normalized text."""
        if not self.added:
            return {}, {}
        normalized = [name for name in self.added if name not in self.unnormalized]
        with tf.init_scope():
            names = list(self.normalized_lines(normalized))
        ids = {n: self.added[name] for n, name in zip(names[::-1], normalized[::-1], strict=True)}
        return {name: self.added[name] for name in self.unnormalized}, ids

    def encode_rows(self, lines: Iterable[str], language: str | None = None) -> TokenRows:
        """Encodes lines eagerly, in chunks, with the same result as `encode`."""
        parts = []
        for chunk in in_chunks(lines):
            with tf.device("CPU"):
                rows = self.encode(as_strings(chunk), language)  # (chunk, None)
            parts.append(TokenRows(rows.values.numpy(), rows.row_splits.numpy()))
        return TokenRows.joined(parts, self.size)

    def normalized_lines(self, lines: Iterable[str], language: str | None = None) -> Iterator[str]:
        """Normalizes lines eagerly (see `normalized`)."""
        return map_lines(lambda strings: self.normalized(strings, language), lines)

    def encode_lines(self, lines: Iterable[str], language: str | None = None) -> list[list[int]]:
        """Encodes lines eagerly, and returns a list of ids for each line."""
        rows = self.encode_rows(lines, language)
        ids, offsets = rows.ids.tolist(), rows.offsets.tolist()
        return [ids[a:b] for a, b in itertools.pairwise(offsets)]

    def decode(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        """Decodes dense or ragged ids `(B, L)` to lines `(B,)`, in-graph.

        Decoding of a sequence stops at the first [SEP]. Special ids and ids outside [0, V) add no
        text.
        """
        if not isinstance(ids, tf.RaggedTensor):
            ids = tf.RaggedTensor.from_tensor(ids)
        # Flat ids (N,), because a dense tensor would pad every line to the length of the longest.
        flat, rows = ids.values, ids.value_rowids()
        positions = tf.ragged.range(ids.row_lengths()).values
        ends = tf.where(flat == self.special.end, positions, positions.dtype.max)
        ends = tf.math.unsorted_segment_min(ends, rows, ids.nrows())  # (B,)
        is_text = (positions < tf.gather(ends, rows)) & (flat >= 0) & (flat < self.size)
        flat = tf.where(is_text, flat, self.special.pad)
        texts = self.detokenizer.in_graph(ids.with_values(flat))
        return tf.strings.regex_replace(texts, self.leading_space, "")

    def decode_lines(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Decodes lists or arrays of ids in Python, with the same result as `decode`."""
        lines, size = [], self.size
        for row in rows:
            ids = itertools.takewhile(lambda n: n != self.special.end, map(int, row))
            text = self.detokenizer(token_id for token_id in ids if 0 <= token_id < size)
            lines.append(re.sub(self.leading_space, "", text))
        return lines

    @functools.cached_property
    def detokenizer(self) -> Detokenizer:
        """`Detokenizer`, whose texts may begin with a space that the original text did not have."""
        token_bytes = [b""] * self.size
        for token_id in self._text_ids:
            token_bytes[token_id] = self.piece_bytes(token_id)
        return Detokenizer(token_bytes, self.spaces_after, self.byte_fallback)

    @property
    def _text_ids(self) -> list[int]:
        special = {*self.special.ids, *self.special.sentinels}
        return [token_id for token_id in range(self.pieces) if token_id not in special]

    def word_starts(self) -> np.ndarray:
        """Returns a `(V,)` bool array, which is True for special ids and for ids that begin a word.

        Unused ids are also True. In scripts without spaces between words, such as Chinese and Thai,
        each piece begins a word. Otherwise a sentence would be a single word, too long to be
        masked.
        """
        starts = np.ones(self.size, bool)
        for token_id in self._text_ids:
            in_word = not self.starts_word(token_id)
            starts[token_id] = not (in_word and in_spaced_script(self.piece_bytes(token_id)))
        return starts


def _with_added(
    texts: tf.Tensor, added: Mapping[str, int], tokenize: Callable, unit: str = "BYTE"
) -> Sequence[tf.RaggedTensor]:
    """Tokenizes texts `(B,)`, and encodes each added token in the texts as a single id.

    `tokenize` returns the ids `(N, None)` of texts `(N,)` without added tokens, and optionally the
    positions of token starts and ends, in the unit "BYTE" or "UTF8_CHAR", as the result does.
    """
    # Longer tokens come first, so that they take precedence over their prefixes, as in Hugging
    # Face's tokenizers. A token without a name is never found.
    names = sorted(filter(None, added), key=len, reverse=True)
    if not names:
        return tokenize(texts)
    # (B, None): text and added tokens take turns. `regex_split` would lose the text after a NUL.
    parts = split_at(texts, "|".join(map(re.escape, names)), rf"{CUT}\0{CUT}")
    is_added = tf.ragged.range(parts.row_lengths()).values % 2 == 1
    matches = tf.cast(parts.values[:, None] == tf.constant(names), tf.int32)  # (N, added)
    ids = tf.gather([added[name] for name in names], tf.argmax(matches, axis=1))
    lengths = parts.with_values(tf.cast(tf.strings.length(parts.values, unit), tf.int64))
    starts = tf.cumsum(lengths, axis=1, exclusive=True).values
    results, of_added = [], (ids, starts, starts + lengths.values)
    tokenized = tokenize(tf.where(is_added, "", parts.values))
    for values, pieces in zip(of_added, tokenized, strict=False):
        pieces = tf.cast(pieces, values.dtype)
        if results:  # positions within the part become positions within the line
            pieces += starts[:, None]
        values = tf.ragged.boolean_mask(values[:, None], is_added[:, None])  # (N, 0 or 1)
        results.append(parts.with_values(tf.concat([pieces, values], axis=1)).merge_dims(1, 2))
    return results
