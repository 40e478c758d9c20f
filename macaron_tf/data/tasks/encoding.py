"""Encoding of texts as rows of token ids: text pairs, choices, sentences and sliding windows."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import EncodedExamples
from macaron_tf.data.rows import Columns, GrowingRows
from macaron_tf.data.sampler import in_parts
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.errors import UserError
from macaron_tf.io.progress import track
from macaron_tf.special import CLS_SEGMENT
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.normalization import cut_texts
from macaron_tf.text.token_rows import id_dtype

_CHUNK_EXAMPLES = 1024  # number of examples per tokenizer call; with 512 ids per row, 2 MB of ids


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

    The vocabulary's `pair_separators` is the number of [SEP] between the two texts. If the
    vocabulary has `cls_last`, rows are `a [SEP] [CLS]` or `a [SEP] b [SEP] [CLS]`. If `special` is
    False, rows are `a` or `a b`.

    A causal model reads `start a extract` or `start a delimiter b extract`. Its head reads the
    output at "extract", because only the last position attends to the whole row (Radford et al.
    2018, figure 1). Start and delimiter are [CLS] and [SEP], which begin a row and end a document
    in pre-training. "Extract" is [MASK], which does not occur in causal pre-training.

    Rows that are too long are truncated as in BERT (Devlin et al. 2019, `_truncate_seq_pair`).
    Until the row fits, the last token of the longer text is removed, or the last token of the
    second text if both texts are equally long.

    `keras_hub.layers.MultiSegmentPacker` is not used, because it pads all rows to one fixed length
    and cannot put [CLS] at the end.

    Args:
        first, second: `(B,)` strings. `second` is `None` if there is one text.
        special: whether to add special ids. GPT-2 classifiers from other libraries use no special
            ids.

    Returns:
        Dict of "token_ids" `(B, L)` int32, with padding, and "segment_ids" `(B, L)` int32.
        Segment ids are 1 in `b [SEP]`, 2 at a [CLS] that ends a row, and 0 elsewhere. L is the
        length of the longest row.
    """
    columns = [first] if second is None else [first, second]
    # (B, None) each
    texts = [vocabulary.encode(cut_texts(column, max_length), language) for column in columns]
    num_special = (2 if second is None else 2 + vocabulary.pair_separators) if special else 0
    needs = "a text and its special tokens" if second is None else "two texts"
    check_length(max_length, num_special + len(texts), needs)
    lengths = _truncated_lengths(max_length - num_special, *texts)
    if not special:
        parts = [(text, segment) for segment, text in enumerate(texts)]
        return rows_of(vocabulary, parts, lengths=lengths, special=False)
    (a, *b), sep = texts, vocabulary.special.end
    parts = [(a, 0), (sep, 0)]
    for text in b:
        parts += [(sep, 0)] * (vocabulary.pair_separators - 1) + [(text, 1), (sep, 1)]
    return rows_of(vocabulary, parts, causal, lengths)


def _truncated_lengths(max_ids: int, first: tf.RaggedTensor, *second: tf.RaggedTensor) -> list:
    """Computes the truncated length of each text, `(B,)` int64, for rows of at most `max_ids` ids.

    Each of two texts may fill half of the row. A text that is shorter than its half leaves the rest
    to the other text. If `max_ids` is odd, the first text's half is one id longer.
    """
    if not second:
        return [tf.minimum(first.row_lengths(), max_ids)]
    a, b = first.row_lengths(), second[0].row_lengths()
    half = max_ids // 2
    return [
        tf.minimum(a, tf.maximum(max_ids - b, max_ids - half)),
        tf.minimum(b, tf.maximum(max_ids - a, half)),
    ]


def rows_of(
    vocabulary: PieceVocabulary,
    parts: Sequence[tuple[tf.RaggedTensor | int, int]],
    causal: bool = False,
    lengths: Sequence[tf.Tensor] | None = None,
    special: bool = True,
) -> dict[str, tf.Tensor]:
    """Concatenates [CLS] and several parts into rows. With `cls_last`, [CLS] comes last.

    All ids are concatenated into one pool, from which each row gathers its ranges. The graph has 30
    operations. Concatenating ragged tensors would take 300 operations, which would dominate the
    time to encode a single text.

    Args:
        parts: (ids, segment) of each part. The ids are ragged `(B, None)` int32, or a special id
            that all rows share. At least one part must be ragged.
    """
    ids_of = vocabulary.special
    texts = [ids for ids, _ in parts if not isinstance(ids, int)]
    text_lengths = iter(lengths or [text.row_lengths() for text in texts])
    if special and vocabulary.cls_last:
        parts = [*parts, (ids_of.begin, CLS_SEGMENT)]
    elif special and vocabulary.cls_first:
        parts = [(ids_of.begin, 0), *parts]
    if causal:
        parts[-1] = (ids_of.mask, parts[-1][1])
    # The pool starts with PAD and the special ids, so that their positions are constants.
    shared = [(ids_of.pad, 0), *((ids, segment) for ids, segment in parts if isinstance(ids, int))]
    ones = tf.ones_like(texts[0].row_splits[1:])  # (B,)
    special_positions, begin = itertools.count(1), tf.constant(len(shared), tf.int64)
    starts, lengths = [], []
    for ids, _ in parts:
        if isinstance(ids, int):
            starts.append(ones * next(special_positions))
            lengths.append(ones)
        else:
            starts.append(begin + ids.row_splits[:-1])
            lengths.append(next(text_lengths))
            begin += ids.row_splits[-1]
    starts, lengths = tf.stack(starts, axis=1), tf.stack(lengths, axis=1)  # (B, P)
    segments = [tf.ones_like(ids.values) * s for ids, s in parts if not isinstance(ids, int)]
    ranges = tf.ragged.range(tf.reshape(starts, [-1]), tf.reshape(starts + lengths, [-1]))
    pools = {
        "token_ids": [[ids for ids, _ in shared], *(text.values for text in texts)],
        "segment_ids": [[segment for _, segment in shared], *segments],
    }
    row_splits = ranges.row_splits[:: len(parts)]  # merges the ranges of each row
    rows = tf.RaggedTensor.from_row_splits(ranges.values, row_splits, validate=False)
    rows = rows.to_tensor(0)  # (B, L), positions in the pool
    return {name: tf.gather(tf.concat(pool, axis=0), rows) for name, pool in pools.items()}


WHITE_SPACE = r"[\s\v\x1c-\x1f\x{85}\pZ]"  # the characters that `str.strip` removes, for RE2


def has_text(texts: tf.Tensor) -> tf.Tensor:
    """Returns whether each string has a character other than white space."""
    return tf.logical_not(tf.strings.regex_full_match(texts, f"{WHITE_SPACE}*"))


def encode_choices(
    vocabulary: PieceVocabulary,
    contexts: tf.Tensor,
    questions: tf.Tensor | None,
    choices: tf.Tensor,
    max_length: int,
    causal: bool = False,
) -> dict[str, tf.Tensor]:
    """Encodes pairs of a context and a choice with `encode_pairs`.

    The question is put before the choice, as in `[CLS] context [SEP] question choice [SEP]` (Liu et
    al. 2019 (RoBERTa), section 5.3). For a causal model, the question is put after the context
    instead, as in `start context question delimiter choice extract` (Radford et al. 2018, section
    3.3). A choice that is empty or white space gives a row of padding. Texts are `(B,)` strings.
    """
    has_choice = has_text(choices)
    if questions is not None and causal:
        contexts = tf.strings.join([contexts, questions], " ")
    elif questions is not None:
        choices = tf.strings.join([questions, choices], " ")
    rows = encode_pairs(vocabulary, contexts, choices, max_length, causal)
    padding = {"token_ids": vocabulary.special.pad, "segment_ids": 0}
    return {name: tf.where(has_choice[:, None], rows[name], padding[name]) for name in padding}


def check_length(max_length: int, min_length: int, needs: str) -> None:
    """Checks that a row of `max_length` ids has room for at least one token of each text."""
    if max_length < min_length:
        raise UserError(f"max_length={max_length} is too small: {needs} need {min_length} tokens")


def encode_parts(
    vocabulary: PieceVocabulary,
    examples: Columns,
    max_length: int,
    encode: Callable[[slice], tuple[dict[str, tf.Tensor], tuple]],
) -> tuple[EncodedExamples, list[tuple]]:
    """Tokenizes a split in chunks, and shows the progress on stderr.

    Args:
        encode: function from a slice of the examples to a dict of "token_ids" and "segment_ids"
            `(M, L)`, and a tuple of further arrays. M is the number of rows of these examples.

    Returns:
        The rows with the labels of the examples, and a list with the further arrays of each chunk.
        If the ids take 16 MB or more, the rows are memory-mapped from disk.
    """
    if not (total := len(examples)):
        raise UserError("the split contains no examples: give a larger split")
    rows, boundaries, arrays = GrowingRows(id_dtype(vocabulary.size)), [], []
    sized = ((part.stop - part.start, part) for part in in_parts(total, _CHUNK_EXAMPLES))
    for part in track(sized, total, "tokenizing", "examples"):
        inputs, others = encode(part)
        token_ids = np.asarray(inputs["token_ids"])
        is_real = token_ids != vocabulary.special.pad
        rows.add(token_ids[is_real].astype(rows.dtype).tobytes(), is_real.sum(axis=1))
        is_first = is_real & (np.asarray(inputs["segment_ids"]) == 0)
        boundaries.append(np.count_nonzero(is_first, axis=1))
        arrays.append(others)
    options = {"cls_last": vocabulary.cls_last, "pad_id": vocabulary.special.pad}
    columns = rows.finish(), np.concatenate(boundaries), examples.labels
    return EncodedExamples(*columns, max_length, **options), arrays


def encode_examples(
    vocabulary: PieceVocabulary,
    examples: Examples,
    max_length: int,
    causal: bool = False,
    language: str | None = None,
    language_id: int = 0,
    special: bool = True,
) -> EncodedExamples:
    """Tokenizes the examples of a split."""
    count = max(len(examples.texts) - 1, 1)

    def encode(part: slice) -> tuple:
        first, *others = (texts[part] for texts in examples.texts)
        if count == 1:
            texts = first, others[0] if others else None
            return encode_pairs(vocabulary, *texts, max_length, causal, language, special), ()
        contexts, choices = tf.repeat(tf.constant(first), count), tf.stack(others, axis=1)
        questions = examples.questions and tf.repeat(examples.questions[part], count)
        texts = contexts, questions, tf.reshape(choices, [-1])  # (N R,) each
        return encode_choices(vocabulary, *texts, max_length, causal), ()

    encoded, _ = encode_parts(vocabulary, examples, max_length, encode)
    return dataclasses.replace(encoded, rows_per_example=count, language_id=language_id)


def encode_sets(vocabulary: PieceVocabulary, sets: Examples, max_length: int) -> EncodedExamples:
    """Tokenizes sets of sentences, such as pairs or triplets, as rows `[CLS] text [SEP]`."""

    def encode(part: slice) -> tuple:
        texts = tf.stack([column[part] for column in sets.texts], axis=1)  # (N, S)
        return encode_pairs(vocabulary, tf.reshape(texts, [-1]), None, max_length), ()

    encoded, _ = encode_parts(vocabulary, sets, max_length, encode)
    return dataclasses.replace(encoded, rows_per_example=len(sets.texts), boundaries=None)


def windows_over(
    rows: tf.RaggedTensor, max_lengths: tf.Tensor, stride: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Cuts B rows into M windows that start every `stride` ids and cover all ids of a row.

    A row that fits into one window gives one window. An empty row gives an empty window.

    Args:
        stride: number of ids between the starts of two windows. A row whose maximum window length
            is less than `stride` uses its maximum window length as stride, so that no id is lost.

    Returns:
        The ids of the windows, ragged `(M, None)` in the order of the rows, and the start position
        of each window in its row, ragged `(B, None)` int64 with M values.
    """
    lengths = rows.row_lengths()
    steps = tf.minimum(tf.constant(stride, tf.int64), max_lengths)
    ids_after_first = tf.maximum(lengths - max_lengths, 0)  # (B,): ids after the first window
    window_indices = tf.ragged.range(1 + (ids_after_first + steps - 1) // steps)  # (B, None)
    row = window_indices.value_rowids()  # (M,)
    starts = window_indices.with_values(window_indices.values * tf.gather(steps, row))
    rest_lengths = tf.gather(lengths, row) - starts.values  # (M,), from the window's start on
    window_lengths = tf.minimum(tf.gather(max_lengths, row), rest_lengths)  # (M,)
    first = tf.gather(rows.row_starts(), row) + starts.values
    # (M, None), in the flat ids of all rows
    positions = tf.ragged.range(first, first + window_lengths)
    return positions.with_values(tf.gather(rows.values, positions.values)), starts
