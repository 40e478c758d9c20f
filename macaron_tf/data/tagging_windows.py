"""Words to the rows of an encoder, and from its positions back to the words: in-graph."""

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from macaron_tf.data.cache import TokenRows
from macaron_tf.data.example_batches import EncodedExamples, Progress, in_parts
from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.data.tagging_data import TaggedSentences
from macaron_tf.data.windows import cut, window_starts
from macaron_tf.errors import UserError

_CHUNK = 1024  # sentences tokenized at once


class WordPlaces(NamedTuple):
    """Where the first piece of each of W words stands.

    Attributes:
        rows, columns: (W,) int64: its window and its position there; -1 of a word that the
            vocabulary has no piece for, such as a lone control character.
    """

    rows: tf.Tensor
    columns: tf.Tensor


def encode_words(
    vocabulary: PieceVocabulary, words: tf.RaggedTensor, max_length: int
) -> tuple[dict[str, tf.Tensor], WordPlaces]:
    """Sentences to windows `[CLS] pieces [SEP]`, which overlap by half where there are several.

    Each word is seen in the window whose middle its first piece is nearest to.

    Args:
        vocabulary: an encoder vocabulary.
        words: (N, None) strings.
        max_length: greatest L, special ids included.

    Returns:
        {"token_ids": (M, L) int32, filled up with 0 (PAD); "segment_ids": (M, L) int32, all 0},
        and the places of the words, in order.

    Raises:
        UserError: `max_length` leaves no room for a piece.
    """
    room = max_length - 2
    if room < 1:
        raise UserError(f"max_length is {max_length}: a sentence needs 3 or more")
    # With the space that a byte-level vocabulary tells the beginning of a word by.
    pieces = vocabulary.encode(tf.strings.join([" ", words.values]))  # (W, None)
    sentences = tf.RaggedTensor.from_row_splits(
        pieces.values, tf.gather(pieces.row_splits, words.row_splits)
    )  # (N, None)
    lengths, stride = sentences.row_lengths(), max(room // 2, 1)
    begins = window_starts(lengths, tf.fill(tf.shape(lengths), tf.constant(room, tf.int64)), stride)
    sentence, first = begins.value_rowids(), begins.values  # (M,)
    seen = tf.minimum(tf.gather(lengths, sentence) - first, room)
    cls, sep = (
        tf.fill([tf.size(first), 1], tf.constant(i, tf.int32))  # (M, 1)
        for i in (vocabulary.cls_id, vocabulary.sep_id)
    )
    token_ids = tf.concat([cls, cut(sentences, sentence, first, seen), sep], axis=1).to_tensor()
    owner = words.value_rowids()  # (W,)
    place = pieces.row_starts() - tf.gather(sentences.row_starts(), owner)  # (W,)
    window = (place - room // 2 + stride // 2) // stride
    window = tf.clip_by_value(window, 0, tf.gather(begins.row_lengths(), owner) - 1)
    has_piece = pieces.row_lengths() > 0
    places = WordPlaces(
        tf.where(has_piece, tf.gather(begins.row_starts(), owner) + window, -1),
        tf.where(has_piece, 1 + place - window * stride, -1),
    )
    return {"token_ids": token_ids, "segment_ids": tf.zeros_like(token_ids)}, places


def word_probabilities(logits: tf.Tensor, places: WordPlaces) -> tf.Tensor:
    """What a tagger says of each word; a word without a piece has the first tag, "O".

    Args:
        logits: (M, L, C).
        places: of W words.

    Returns:
        (W, C) float32.
    """
    found = places.rows >= 0
    # A sentence of such words alone has a window all the same: position 0 is always there.
    index = tf.stack([tf.maximum(places.rows, 0), tf.maximum(places.columns, 0)], axis=1)  # (W, 2)
    spoken = tf.nn.softmax(tf.cast(tf.gather_nd(logits, index), tf.float32))  # (W, C)
    outside = tf.one_hot(tf.zeros_like(places.rows), tf.shape(logits)[-1])  # (W, C)
    return tf.where(found[:, None], spoken, outside)


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedTaggedSentences(EncodedExamples):
    """Tokenized sentences: M rows, a window each; the label of a word's first piece in its window
    is the tag's number plus 1, that of all other ids 0.

    Args:
        rows, boundaries, labels, max_length: see `EncodedExamples`.
        word_rows, word_columns: (W,) int64: see `WordPlaces`.
        splits: (N + 1,) int64: sentence i has the words `splits[i]` to `splits[i + 1]`.
    """

    word_rows: np.ndarray
    word_columns: np.ndarray
    splits: np.ndarray

    def places(self) -> WordPlaces:
        """As tensors."""
        return WordPlaces(tf.constant(self.word_rows), tf.constant(self.word_columns))


def encode_tagged(
    vocabulary: PieceVocabulary,
    examples: TaggedSentences,
    max_length: int,
    progress: Progress | None = None,
) -> EncodedTaggedSentences:
    """Tokenizes a split once.

    Args:
        vocabulary, max_length: as for `encode_words`.
        examples: a split.
        progress: see `in_parts`.

    Returns:
        The windows, in the sentences' order.

    Raises:
        UserError: no example; see also `encode_words`.
    """
    if not len(examples):
        raise UserError("no sentence to encode: take a larger split")
    rows: list[np.ndarray] = []
    word_rows, word_columns = [], []
    for part in in_parts(len(examples), _CHUNK, progress):
        words = tf.ragged.constant(examples.words[part], tf.string, ragged_rank=1)
        inputs, places = encode_words(vocabulary, words, max_length)
        token_ids = inputs["token_ids"].numpy()  # (M, L)
        lengths = (token_ids != 0).sum(axis=1)  # (M,): PAD is 0 and stands only at the end
        found = places.rows.numpy()
        word_rows.append(np.where(found < 0, found, found + len(rows)))
        word_columns.append(places.columns.numpy())
        rows += [row[:length] for row, length in zip(token_ids, lengths, strict=True)]
    packed = TokenRows.from_lists(rows, vocabulary.size)
    at, columns = np.concatenate(word_rows), np.concatenate(word_columns)
    labels = None
    if examples.labels is not None:
        found = at >= 0
        tags = np.zeros_like(packed.ids, np.uint16)
        numbers = np.concatenate(examples.labels)
        tags[packed.offsets[at[found]] + columns[found]] = 1 + numbers[found]
        labels = TokenRows(tags, packed.offsets)
    splits = np.concatenate([[0], np.cumsum([len(words) for words in examples.words])])
    return EncodedTaggedSentences(
        packed, packed.lengths, labels, max_length, at, columns, splits.astype(np.int64)
    )
