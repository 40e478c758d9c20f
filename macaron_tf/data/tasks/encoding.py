"""Encodes texts as rows of ids: one or two texts, choices, sentences, and overlapping windows."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import EncodedExamples, in_parts
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.data.tasks.stored import GrowingRows
from macaron_tf.errors import UserError
from macaron_tf.io.progress import track
from macaron_tf.special_ids import CLS_SEGMENT, PAD
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.token_rows import JoinedRows, TokenRows

_CHUNK = 1024  # examples tokenized together: 2 MB of ids with 512 ids per row


def encode_pairs(
    vocabulary: PieceVocabulary,
    first: tf.Tensor,
    second: tf.Tensor | None,
    max_length: int,
    causal: bool = False,
    language: str | None = None,
    special: bool = True,
) -> dict[str, tf.Tensor]:
    """Encodes one or two texts as rows `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

    Between two texts are as many [SEP] as the vocabulary's `pair_separators`. A vocabulary with
    `cls_last` gives `a [SEP] [CLS]` or `a [SEP] b [SEP] [CLS]`.

    A causal model reads `start a extract` or `start a delimiter b extract`, and its head the output
    at "extract", because only the last position attends to all of the text (Radford et al. 2018,
    figure 1). Start and delimiter are [CLS] and [SEP], which in pre-training begin a row and end a
    document. "Extract" is [MASK], which a language model has not seen before.

    Rows that are too long are truncated as in BERT (Devlin et al. 2019, `_truncate_seq_pair`): the
    last token of the longer text is removed until the row fits, or of the second text if both are
    equally long.

    `keras_hub.layers.MultiSegmentPacker` is not used, because it pads all rows to one fixed length
    and cannot put [CLS] at the end.

    Args:
        first, second: `(B,)` strings; `second` is None for one text.
        max_length: most ids of a row, with special ids.
        causal: whether the rows are for a causal model.
        language: language of the texts, for the vocabulary's rules.
        special: whether rows have special ids. GPT-2 classifiers of other libraries have none.

    Returns:
        Dictionary of "token_ids" `(B, L)` int32, padded with 0 (PAD), and "segment_ids" `(B, L)`
        int32: 1 in `b [SEP]`, 2 at a [CLS] that ends a row, else 0. L is the length of the longest
        row.

    Raises:
        UserError: `max_length` leaves no room for a token of each text.
    """
    columns = [first] if second is None else [first, second]
    # (B, None) each
    texts = [vocabulary.encode(tf.convert_to_tensor(column), language) for column in columns]
    specials = (2 if second is None else 2 + vocabulary.pair_separators) if special else 0
    check_length(max_length, specials + len(texts), f"{len(texts)} text(s)")
    room = _room(max_length - specials, *texts)
    if not special:
        cut = [
            tf.gather(text, tf.ragged.range(most), batch_dims=1)
            for text, most in zip(texts, room, strict=True)
        ]
        kinds = [tf.ones_like(text) * segment for segment, text in enumerate(cut)]
        rows = {"token_ids": tf.concat(cut, axis=1), "segment_ids": tf.concat(kinds, axis=1)}
        return {name: ids.to_tensor(0) for name, ids in rows.items()}
    (a, *b), sep = texts, vocabulary.sep_id
    parts = [(a, 0), (sep, 0)]
    for text in b:
        parts += [(sep, 0)] * (vocabulary.pair_separators - 1) + [(text, 1), (sep, 1)]
    return rows_of(vocabulary, parts, causal, room)


def _room(most: int, first: tf.RaggedTensor, *second: tf.RaggedTensor) -> list[tf.Tensor]:
    """Computes how many ids of each text fit into a row of `most` ids, `(B,)` int64 each.

    Each of two texts gets half of the row, and the rest of the other half if the other text is
    shorter. The first text gets the odd id.
    """
    if not second:
        return [tf.minimum(first.row_lengths(), most)]
    a, b = first.row_lengths(), second[0].row_lengths()
    half = most // 2
    return [
        tf.minimum(a, tf.maximum(most - b, most - half)),
        tf.minimum(b, tf.maximum(most - a, half)),
    ]


def rows_of(
    vocabulary: PieceVocabulary,
    parts: Sequence[tuple[tf.RaggedTensor | int, int]],
    causal: bool = False,
    kept: Sequence[tf.Tensor] | None = None,
) -> dict[str, tf.Tensor]:
    """Builds rows of [CLS] and several parts side by side, as `encode_pairs` describes.

    All ids are concatenated to one pool, and rows are ranges of the pool. This takes 30 operations;
    concatenating ragged tensors would take 300, most of the time to encode a single text.

    Args:
        parts: (ids, segment) of each part; ids are ragged `(B, None)` int32, or one special id for
            all rows.
        kept: `(B,)` int64 for each ragged part, how many of its first ids a row takes; None: all.

    Returns:
        "token_ids" and "segment_ids", see `encode_pairs`.
    """
    cls = vocabulary.cls_id
    texts = [ids for ids, _ in parts if not isinstance(ids, int)]
    kept = iter(kept or [text.row_lengths() for text in texts])
    parts = [*parts, (cls, CLS_SEGMENT)] if vocabulary.cls_last else [(cls, 0), *parts]
    if causal:
        parts[-1] = (vocabulary.mask_id, parts[-1][1])
    # The pool starts with PAD and the single ids, so that their positions are known.
    single = [(PAD, 0), *((ids, segment) for ids, segment in parts if isinstance(ids, int))]
    one = tf.ones_like(texts[0].row_splits[1:])  # (B,)
    places, begin = itertools.count(1), tf.constant(len(single), tf.int64)
    starts, lengths = [], []
    for ids, _ in parts:
        if isinstance(ids, int):
            starts.append(one * next(places))
            lengths.append(one)
        else:
            starts.append(begin + ids.row_splits[:-1])
            lengths.append(next(kept))
            begin += ids.row_splits[-1]
    starts, lengths = tf.stack(starts, axis=1), tf.stack(lengths, axis=1)  # (B, P)
    ranges = tf.ragged.range(tf.reshape(starts, [-1]), tf.reshape(starts + lengths, [-1]))
    pool = {
        "token_ids": ([ids for ids, _ in single], [text.values for text in texts]),
        "segment_ids": (
            [segment for _, segment in single],
            [tf.ones_like(ids.values) * s for ids, s in parts if not isinstance(ids, int)],
        ),
    }
    row_splits = ranges.row_splits[:: len(parts)]  # of whole rows, not of parts
    rows = tf.RaggedTensor.from_row_splits(ranges.values, row_splits, validate=False)
    rows = rows.to_tensor(0)  # (B, L), positions in the pool
    return {
        name: tf.gather(tf.concat([tf.constant(first, tf.int32), *others], axis=0), rows)
        for name, (first, others) in pool.items()
    }


WHITE_SPACE = r"[\s\v\x1c-\x1f\x{85}\pZ]"  # the characters that `str.strip` removes, for RE2


def present(choices: tf.Tensor) -> tf.Tensor:
    """Whether each string has a character other than white space."""
    return tf.logical_not(tf.strings.regex_full_match(choices, f"{WHITE_SPACE}*"))


def encode_choices(
    vocabulary: PieceVocabulary,
    contexts: tf.Tensor,
    questions: tf.Tensor | None,
    choices: tf.Tensor,
    max_length: int,
    causal: bool = False,
) -> dict[str, tf.Tensor]:
    """Encodes contexts with one choice each as rows, by `encode_pairs`.

    A question is put before the choice, `[CLS] context [SEP] question choice [SEP]` (Liu et al.
    2019 (RoBERTa), section 5.3); for a causal model it is put after the context (Radford et al.
    2018, section 3.3). The row of a choice that is not `present` is padding.

    Args:
        contexts, questions, choices: `(B,)` strings; `questions` may be None.
        max_length, causal: see `encode_pairs`.
    """
    there = present(choices)
    if questions is not None and causal:
        contexts = tf.strings.join([contexts, questions], " ")
    elif questions is not None:
        choices = tf.strings.join([questions, choices], " ")
    rows = encode_pairs(vocabulary, contexts, choices, max_length, causal)
    return {name: tf.where(there[:, None], ids, 0) for name, ids in rows.items()}


def check_length(max_length: int, least: int, needs: str, mend: str = "") -> None:
    """Raises if a row of `max_length` ids has no room for a token of each text.

    Args:
        max_length: most ids of a row.
        least: least ids that a row needs.
        needs: what needs them, for the message.
        mend: another remedy than a greater length, such as "lower max_question or ".
    """
    if max_length < least:
        raise UserError(
            f"max_length={max_length} is too small: {needs} need {least} or more; "
            f"{mend}raise max_length"
        )


def encode_parts(
    total: int,
    encode: Callable[[slice], tuple],
    vocabulary_size: int,
) -> tuple[TokenRows, list[list]]:
    """Tokenizes a split in chunks, with a progress bar if stderr is a terminal.

    Args:
        total: number of examples.
        encode: function from a slice of the examples to ids `(M, L)` int32, padded with 0 (PAD),
            and further arrays.
        vocabulary_size: V.

    Returns:
        All rows without padding, memory-mapped from disk if they are large, and a list of each
        chunk's further arrays.

    Raises:
        UserError: there is no example.
    """
    _check_any(total)
    rows, arrays = GrowingRows(vocabulary_size), []
    sized = ((part.stop - part.start, part) for part in in_parts(total, _CHUNK))
    for part in track(sized, total, "tokenizing", "examples"):
        token_ids, *others = encode(part)
        rows.add(np.asarray(token_ids))
        arrays.append(others)
    return rows.rows(), arrays


def _check_any(total: int) -> None:
    if not total:
        raise UserError("there is no example to encode: give a larger split")


def encode_examples(
    vocabulary: PieceVocabulary,
    examples: Examples,
    max_length: int,
    causal: bool = False,
    language: str | None = None,
    language_id: int = 0,
    special: bool = True,
) -> EncodedExamples:
    """Tokenizes a split by `encode_pairs`, or by `encode_choices` with a row for each choice.

    Args:
        max_length, causal, special: see `encode_pairs`.
        language, language_id: code and number of the language of the texts, see `EncodedExamples`;
            not used for choices.
    """
    contexts, *choices = examples.texts
    count = len(choices) or 1
    first, asked, second = contexts, examples.questions, choices[0] if choices else None
    if count > 1:
        first, asked = (
            texts and [text for text in texts for _ in range(count)] for texts in (first, asked)
        )
        second = [text for texts in zip(*choices, strict=True) for text in texts]

    def encode(part: slice) -> tuple:
        if count > 1:
            texts = (rows and tf.constant(rows[part]) for rows in (first, asked, second))
            encoded = encode_choices(vocabulary, *texts, max_length, causal)
        else:
            texts = first[part], second and second[part]
            encoded = encode_pairs(vocabulary, *texts, max_length, causal, language, special)
        opening = (encoded["token_ids"] != 0) & (encoded["segment_ids"] == 0)  # (B, L)
        return encoded["token_ids"], tf.math.count_nonzero(opening, axis=1)

    rows, boundaries = encode_parts(len(first), encode, vocabulary.size)
    return EncodedExamples(
        JoinedRows([rows]) if rows.is_mapped else rows,
        np.concatenate([boundary for (boundary,) in boundaries]),
        examples.labels,
        max_length,
        count=count,
        cls_last=vocabulary.cls_last,
        language_id=language_id,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedSentences(EncodedExamples):
    """Tokenized sets of S sentences each, without segments; the labels may be None.

    Attributes:
        cut: number of sentences that were truncated to `max_length`.
    """

    needs_labels: ClassVar[bool] = False

    cut: int


def encode_sentences(
    vocabulary: PieceVocabulary, texts: Sequence[str], max_length: int
) -> tuple[TokenRows, int]:
    """Encodes texts as rows `[CLS] text [SEP]`, as `encode_pairs` does; truncates long ones.

    Args:
        texts: N texts; the row of an empty text has the two special ids.
        max_length: most ids of a row, with special ids.

    Returns:
        The N rows, and how many of them were truncated.
    """
    check_length(max_length, 3, "sentences")
    room = max_length - 2
    rows = vocabulary.encode_rows(texts)
    within = np.arange(len(rows.ids)) - np.repeat(rows.offsets[:-1], rows.lengths)
    kept = np.minimum(rows.lengths, room)  # (N,)
    ends = np.cumsum(kept)
    # Positions of each row's first id and of the id after its last: (N, 2) -> (2 N,)
    positions = np.stack([ends - kept, ends], axis=1).reshape(-1)
    special = np.tile([vocabulary.cls_id, vocabulary.sep_id], len(kept))
    ids = np.insert(rows.ids[within < room], positions, special)
    cut = int(np.sum(rows.lengths > room))
    return TokenRows.of_lengths([ids], [kept + 2], vocabulary.size), cut


def encode_sets(vocabulary: PieceVocabulary, sets: Examples, max_length: int) -> EncodedSentences:
    """Tokenizes sets of sentences, such as pairs or triplets, by `encode_sentences`."""
    _check_any(len(sets))
    texts = [text for example in zip(*sets.texts, strict=True) for text in example]
    rows, cut = encode_sentences(vocabulary, texts, max_length)
    return EncodedSentences(rows, None, sets.labels, max_length, cut, count=len(sets.texts))


class Windows(NamedTuple):
    """M overlapping windows over B rows that are too long for a model.

    Attributes:
        ids: ragged `(M, None)`, the ids of each window.
        starts: ragged `(B, None)` int64 with M values, the position of each window's first id in
            its row.
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor


def windows_over(rows: tf.RaggedTensor, rooms: tf.Tensor, stride: int) -> Windows:
    """Cuts rows into windows that start every `stride` ids, up to the last id of a row.

    A row that fits into one window gives one window.

    Args:
        rows: ragged ids `(B, None)`.
        rooms: `(B,)` int64, most ids of the windows of each row, 1 or more.
        stride: ids between the starts of two windows; reduced to the room if it is greater, so that
            no id is lost.
    """
    lengths = rows.row_lengths()
    steps = tf.minimum(tf.constant(stride, tf.int64), rooms)
    hidden = tf.maximum(lengths - rooms, 0)  # (B,): ids after the first window
    numbers = tf.ragged.range(1 + (hidden + steps - 1) // steps)  # (B, None)
    row = numbers.value_rowids()  # (M,)
    starts = numbers.with_values(numbers.values * tf.gather(steps, row))
    shown = tf.minimum(tf.gather(rooms, row), tf.gather(lengths, row) - starts.values)  # (M,)
    first = tf.gather(rows.row_starts(), row) + starts.values
    positions = tf.ragged.range(first, first + shown)  # (M, None), among all ids
    return Windows(positions.with_values(tf.gather(rows.values, positions.values)), starts)
