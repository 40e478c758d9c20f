"""Tests of token shards on disk: a damaged or half-written shard is never read."""

import mmap
import os
import resource

import numpy as np
import pytest

from macaron_tf.data.token_shards import TokenizedPairs, load_tokens, open_tokens, save_tokens
from macaron_tf.text.token_rows import TokenRows
from tests.harness import refuses
from tests.toys.corpora import ROWS, lists


@pytest.fixture
def tokens():
    source = TokenRows.from_lists(ROWS, 100)
    return TokenizedPairs(source, source.take(np.array([2, 1, 0])), [np.arange(3)], {"empty": 2})


def test_saved_equals_loaded(tokens, tmp_path):
    assert load_tokens(tmp_path / "a") is None
    for _ in range(2):
        save_tokens(tmp_path / "a", tokens)
    loaded = load_tokens(tmp_path / "a")
    assert lists(loaded.source) == ROWS and lists(loaded.target) == ROWS[::-1]
    assert loaded.removed == {"empty": 2}
    assert isinstance(loaded.source.ids.base, mmap.mmap)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.tokens"]


def test_a_shard_without_any_row(tmp_path):
    none = TokenRows.from_lists([], 100)
    save_tokens(tmp_path / "a", TokenizedPairs(none, none, [np.zeros(0, np.int64)], {"empty": 2}))
    assert lists(load_tokens(tmp_path / "a").target) == []


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


@pytest.fixture
def few_files():
    """Limits this process to 20 more open files; yields the limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/proc/self/fd")) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_more_shards_than_files_may_be_open(tokens, tmp_path, few_files, monkeypatch):
    for number in range(60):
        save_tokens(tmp_path / f"shard-{number:05d}", tokens)
    (tmp_path / "index.json").write_text('{"shards": 60, "fingerprint": "f"}')
    opened = open_tokens(tmp_path)
    assert len(opened.source) == 180 and opened.target.padded(np.array([179]), 5).any()
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (few_files, few_files))
    refuses("has 60 shards, but this process may open only", open_tokens, tmp_path)
