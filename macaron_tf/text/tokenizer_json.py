"""Vocabulary of any `tokenizer.json`, which Hugging Face's package tokenizers encodes in Python."""

import dataclasses
import json
import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError, first_line, needed
from macaron_tf.special import Special
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.byte_pairs import BYTES, WORD_END
from macaron_tf.text.normalization import LocatedPieces
from macaron_tf.text.sentencepiece import WORD_START
from macaron_tf.text.wordpiece import CONTINUES


@dataclasses.dataclass(eq=False, repr=False)
class TokenizerJsonVocabulary(PieceVocabulary):
    """Vocabulary that encodes text in Python, for a `tokenizer.json` that no graph can express.

    As in all vocabularies, the name of a special token in a text is plain text.
    """

    kind = "tokenizer_json"
    contents_name = "tokenizer.json"

    text: bytes
    special: dataclasses.InitVar[Special]
    pair_separators: int = 1
    cls_last: bool = False
    mask_takes_space: bool = False

    def __post_init__(self, special: Special):
        with needed("a vocabulary of tokenizer.json"):
            import tokenizers
        self.special = special
        fields = json.loads(self.text)
        for token in fields.get("added_tokens") or ():
            token["special"] = token["id"] in {*special.ids, *special.sentinels}
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(fields))
        except Exception as error:  # the package has no class of its own for this error
            raise UserError(
                f"the package tokenizers cannot read tokenizer.json ({first_line(error):.200}): "
                "install its newest version"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        token_ids = self._tokenizer.get_vocab()
        self.names = [""] * (1 + max(token_ids.values()))
        for name, token_id in token_ids.items():
            self.names[token_id] = name
        self.pieces = len(self.names)
        self._added = {*self._tokenizer.get_added_tokens_decoder()}
        self._decoder = json.dumps(fields.get("decoder"))
        self.byte_fallback = "ByteFallback" in self._decoder
        self.spaces_after = WORD_END in self._decoder
        self.leading_space = "" if "ByteLevel" in self._decoder else "^ "

    @property
    def starts(self) -> bool:
        """Whether the tokenizer puts a special token before a text."""
        row = self._tokenizer.encode("").ids
        return bool(row) and row[0] == self.special.begin and not self.cls_last

    def contents(self) -> bytes:
        return self.text

    def normalized(self, strings: tf.Tensor, language: str | None = None) -> tf.Tensor:
        return tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")

    def encode_with_offsets(self, strings: tf.Tensor) -> LocatedPieces:
        def encode(lines: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            texts = [line.decode() for line in lines]
            found = self._tokenizer.encode_batch(texts, add_special_tokens=False)
            ids = np.array([token_id for row in found for token_id in row.ids], np.int32)
            # A unigram model has pieces with the names of special tokens.
            is_special = np.isin(ids, [*self.special.ids, *self.special.sentinels])
            unknown = self.special.pad if self.special.unk is None else self.special.unk
            places = [place for row in found for place in row.offsets]
            lengths = np.array([len(row.ids) for row in found], np.int64)
            places = np.array(places, np.int64).reshape(-1, 2)
            return np.where(is_special, np.int32(unknown), ids), places, lengths

        kinds = (tf.int32, tf.int64, tf.int64)
        ids, places, lengths = tf.numpy_function(encode, [self.normalized(strings)], kinds)
        ids = tf.RaggedTensor.from_row_lengths(tf.ensure_shape(ids, [None]), lengths)
        starts, ends = tf.unstack(tf.ensure_shape(places, [None, 2]), axis=1)
        return LocatedPieces(ids, ids.with_values(starts), ids.with_values(ends))

    def encode(self, strings: tf.Tensor, language: str | None = None) -> tf.RaggedTensor:
        return self.encode_with_offsets(strings).ids

    def piece_bytes(self, token_id: int) -> bytes:
        name = self.names[token_id]
        if token_id in self._added:
            return name.encode()
        if "ByteLevel" in self._decoder:
            return b"".join(BYTES.get(letter, letter.encode()) for letter in name)
        if "WordPiece" in self._decoder:
            is_inner = name.startswith(CONTINUES)
            return (name.removeprefix(CONTINUES) if is_inner else f" {name}").encode()
        if self.byte_fallback and re.fullmatch("<0x[0-9A-F]{2}>", name):
            return bytes.fromhex(name[3:5])
        if self.spaces_after and name.endswith(WORD_END):
            name = name.removesuffix(WORD_END) + " "
        return name.replace(WORD_START, " ").encode()

    def starts_word(self, token_id: int) -> bool:
        return self.piece_bytes(token_id)[:1].isspace()

    def trackables(self) -> list:
        raise UserError(
            "a vocabulary that was loaded with tokenizer='python' runs in Python, which a "
            "SavedModel cannot contain: export only the network, and pass token ids to it"
        )
