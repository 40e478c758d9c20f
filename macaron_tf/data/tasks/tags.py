"""Reading and encoding of tagged sentences from TensorFlow Datasets, CoNLL files or tables."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import EncodedExamples
from macaron_tf.data.rows import Columns
from macaron_tf.data.sources.names import TABLE_FORMS, Source
from macaron_tf.data.sources.records import open_records
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.encoding import check_length, encode_parts, rows_of, windows_over
from macaron_tf.errors import UserError
from macaron_tf.io.files import lines_of
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows

TAG_FORMS = ("conll:FILE", *TABLE_FORMS)  # source notations besides `tfds:NAME`
# Prefix letters of entity tags in the schemes IOB, BIOES, BILOU, BMES and BMEWO, without O.
_SCHEMES = ("BI", "BIES", "BILU", "BMES", "BMEW")
ENTITY = re.compile("[BIESLUMW]-.+")  # a tag that marks an entity, such as B-PER


@dataclasses.dataclass(frozen=True, eq=False)
class TaggedSentences(Columns):
    """A split of tagged sentences, in the order of the source.

    Attributes:
        labels: for each sentence, `(words,)` int32 tag indices. `None` means that the tags are
            unknown.
    """

    words: list[list[str]]
    labels: list[np.ndarray] | None


def read_tagged(
    task: Task, split: str, tfds: Tfds | None = None, source: str | None = None
) -> TaggedSentences:
    """Reads a split of a tagging task, and converts IOB1 tags to IOB2.

    Args:
        source: source of the sentences, in one of the notations below. `None` means the default
            source of the task.

            - `tfds:NAME[/CONFIG][:VERSION]` has records with words in `tokens` and class indices
              in `ner`.
            - `conll:FILE` has one word per line, and the split name replaces `{split}` in FILE. The
              first column is the word and the last column is the tag, or the columns are in CoNLL-U
              order. Columns are separated by tabs, or by spaces if the line has no tabs. An empty
              line ends a sentence. Comments such as `# id = 1` may precede a sentence.
            - `tsv:FILE` and the other notations of `TABLE_FORMS` name a table. A text cell has the
              words of a sentence, and the label cell has one tag per word, separated by spaces, or
              both are lists. For a task on the user's own table, `tfds:NAME` also is a table.
    """
    parsed = task.parse_source(source, *TAG_FORMS)
    tag_ids = {tag: tag_id for tag_id, tag in enumerate(task.labels)}
    sentences = TaggedSentences([], [])
    for words, tags, locations in sentences_of(task, parsed, split, tfds):
        iob2_tags = as_iob2(tags)
        for where, tag, iob2_tag in zip(locations, tags, iob2_tags, strict=True):
            if iob2_tag not in tag_ids:
                hint = "" if iob2_tag == tag else f", in IOB2 {iob2_tag[:40]!r},"
                known = ", ".join(task.labels)
                raise UserError(f"{where}: the tag {tag[:40]!r}{hint} is not one of {known}")
        sentences.words.append(list(words))
        sentences.labels.append(np.array([tag_ids[tag] for tag in iob2_tags], np.int32))
    return sentences


def sentences_of(
    task: Task, source: Source, split: str, tfds: Tfds | None = None
) -> Iterator[tuple[Sequence[str], Sequence[str], Sequence[str]]]:
    """Yields each sentence as (words, tags, locations), with one location per tag."""
    if source.kind == "conll":
        path, sentence = source.path(split), None
        for sentence in _file_sentences(path):
            yield tuple(zip(*sentence, strict=True))
        if not sentence:
            raise UserError(f"{path} contains no sentences of a word and its tag per line")
        return
    records = open_records(source, split, tfds)
    label_field = "ner" if source.kind == "tfds" and not task.own else task.label
    for where, (text, label) in records.texts((*task.first, label_field)):
        words, tags = at_spaces(text), at_spaces(label)
        is_list = re.match(r"[\[(]['\"\d]", label)  # a list that was written as text
        if len(words) != len(tags) or is_list:
            count = f"not a tag for each word ({len(tags)} for {len(words)})"
            mend = "separate both by spaces, or give lists in jsonl: or parquet:"
            raise UserError(f"{where}: column {label_field!r} has {count}: {mend}")
        yield words, tags, [where] * len(tags)


def at_spaces(text: str) -> list[str]:
    """Splits a text at ASCII white space only, to match `tf.strings.split` in exported models."""
    return [word.decode() for word in text.encode().split()]


def as_iob2(tags: Sequence[str]) -> list[str]:
    """Converts the tags of a sentence from IOB1, or from a mixture of IOB1 and IOB2, to IOB2.

    In IOB2 the first tag of an entity is always B-. In IOB1, the format of the original CoNLL
    files, the first tag is B- only if the entity directly follows an entity of the same type, and
    I- otherwise. The CoNLL-2003 training set in TensorFlow Datasets has 267 entities that begin
    with I-, which an IOB2 metric would miss. Tags in schemes that mark the end of entities, such as
    BIOES, are not changed.
    """
    converted, previous = [], "O"
    ended = any(tag[0] not in "BI" for tag in tags if ENTITY.fullmatch(tag))
    for tag in tags:
        opens = not ended and tag.startswith("I-") and previous[2:] != tag[2:]
        converted.append(f"B{tag[1:]}" if opens else tag)
        previous = tag
    return converted


def scheme_of(tags: Iterable[str]) -> str | None:
    """Returns the prefix letters of the entity tagging scheme without O, such as "BIES" for BIOES.

    Returns `None` if the tags do not mark entities, or if their scheme is not in `_SCHEMES`. If all
    tags are O, or there are no tags, the scheme is "BI".
    """
    entities = [tag for tag in tags if tag != "O"]
    letters = {tag[:1] for tag in entities}
    # The scheme IOE gives None, because none of its letters marks the start of an entity.
    lacks_start = letters - {"I"} and letters.isdisjoint("BSUW")
    if lacks_start or not all(map(ENTITY.fullmatch, entities)):
        return None
    return next((scheme for scheme in _SCHEMES if letters <= {*scheme}), None)


def _cells(line: str) -> list[str]:
    """Splits a line into columns at tabs, or at spaces if the line has no tabs."""
    # No other white space separates columns, because a word may contain a no-break space.
    return [cell for part in line.split("\t" if "\t" in line else " ") if (cell := part.strip(" "))]


def _file_sentences(path) -> Iterator[list[tuple[str, str, str]]]:
    """Yields each sentence of a CoNLL file as a list of (word, tag, location)."""
    # In CoNLL-U, columns 1 and 3 of ten are the word and its universal part of speech.
    word_column, tag_column = (1, 3) if ".conllu" in path.name else (0, -1)
    are_numbered = set()  # whether a line of three or more columns begins with a number
    sentence: list[tuple[str, str, str]] = []
    for number, line in enumerate(itertools.chain(lines_of(path), [""]), start=1):
        row = _cells(line)
        if not row or row[0] == "-DOCSTART-":
            if sentence:
                yield sentence
            sentence = []
        elif sentence or row[0][0] != "#" or not (word_column or "=" in line):
            if len(row) < 2 + 2 * bool(word_column):
                raise UserError(f"{path}, line {number} has only {len(row)} columns: add the tag")
            is_number = re.fullmatch(r"\d+([-.]\d+)?", row[0])
            are_numbered.add(is_number is not None and len(row) > 2)
            # In CoNLL-U, lines with ids such as 1-2 and 1.1 are not words.
            if not word_column or row[0].isdecimal():
                sentence.append((row[word_column], row[tag_column], f"{path}, line {number}"))
    if are_numbered == {True} and not word_column:
        mend = "remove it, or name a CoNLL-U file .conllu"
        raise UserError(f"{path}: the first column contains numbers, not words: {mend}")


class WordPositions(NamedTuple):
    """Positions of the first token of each of W words.

    The outputs of a tagger at these positions predict the tags of the words.

    Attributes:
        rows: `(W,)` int64 window indices. A word without a token, such as a control character, has
            the index -1.
    """

    rows: tf.Tensor
    columns: tf.Tensor


def encode_words(
    vocabulary: PieceVocabulary, words: tf.RaggedTensor, max_length: int
) -> tuple[dict[str, tf.Tensor], WordPositions]:
    """Encodes sentences as M windows `[CLS] tokens [SEP]`.

    A sentence that is too long for one window gives several windows, which overlap by half. A word
    is tagged in the window in which its first token is nearest to the middle. If the vocabulary has
    `cls_last`, windows are `tokens [SEP] [CLS]`.

    Returns:
        The windows, and the positions of all words in order. The windows are a dict of
        "token_ids" `(M, L)` int32, with padding, and "segment_ids" `(M, L)` int32. Segment
        ids are 2 at a [CLS] that ends a row, and 0 elsewhere.
    """
    check_length(max_length, 3, "sentences")
    capacity = max_length - 2
    # Byte-level vocabularies mark the start of a word by the space before it.
    pieces = vocabulary.encode(tf.strings.join([" ", words.values]))  # (W, None)
    sentences = tf.RaggedTensor.from_row_splits(
        pieces.values, tf.gather(pieces.row_splits, words.row_splits)
    )  # (N, None)
    stride = max(capacity // 2, 1)
    max_lengths = tf.fill([sentences.nrows()], tf.constant(capacity, tf.int64))  # (N,)
    windows, starts = windows_over(sentences, max_lengths, stride)
    sentence_index = words.value_rowids()  # (W,)
    # Index of each word's first piece in its sentence, (W,)
    first_piece = pieces.row_starts() - tf.gather(sentences.row_starts(), sentence_index)
    window = (first_piece - capacity // 2 + stride // 2) // stride
    window_counts = tf.gather(starts.row_lengths(), sentence_index)  # (W,)
    window = tf.clip_by_value(window, 0, window_counts - 1)
    has_piece = pieces.row_lengths() > 0
    positions = WordPositions(
        tf.where(has_piece, tf.gather(starts.row_starts(), sentence_index) + window, -1),
        tf.where(has_piece, int(vocabulary.cls_first) + first_piece - window * stride, -1),
    )
    return rows_of(vocabulary, [(windows, 0), (vocabulary.special.end, 0)]), positions


def word_probabilities(logits: tf.Tensor, positions: WordPositions, outside: int = 0) -> tf.Tensor:
    """Computes tag probabilities `(W, C)` float32, 1 at `outside` for words without a token."""
    has_piece = positions.rows >= 0
    # Position 0 always exists, because even a sentence without tokens has a window.
    index = tf.maximum(tf.stack(positions, axis=1), 0)  # (W, 2)
    probabilities = tf.nn.softmax(tf.cast(tf.gather_nd(logits, index), tf.float32))  # (W, C)
    return tf.where(has_piece[:, None], probabilities, tf.one_hot(outside, tf.shape(logits)[-1]))


def encode_tagged(
    vocabulary: PieceVocabulary, examples: TaggedSentences, max_length: int
) -> EncodedExamples:
    """Tokenizes a split by `encode_words`. Rows are windows, in the order of the sentences.

    The windows of a sentence overlap, but each word is tagged in only one window (see
    `encode_words`). In this window, the label at the word's first token is the tag index plus 1.
    All other labels are 0.
    """

    def encode(part: slice) -> tuple:
        words = tf.ragged.constant(examples.words[part], tf.string, ragged_rank=1)
        inputs, positions = encode_words(vocabulary, words, max_length)
        return inputs, (len(inputs["token_ids"]), len(words.values), *positions)

    encoded, arrays = encode_parts(vocabulary, examples, max_length, encode)
    window_counts, word_counts, row, column = zip(*arrays, strict=True)
    # Number of windows in the chunks before each chunk
    windows_before = np.cumsum(window_counts) - window_counts
    row, column = np.concatenate(row), np.concatenate(column)  # (W,)
    row = np.where(row < 0, -1, row + np.repeat(windows_before, word_counts))
    labels = None
    if examples.labels is not None:
        has_piece = row >= 0  # (W,)
        rows = encoded.rows
        tags = np.zeros_like(rows.ids, np.uint16)
        labelled = rows.offsets[row[has_piece]] + column[has_piece]
        tags[labelled] = 1 + np.concatenate(examples.labels)[has_piece]
        labels = TokenRows(tags, rows.offsets)
    positions, splits = WordPositions(row, column), np.cumsum([0, *map(len, examples.words)])
    return dataclasses.replace(encoded, labels=labels, positions=positions, splits=splits)
