"""From documents of text to documents of ids: small ones together, a large one in parts."""

from collections.abc import Iterable, Iterator

import numpy as np

from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.sentences import split_sentences
from macaron_tf.text.token_rows import TokenRows

# Characters that are tokenized at once: an article alone (5 KB) would leave the tokenizer waiting
# for Python, and the ids of a megabyte are another one.
_GROUP = 1 << 20
_LONGEST = 1 << 16  # characters of a line; the sentence breakers are slow on longer ones


def tokenized_documents(
    documents: Iterable[str | tuple[str, ...]],
    vocabulary: PieceVocabulary,
    splitter: str | None,
) -> Iterator[TokenRows]:
    """Cuts documents into lines, lines into sentences, and those into ids.

    Args:
        documents: texts; or tuples of lines that count as a sentence each, such as the two halves
            of a translation pair.
        vocabulary: cuts sentences into ids.
        splitter: of `split_sentences`; a whole line counts as a sentence when None.

    Yields:
        For each document the ids of its sentences, none empty.
    """
    lines: list[str] = []
    whole: list[bool] = []  # of each line: not to be split
    counts: list[int] = []  # lines of each document
    characters = 0
    for document in documents:
        is_text = isinstance(document, str)
        found = cut_lines(document) if is_text else document
        lines += found
        whole += [not is_text] * len(found)
        counts.append(len(found))
        characters += len(document) if is_text else sum(map(len, document))
        if characters >= _GROUP:
            yield from _tokenized(lines, whole, counts, vocabulary, splitter)
            lines, whole, counts, characters = [], [], [], 0
    if counts:
        yield from _tokenized(lines, whole, counts, vocabulary, splitter)


def cut_lines(text: str, longest: int = _LONGEST) -> list[str]:
    """The lines of a text, stripped, none empty; one that is too long is cut at a space.

    Args:
        text: the text.
        longest: greatest number of characters of a line.

    Returns:
        The lines.
    """
    lines = []
    for line in text.split("\n"):
        line = line.strip()
        start = 0
        while len(line) - start > longest:
            space = line.rfind(" ", start + 1, start + longest + 1)
            end = space if space > 0 else start + longest
            lines.append(line[start:end].strip())
            start = end + (space > 0)
        lines.append(line[start:].strip())
    return [line for line in lines if line]


def _batches(lines: list[str]) -> Iterator[slice]:
    start = characters = 0
    for number, line in enumerate(lines, start=1):
        characters += len(line)
        if characters >= _GROUP or number == len(lines):
            yield slice(start, number)
            start, characters = number, 0


def _tokenized(lines, whole, counts, vocabulary, splitter) -> Iterator[TokenRows]:
    ids, lengths, sentences = [], [], []  # `sentences` of each line
    for part in _batches(lines):
        batch = lines[part]
        if splitter is not None:
            split = [
                [line] if is_whole else found
                for line, is_whole, found in zip(
                    batch, whole[part], split_sentences(batch, splitter), strict=True
                )
            ]
            sentences += map(len, split)
            batch = [sentence for found in split for sentence in found]
        else:
            sentences += [1] * len(batch)
        rows = vocabulary.encode_rows(batch)
        ids.append(rows.ids)
        lengths.append(rows.lengths)
    if not ids:
        ids, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    rows = TokenRows(np.concatenate(ids), offsets)
    ends = np.concatenate([[0], np.cumsum(sentences)]).astype(np.int64)[np.cumsum(counts)]
    start = 0
    for end in ends:
        offsets = rows.offsets[start : end + 1]
        ids = rows.ids[offsets[0] : offsets[-1]]
        # A sentence without an id (control characters only) adds no offset.
        yield TokenRows(ids, np.unique(offsets - offsets[0]))
        start = end
