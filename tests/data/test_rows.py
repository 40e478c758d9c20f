"""Tests of a tokenized corpus on disk: damaged or half-written files are never read."""

import json
import mmap

import numpy as np
import pytest

from macaron_tf.data.rows import Chunk, TokenizedPairs, prepare
from macaron_tf.text.token_rows import TokenRows, fingerprint
from tests.toys.corpora import ROWS, lists


@pytest.fixture
def write(tmp_path):
    """Returns `write(*chunks)`, which writes and opens a corpus.

    Each chunk is a list of rows, which are the sources, and, in reverse order, the targets.
    """

    def tokenize(chunk):
        source = TokenRows.from_lists(chunk.pairs, 100)
        target = source.take(np.arange(len(source))[::-1])
        return TokenizedPairs(source, target, np.arange(len(source)), {"empty": 2})

    def write(*chunks):
        def made():
            read.append(chunks)
            return map(Chunk, chunks)

        return prepare(tmp_path / "tokens", made, tokenize, lambda: None, 1)

    read = write.read = []

    return write


@pytest.mark.parametrize("chunks", [(ROWS,), (ROWS[:1], [], ROWS[1:]), ([], ROWS)])
def test_chunks_are_one_corpus(write, chunks):
    for _ in range(2):
        tokens = write(*chunks)
        assert len(write.read) == 1
        assert lists(tokens.source) == ROWS
        assert lists(tokens.target) == [row for chunk in chunks for row in chunk[::-1]]
        assert tokens.removed == {"empty": 2 * len(chunks)}
        assert isinstance(tokens.source.ids.base, mmap.mmap)
        rows = (tokens.source, tokens.target)
        assert tokens.fingerprint == fingerprint(array for part in rows for array in part.arrays())


def test_no_row_at_all(write):
    tokens = write([])
    assert lists(tokens.target) == [] and tokens.source.size == 0


NAMES = ["source_ids", "source_offsets", "target_ids", "target_offsets", "tokens.json"]


@pytest.mark.parametrize("damage", [["<u9", 9], ["<u2", 8], 3])
def test_damage_of_the_record_is_noticed(write, tmp_path, damage):
    write(ROWS)
    path = tmp_path / "tokens" / "tokens.json"
    record = json.loads(path.read_text())
    record["arrays"]["source_ids"] = damage
    path.write_text(json.dumps(record))
    assert lists(write(ROWS).source) == ROWS and len(write.read) == 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", ["remove", "cut", "flip", "empty"])
def test_damage_is_noticed(write, tmp_path, name, damage):
    write(ROWS)
    path = tmp_path / "tokens" / name
    content = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        flipped = bytes([content[-2] ^ 1, content[-1]])
        path.write_bytes(
            {"cut": content[:-1], "flip": content[:-2] + flipped, "empty": b""}[damage]
        )
    assert lists(write(ROWS).source) == ROWS and len(write.read) == 2
    assert lists(write(ROWS).source) == ROWS
    assert path.read_bytes() == content
