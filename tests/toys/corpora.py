"""A corpus of consecutive numbers, each of which is one token, and its rows."""

import itertools
import pathlib
from collections.abc import Iterator

import numpy as np
from etils.epath.gpath import PosixGPath

from macaron_tf.data.corpus.config import CorpusConfig, CorpusSource
from macaron_tf.data.corpus.reading import PretrainingCorpus
from macaron_tf.io import paths as storage
from macaron_tf.text.wordpiece import SPECIAL_PIECES


def made_with_kills(monkeypatch, make, out, check=lambda: None, operations=3, **settings):
    """Prepares a corpus, but interrupts the preparation every few file operations.

    Each interruption is followed by `check` and a restart. Returns the corpus and the number of
    interruptions.

    Args:
        monkeypatch: fixture that replaces the file operations.
        make: function that prepares the corpus.
        out: folder of the corpus.
        check: function called after each interruption.
        operations: minimum number of file operations before an interruption.
        settings: corpus settings.
    """
    rename, remove = storage.tf.io.gfile.rename, PosixGPath.unlink
    left = kills = 0  # `left`: number of file operations until the kill

    def dies(operation, after):
        def wrapped(*args, **kwargs):
            nonlocal left
            left -= 1
            if left < 0 and not after:
                raise KeyboardInterrupt
            operation(*args, **kwargs)
            if left < 0:
                raise KeyboardInterrupt

        return wrapped

    while True:
        # Each attempt gets one or two operations further than the last, then is killed.
        left = operations + kills % 2
        monkeypatch.setattr(storage.tf.io.gfile, "rename", dies(rename, after=kills % 3 == 0))
        monkeypatch.setattr(PosixGPath, "unlink", dies(remove, after=kills % 3 == 1))
        try:
            return make(out, **settings), kills
        except KeyboardInterrupt:
            kills += 1
            assert kills < 100
            check()


BOTH = ("train", "validation")


def config_of(texts: pathlib.Path, weights=None, **settings) -> CorpusConfig:
    """Returns the configuration of a small corpus with rows of 16 tokens.

    The corpus reads folder "a" of `texts`. With `weights`, the corpus mixes folders "a" and "b"
    with these sampling weights. `settings` are further fields of `CorpusConfig`.
    """
    sources = (f"text:{texts}/a/*.txt",)
    if weights:
        folders = zip("ab", weights, strict=True)
        sources = tuple(CorpusSource(f"text:{texts}/{n}/*.txt", weight=w) for n, w in folders)
    shape = {"sequence_length": 16, "validation_every": 10, "rows_per_shard": 12}
    return CorpusConfig(**{"sources": sources, **shape, **settings})


def rows_of(corpus: PretrainingCorpus, *splits: str) -> np.ndarray:
    """Returns the token ids of `splits` (default: all splits) in file order: `(rows, L)`."""
    return np.stack([row["token_ids"] for row in each_row(corpus, *splits)])


def each_row(corpus: PretrainingCorpus, *splits: str) -> Iterator[dict[str, np.ndarray]]:
    """Yields the features of each row in `splits` (default: all splits), in file order."""
    for split in splits or BOTH:
        dataset = corpus.dataset(split, 7, seed=None, repeat=False, drop_remainder=False)
        yield from dataset.unbatch().as_numpy_iterator()


def numbers_of(corpus: PretrainingCorpus, rows: np.ndarray) -> list[int]:
    """Returns the numbers in `rows` in order; special tokens and full stops are skipped."""
    ids = rows[(rows >= len(SPECIAL_PIECES)) & (rows < corpus.vocabulary.pieces - 1)]
    return (ids - len(SPECIAL_PIECES)).tolist()


def halves_of(corpus: PretrainingCorpus, ids: np.ndarray) -> tuple[list[int], list[int]]:
    """Returns the numbers of the first and of the second segment in a sentence-pair row."""
    first, _ = np.flatnonzero(ids == 3)
    return numbers_of(corpus, ids[:first]), numbers_of(corpus, ids[first:])


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns a dict mapping file names in `folder` to contents; the lock file is left out."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != ".lock"}


ROWS = [[5, 6, 3], [3], [7, 8, 9, 10, 3]]


def lists(rows):
    return [rows.ids[a:b].tolist() for a, b in itertools.pairwise(rows.offsets)]
