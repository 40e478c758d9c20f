"""Token rows in memory and on disk; a cache that is damaged or half-written is never read."""

import os
import time

import numpy as np
import pytest

from macaron_tf.text.token_rows import TokenizedPairs, TokenRows, load_tokens, save_tokens
from tests.harness import refuses

ROWS = [[5, 6, 3], [3], [7, 8, 9, 10, 3]]


@pytest.fixture
def tokens():
    source = TokenRows.from_lists(ROWS, 100)
    return TokenizedPairs(source, source.taken(np.array([2, 1, 0])), np.arange(3), {"empty": 2})


def lists(rows):
    return [
        rows.ids[a:b].tolist() for a, b in zip(rows.offsets[:-1], rows.offsets[1:], strict=True)
    ]


def test_packing_selecting_and_padding(tokens):
    assert lists(tokens.source) == ROWS
    assert lists(tokens.target) == ROWS[::-1]
    assert lists(tokens.source.taken(np.array([], np.int64))) == []
    assert tokens.source.lengths.tolist() == [3, 1, 5]
    padded = tokens.source.padded(np.array([1, -1, 2, 0]), 6)
    assert padded.dtype == np.int32
    assert padded.tolist() == [
        [3, 0, 0, 0, 0, 0],
        [0] * 6,
        [7, 8, 9, 10, 3, 0],
        [5, 6, 3, 0, 0, 0],
    ]
    assert TokenRows.from_lists([[65535]], 65536).ids.dtype == np.uint16
    assert TokenRows.from_lists([[65536]], 65544).ids.tolist() == [65536]


def test_saved_equals_loaded(tokens, tmp_path):
    assert load_tokens(tmp_path / "a") is None
    for _ in range(2):
        save_tokens(tmp_path / "a", tokens)
    loaded = load_tokens(tmp_path / "a")
    assert lists(loaded.source) == ROWS and lists(loaded.target) == ROWS[::-1]
    assert loaded.removed == {"empty": 2}
    assert isinstance(loaded.source.ids, np.memmap)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.tokens"]


@pytest.mark.parametrize("name", ["a.tokens", "a.json"])
@pytest.mark.parametrize("damage", ["remove", "cut", "flip", "empty"])
def test_damage_is_noticed(tokens, tmp_path, name, damage):
    save_tokens(tmp_path / "a", tokens)
    path = tmp_path / name
    content = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        flipped = bytes([content[-2] ^ 1, content[-1]])
        path.write_bytes(
            {"cut": content[:-1], "flip": content[:-2] + flipped, "empty": b""}[damage]
        )
    assert load_tokens(tmp_path / "a") is None
    save_tokens(tmp_path / "a", tokens)
    assert load_tokens(tmp_path / "a") is not None


def test_leftovers_of_a_killed_process_are_ignored_and_later_removed(tokens, tmp_path):
    left = tmp_path / ".tmp-a.tokens-12345"
    left.write_bytes(b"half")
    assert load_tokens(tmp_path / "a") is None
    save_tokens(tmp_path / "a", tokens)
    assert left.exists()  # its process may still live
    old = time.time() - 2 * 24 * 3600
    os.utime(left, (old, old))
    save_tokens(tmp_path / "a", tokens)
    assert not left.exists()


def test_unwritable_place(tokens, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refuses(
        "cannot write .*file/a.tokens: .*; set MACARON_TF_CACHE to",
        save_tokens,
        tmp_path / "file" / "a",
        tokens,
    )
