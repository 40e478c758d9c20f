"""Stores a tokenized parallel corpus on disk as memory-mapped shards of a fixed number of pairs."""

import concurrent.futures
import dataclasses
import itertools
import json
import mmap
import os
import pathlib
import resource
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from macaron_tf.data.processes import Processes
from macaron_tf.errors import UserError
from macaron_tf.io import paths as storage
from macaron_tf.io.files import only_writer
from macaron_tf.io.process_memory import return_freed_memory
from macaron_tf.io.progress import Progress
from macaron_tf.text.token_rows import JoinedRows, TokenRows, fingerprint

FORMAT = 3  # increase it if the layout or the meaning of the files changes
SHARD_PAIRS = 1 << 15  # pairs read per shard; part of the format, because resuming relies on it
_OTHER_FILES = 256  # files that a process opens besides the shards
_INDEX = "index.json"  # written last, with the number of shards and the fingerprint of their rows

Pairs = Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class TokenizedPairs:
    """A tokenized parallel corpus, whose rows are ids and EOS.

    Attributes:
        source, target: rows of each side; row n of one belongs to row n of the other.
        index_parts: an int64 array for each shard, the number of each row's pair before cleaning.
        removed: number of pairs that were left out, by reason.
        fingerprint: SHA-256 (hex) of the rows; "": not computed.
        folder: folder of the shards; "": the rows are only in memory.
    """

    source: TokenRows | JoinedRows
    target: TokenRows | JoinedRows
    index_parts: Sequence[np.ndarray]
    removed: dict[str, int]
    fingerprint: str = ""
    folder: str = ""

    @classmethod
    def joined(
        cls, parts: Sequence["TokenizedPairs"], fingerprint: str = "", folder: str = ""
    ) -> "TokenizedPairs":
        """Joins parts of a corpus without copying their arrays."""
        if len(parts) == 1:
            return dataclasses.replace(parts[0], fingerprint=fingerprint, folder=folder)
        return cls(
            JoinedRows([part.source for part in parts]),
            JoinedRows([part.target for part in parts]),
            [array for part in parts for array in part.index_parts],
            {reason: sum(part.removed[reason] for part in parts) for reason in parts[0].removed},
            fingerprint,
            folder,
        )

    @property
    def indices(self) -> np.ndarray:
        """`(rows,)` int64, the arrays of `index_parts` concatenated."""
        return np.concatenate(self.index_parts)


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """The pairs of one shard before they are tokenized.

    Attributes:
        number: number of the shard, from 0.
        first: number of its first pair in the corpus.
        pairs: N pairs.
        repeated: `(N,)` bool, True if a pair equals an earlier one, so that it is left out; None:
            repeated pairs are kept.
    """

    number: int
    first: int
    pairs: Pairs
    repeated: np.ndarray | None = None


def prepare(
    folder: pathlib.Path,
    chunks: Callable[[], Iterator[Chunk]],
    tokenize: Callable[[Chunk], TokenizedPairs],
    count: Callable[[], int | None],
    processes: int | None = None,
) -> TokenizedPairs:
    """Opens a tokenized corpus; tokenizes the shards that are missing or damaged.

    The shards do not depend on the number of processes. If the process is killed, the same call
    skips the complete shards and continues. If another process prepares the same corpus, the call
    waits for it.

    Args:
        folder: folder of the shards, used for this source, vocabulary and settings only, because
            shards in it are not compared with them.
        chunks: function that reads the source from its beginning.
        tokenize: function that tokenizes a chunk; it is pickled if there are several chunks.
        count: function that returns the number of pairs in the source, or None if it is not known.
        processes: number of processes that tokenize; None: the number of cores.

    Raises:
        UserError: the shards cannot be written, or are damaged again after writing.
    """
    if tokens := open_tokens(folder):
        return tokens
    with only_writer(folder, "tokenizing", wait=True):
        tokens = open_tokens(folder)  # another process may have written it in the meantime
        if not tokens:
            _write(folder, chunks, tokenize, count(), processes or os.cpu_count() or 1)
            # Map it again: this frees the pages that were read for the fingerprint.
            tokens = open_tokens(folder)
            return_freed_memory()
    if not tokens:
        raise UserError(
            f"{folder} was damaged right after it was written: set MACARON_TF_CACHE to a folder on "
            "another disk"
        )
    return tokens


def _write(folder, chunks, tokenize, total: int | None, processes: int) -> None:
    """Writes the shards that are missing or damaged, then the index; see `prepare`."""
    for left in folder.glob(".tmp-*"):  # files of a killed process
        left.unlink(missing_ok=True)
    return_freed_memory()  # of the lines that a vocabulary was trained on just before
    count = 0
    with Progress("tokenizing", "pairs", total) as progress:

        def missing() -> Iterator[Chunk]:
            nonlocal count
            for chunk in chunks():
                count += 1
                if load_tokens(_shard(folder, chunk.number)) is None:
                    yield chunk
                else:
                    progress.advance(len(chunk.pairs))

        todo = missing()
        first = list(itertools.islice(todo, 2))
        most = -(-total // SHARD_PAIRS) if total else processes
        processes = min(processes, most) if len(first) > 1 else 1
        with Processes(processes, (folder, tokenize)) as pool:
            for done in pool.map(_write_shard, itertools.chain(first, todo)):
                progress.advance(done)
    if parts := _shards(folder, count):
        tokens = TokenizedPairs.joined(parts)
        digest = fingerprint([*tokens.source.arrays(), *tokens.target.arrays()])
        record = {"shards": count, "fingerprint": digest}
        storage.write_aside(folder / _INDEX, json.dumps(record).encode())


def _write_shard(context: tuple[pathlib.Path, Callable], chunk: Chunk) -> int:
    """Tokenizes a chunk, writes its shard, and returns the chunk's number of pairs."""
    folder, tokenize = context
    save_tokens(_shard(folder, chunk.number), tokenize(chunk))
    return len(chunk.pairs)


def _shard(folder: pathlib.Path, number: int) -> pathlib.Path:
    return folder / f"shard-{number:05d}"


def open_tokens(folder: pathlib.Path) -> TokenizedPairs | None:
    """Opens a finished corpus; returns None if it is missing, unfinished or damaged."""
    try:
        record = storage.read_json(folder / _INDEX, shards=int, fingerprint=str)
        count, digest = record["shards"], record["fingerprint"]
    except UserError:
        return None
    parts = _shards(folder, count)
    return TokenizedPairs.joined(parts, digest, os.path.abspath(folder)) if parts else None


def _shards(folder: pathlib.Path, count: int) -> list[TokenizedPairs] | None:
    """Maps the shards of a corpus into memory; None if one is missing or damaged."""
    _allow_open_files(count, folder)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        parts = list(threads.map(load_tokens, (_shard(folder, i) for i in range(count))))
    whole = [part for part in parts if part is not None]
    return whole if len(whole) == count else None


def _allow_open_files(count: int, folder: pathlib.Path) -> None:
    """Raises the limit of open files of this process, because every mapped file stays open.

    30 million pairs exceed the usual limit, 1,024.

    Raises:
        UserError: the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if 0 <= hard < wanted:
        raise UserError(
            f"{folder} has {count} files, but this process may open only {hard}: raise "
            f"`ulimit -Hn` to {wanted}"
        )
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def save_tokens(path: pathlib.Path, tokens: TokenizedPairs) -> None:
    """Writes a shard as two files, PATH.tokens and then PATH.json, each atomically."""
    source, target = tokens.source, tokens.target
    # Arrays of 8-byte numbers come first, so that all arrays are aligned.
    arrays = {"source_offsets": source.offsets, "target_offsets": target.offsets}
    arrays |= {"indices": tokens.indices, "source_ids": source.ids, "target_ids": target.ids}
    mend = "make room or set MACARON_TF_CACHE to another folder, then give the same command again"
    with storage.renamed_aside(f"{path}.tokens", mend) as aside:
        with open(aside, "wb") as file:
            for array in arrays.values():
                file.write(array.data)
        digest = storage.file_digest(aside)
    kinds = {name: [str(array.dtype), len(array)] for name, array in arrays.items()}
    record = {"removed": tokens.removed, "sha256": digest, "arrays": kinds}
    with storage.renamed_aside(f"{path}.json", mend) as aside:
        pathlib.Path(aside).write_text(json.dumps(record, indent=2), encoding="utf-8")


def load_tokens(path: pathlib.Path) -> TokenizedPairs | None:
    """Maps a shard of `save_tokens` into memory; None if it is missing or its SHA-256 differs."""
    try:
        record = storage.read_json(f"{path}.json", arrays=dict, removed=dict)
        if storage.file_digest(f"{path}.tokens") != record["sha256"]:
            return None
        with open(f"{path}.tokens", "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        arrays, at = {}, 0
        for name, (dtype, count) in record["arrays"].items():
            arrays[name] = np.ndarray(count, dtype, mapped, at)
            at += arrays[name].nbytes
        source, target = (
            TokenRows(arrays[f"{side}_ids"], arrays[f"{side}_offsets"])
            for side in ("source", "target")
        )
        removed = {str(reason): int(count) for reason, count in record["removed"].items()}
        return TokenizedPairs(source, target, [arrays["indices"]], removed)
    except (UserError, *storage.FILE_ERRORS, ValueError, KeyError, TypeError):
        return None
