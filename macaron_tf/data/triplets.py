"""Triplets of sentences from a table: an anchor, one that means the same, one that does not."""

from macaron_tf.data.sentence_data import SentenceSets
from macaron_tf.data.text_files import lines_of, split_path
from macaron_tf.errors import UserError

COLUMNS = ("anchor", "positive", "negative")


def read_triplets(source: str, split: str) -> SentenceSets:
    """Reads a split of triplets.

    Args:
        source: `tsv:FILE`, plain or `.gz`: a header that names the three columns `anchor`,
            `positive` and `negative` among others, tabs between, no quoting. `{split}` in the name
            stands for the split; without it there are "train" and, equally, "all".
        split: the split.

    Returns:
        The triplets, without labels.

    Raises:
        UserError: no such source or file, a column that is missing, a line of too few or too many
            columns, an empty text; names the file, the line and the column.
    """
    kind, _, name = source.partition(":")
    if kind != "tsv" or not name:
        raise UserError(f"triplets cannot be read from {source!r}: give --source tsv:FILE")
    path = split_path("tsv", name, split)
    lines = lines_of(path)
    header = next(lines, "").split("\t")
    wrong = [column for column in COLUMNS if header.count(column) != 1]
    if wrong:
        raise UserError(
            f"{path}, line 1: {header.count(wrong[0]) or 'no'} column named {wrong[0]!r}; the "
            f"header must name {', '.join(COLUMNS)} once each, with tabs between"
        )
    places = [header.index(column) for column in COLUMNS]
    sentences = tuple([] for _ in COLUMNS)
    for number, line in enumerate(lines, start=2):
        row = line.split("\t")
        if len(row) != len(header):
            raise UserError(
                f"{path}, line {number}: {len(row)} columns, not the header's {len(header)}; "
                "separate columns by one tab, and take tabs and line ends out of texts"
            )
        for column, place, texts in zip(COLUMNS, places, sentences, strict=True):
            if not row[place].strip():
                raise UserError(
                    f"{path}, line {number}: the text in column {column!r} is empty; "
                    "fill it in or take the line out"
                )
            texts.append(row[place])
    if not sentences[0]:
        raise UserError(f"{path} holds no triplet: give a header and a line for each")
    return SentenceSets(sentences, None)
