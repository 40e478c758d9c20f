"""Sentences whose words have tags: from TFDS or from files in CoNLL's columns."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import EncodedExamples
from macaron_tf.data.sources.names import Source
from macaron_tf.data.sources.tfds import Tfds, decoded, read_columns
from macaron_tf.data.tasks.definitions import Task
from macaron_tf.data.tasks.encoding import check_length, encode_parts, rows_of, windows_over
from macaron_tf.data.tasks.tables import TABLES, Table, parse_task_source
from macaron_tf.errors import UserError
from macaron_tf.io.files import lines_of
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows

_WORDS, _TAGS = "tokens", "ner"
_DOCUMENT = "-DOCSTART-"
FORMS = ("conll:FILE", *TABLES)  # sources beside TFDS
# Letters of the tags of entities: IOB, BIOES, BILOU, BMES and BMEWO, all beside O.
_SCHEMES = ("BI", "BIES", "BILU", "BMES", "BMEW")
_ENTITY = re.compile("([BIESLUMW])-.+")


@dataclasses.dataclass(frozen=True, eq=False)
class TaggedSentences:
    """A split of a tagging task, N sentences in the source's order.

    Attributes:
        labels: of each sentence, (words,) int32 numbers of tags; None where they are not known.
    """

    words: list[list[str]]
    labels: list[np.ndarray] | None

    def __len__(self) -> int:
        return len(self.words)

    def take(self, rows: np.ndarray) -> "TaggedSentences":
        """The sentences of these numbers."""
        labels = self.labels and [self.labels[row] for row in rows]
        return TaggedSentences([self.words[row] for row in rows], labels)


def read_tagged(
    task: Task, split: str, tfds: Tfds | None = None, source: str | None = None
) -> TaggedSentences:
    """Reads a split of a task of tags; the tags become IOB2, whichever kind of IOB they are in.

    Args:
        source: instead of the task's own, one of
            `tfds:NAME[/CONFIG][:VERSION]`: records of `tokens` and their classes `ner`;
            `conll:FILE`, see `Source.path`: a word a line, in the first of several columns (with
                tabs between, or spaces in a line without tabs), its tag in the last, or CoNLL-U's
                columns; an empty line ends a sentence, comments (`# id 1`) stand before one;
            `tsv:FILE`, another of `TABLES` or, of a task of the user's own, `tfds:NAME`: a
                `Table` whose cells hold the words of a sentence and, in the task's label column, as
                many tags, spaces between.

    Raises:
        UserError: no such source, split, field; a tag that the task does not have; names the file
            and the line.
    """
    parsed = parse_task_source(task, source, *FORMS)
    if parsed.kind == "tfds" and not task.own:
        found = _of_tfds(task, parsed.place, split, tfds)
    else:
        found = sentences_of(task, parsed, split, tfds)
    numbers = {tag: number for number, tag in enumerate(task.labels)}
    sentences = TaggedSentences([], [])
    for words, tags, where in found:
        meant = as_iob2(tags)
        for place, tag, one in zip(where, tags, meant, strict=False):
            if one not in numbers:
                begins = "" if one == tag else f", which begins an entity here as {one[:40]!r},"
                raise UserError(
                    f"{place}: the tag {tag[:40]!r}{begins} is none of the task {task.name!r}, "
                    f"which has {', '.join(task.labels)}; correct it"
                )
        sentences.words.append(list(words))
        sentences.labels.append(np.array([numbers[tag] for tag in meant], np.int32))
    return sentences


def sentences_of(
    task: Task, source: Source, split: str, tfds: Tfds | None = None
) -> Iterator[tuple[Sequence[str], Sequence[str], Sequence[str]]]:
    """The words of each sentence of a table or of a file in columns, their tags, their places."""
    if source.kind == "conll":
        path, sentence = source.path(split), None
        for sentence in _of_lines(path, task):
            yield tuple(zip(*sentence, strict=True))
        if not sentence:
            raise UserError(f"{path} holds no sentence: give a word and its tag a line")
        return
    for where, cells in Table(source, split, tfds).rows((*task.first, task.label)):
        words, tags = (at_spaces(cell) for cell in cells)
        if len(words) != len(tags):
            raise UserError(
                f"{where}: {len(words)} words, and {len(tags)} tags in column {task.label!r}; give "
                "a tag for each word, with spaces between"
            )
        yield words, tags, [where] * len(tags)


def at_spaces(text: str) -> list[str]:
    """Words between ASCII's white space alone, as `tf.strings.split` cuts in an export."""
    return [word.decode() for word in text.encode().split()]


def as_iob2(tags: Sequence[str]) -> list[str]:
    """A sentence's tags with a B- where an entity begins.

    In IOB1, as CoNLL's own files are, B- is only written between two entities of a type: 267
    entities of TensorFlow Datasets' copy of the training set begin with I- still, which a scorer
    of IOB2 would not see. Here IOB1, IOB2 and mixtures become IOB2; schemes that mark an entity's
    end (`scheme_of`) stay.
    """
    found, before = [], "O"
    ended = any(tag[0] not in "BI" for tag in tags if _ENTITY.fullmatch(tag))
    for tag in tags:
        opens = not ended and tag.startswith("I-") and before[2:] != tag[2:]
        found.append(f"B{tag[1:]}" if opens else tag)
        before = tag
    return found


def scheme_of(tags: Iterable[str]) -> str | None:
    """The letters, of `_SCHEMES`, of tags that mark entities (O aside); None of other tags."""
    found = [_ENTITY.fullmatch(tag) for tag in tags if tag != "O"]
    letters = {match[1] for match in found if match}
    # In IOE, no letter says where an entity begins.
    if not all(found) or (letters - {"I"} and letters.isdisjoint("BSUW")):
        return None
    return next((scheme for scheme in _SCHEMES if letters <= {*scheme}), None)


def strays_among(counts: Mapping[str, int]) -> list[str]:
    """Tags outside the scheme of those that are met three times or more, such as one `0` for O.

    Where they are the greater part of the tags, these mark no entities, and none is a stray.
    """
    entities = [tag for tag in counts if _ENTITY.fullmatch(tag)]
    letters = {tag[0] for tag in entities if counts[tag] > 2} or {tag[0] for tag in entities}
    schemes = [scheme for scheme in _SCHEMES if letters <= {*scheme}]
    known = "BI" if "BI" in schemes else "".join(schemes)
    strays = [tag for tag in counts if tag != "O" and (tag not in entities or tag[0] not in known)]
    return strays if letters and known and 2 * len(strays) <= len(counts) else []


def _of_tfds(task: Task, name, split, tfds) -> Iterator[tuple[list, list, tuple]]:
    columns = read_columns(name, split, (_WORDS, _TAGS), tfds)
    names = columns.class_names.get(_TAGS, ())
    if set(names) != set(task.labels):
        raise UserError(
            f"tfds:{name} has the tags {', '.join(names) or 'none'}, the task {task.name!r} "
            f"{', '.join(task.labels)}: take a set with the task's tags"
        )
    for words, tags in zip(columns.values[_WORDS], columns.values[_TAGS], strict=True):
        yield decoded(words), [names[tag] for tag in tags], ()


def _cells(line: str) -> list[str]:
    """The columns of a line, between tabs or, in a line without tabs, between spaces."""
    # A no-break space stands within a word.
    return [cell for part in line.split("\t" if "\t" in line else " ") if (cell := part.strip(" "))]


def _of_lines(path, task: Task) -> Iterator[list[tuple[str, str, str]]]:
    """The word, the tag and the place of each line, sentence by sentence."""
    tags, widths, numbered = {"#", *task.labels}, set(), True
    for row in map(_cells, lines_of(path)):
        if row and row[0][0] != "#" and row[0] != _DOCUMENT:
            tags.add(row[-1])
            widths.add(len(row))
            numbered = numbered and re.fullmatch(r"\d+([-.]\d+)?", row[0]) is not None
    if numbered and min(widths, default=0) > 2 and widths != {10}:
        raise UserError(f"{path}: the first column numbers the words; take it out")
    # The word and its universal part of speech, of CoNLL-U's ten columns.
    word, tag = (1, 3) if numbered and widths == {10} else (0, -1)
    sentence: list[tuple[str, str, str]] = []
    for number, line in enumerate(itertools.chain(lines_of(path), [""]), start=1):
        row = _cells(line)
        if not row or row[0] == _DOCUMENT:
            if sentence:
                yield sentence
            sentence = []
        elif sentence or not _is_comment(line, tags):
            if len(row) < 2:
                raise UserError(
                    f"{path}, line {number}: {row[0][:40]!r} stands alone; give a word and its tag "
                    "with a tab or a space between, and an empty line after each sentence"
                )
            if not word or row[0].isdecimal():  # 1-2 and 1.1 number no words
                sentence.append((row[word], row[tag], f"{path}, line {number}"))


def _is_comment(line: str, tags: Set[str]) -> bool:
    """Whether a line is a comment, such as `# id 1` or `# text = A`, and not `#` with its tag."""
    mark, *others = line.split()
    if line.startswith("#\t") or not others:
        return False
    if "=" in others[:3]:
        return mark[0] == "#"
    return mark == "#" and others[-1] not in tags and not _ENTITY.fullmatch(others[-1])


class WordPositions(NamedTuple):
    """The first piece of each of W words.

    Attributes:
        rows, columns: (W,) int64: its window and its position there; -1 of a word that the
            vocabulary has no piece for, such as a lone control character.
    """

    rows: tf.Tensor
    columns: tf.Tensor


def encode_words(
    vocabulary: PieceVocabulary, words: tf.RaggedTensor, max_length: int
) -> tuple[dict[str, tf.Tensor], WordPositions]:
    """Sentences (N, words) to windows `[CLS] pieces [SEP]`, which overlap by half.

    Each word is seen in the window whose middle its first piece is nearest to. A vocabulary with
    `cls_last` gives `pieces [SEP] [CLS]`.

    Returns:
        {"token_ids": (M, L) int32, filled up with 0 (PAD); "segment_ids": (M, L) int32, 2 at a
        [CLS] that ends a row, else 0}, and the positions of the words, in order.
    """
    check_length(max_length, 3, "sentences")
    room = max_length - 2
    # With the space that a byte-level vocabulary tells the beginning of a word by.
    pieces = vocabulary.encode(tf.strings.join([" ", words.values]))  # (W, None)
    sentences = tf.RaggedTensor.from_row_splits(
        pieces.values, tf.gather(pieces.row_splits, words.row_splits)
    )  # (N, None)
    stride = max(room // 2, 1)
    rooms = tf.fill([sentences.nrows()], tf.constant(room, tf.int64))  # (N,)
    windows = windows_over(sentences, rooms, stride)
    owner = words.value_rowids()  # (W,)
    piece = pieces.row_starts() - tf.gather(sentences.row_starts(), owner)  # (W,), in the sentence
    window = (piece - room // 2 + stride // 2) // stride
    window = tf.clip_by_value(window, 0, tf.gather(windows.starts.row_lengths(), owner) - 1)
    has_piece = pieces.row_lengths() > 0
    positions = WordPositions(
        tf.where(has_piece, tf.gather(windows.starts.row_starts(), owner) + window, -1),
        tf.where(has_piece, (not vocabulary.cls_last) + piece - window * stride, -1),
    )
    return rows_of(vocabulary, [(windows.ids, 0), (vocabulary.sep_id, 0)]), positions


def word_probabilities(logits: tf.Tensor, positions: WordPositions, outside: int = 0) -> tf.Tensor:
    """A tagger's probabilities of the tags of each word, (W, C) float32.

    Args:
        outside: tag of a word without a piece, see `Task.outside`.
    """
    has_piece = positions.rows >= 0
    # A sentence of such words alone has a window all the same: position 0 is always there.
    index = tf.maximum(tf.stack(positions, axis=1), 0)  # (W, 2)
    seen = tf.nn.softmax(tf.cast(tf.gather_nd(logits, index), tf.float32))  # (W, C)
    return tf.where(has_piece[:, None], seen, tf.one_hot(outside, tf.shape(logits)[-1]))


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedTaggedSentences(EncodedExamples):
    """Tokenized sentences: M rows, a window each; the label of a word's first piece in its window
    is the tag's number plus 1, that of all other ids 0.

    Attributes:
        positions: of the W words, as NumPy arrays.
        splits: (N + 1,) int64: sentence i has the words `splits[i]` to `splits[i + 1]`.
    """

    positions: WordPositions
    splits: np.ndarray


def encode_tagged(
    vocabulary: PieceVocabulary,
    examples: TaggedSentences,
    max_length: int,
) -> EncodedTaggedSentences:
    """Tokenizes a split once by `encode_words`: its windows, in the sentences' order."""

    def encode(part: slice) -> tuple:
        words = tf.ragged.constant(examples.words[part], tf.string, ragged_rank=1)
        inputs, positions = encode_words(vocabulary, words, max_length)
        return inputs["token_ids"], len(inputs["token_ids"]), len(words.values), *positions

    rows, found = encode_parts(len(examples), encode, vocabulary.size)
    windows, words, row, column = zip(*found, strict=True)
    before = np.cumsum(windows) - windows  # windows of the parts before each
    row, column = np.concatenate(row), np.concatenate(column)  # (W,)
    row = np.where(row < 0, -1, row + np.repeat(before, words))
    labels = None
    if examples.labels is not None:
        has_piece = row >= 0  # (W,)
        tags = np.zeros_like(rows.ids, np.uint16)
        labelled = rows.offsets[row[has_piece]] + column[has_piece]
        tags[labelled] = 1 + np.concatenate(examples.labels)[has_piece]
        labels = TokenRows(tags, rows.offsets)
    splits = np.cumsum([0, *map(len, examples.words)])
    positions = WordPositions(row, column)
    return EncodedTaggedSentences(
        rows, rows.lengths, labels, max_length, positions, splits, cls_last=vocabulary.cls_last
    )
