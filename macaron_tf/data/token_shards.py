"""Storage of a tokenized parallel corpus in memory-mapped shards, one for every 32,768 pairs."""

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
from macaron_tf.io.progress import Progress
from macaron_tf.text.token_rows import JoinedRows, TokenRows, fingerprint

FORMAT = 3  # increase this number if the layout or the meaning of the files changes
# Number of pairs per shard. The number is part of the format, because a resumed run skips shards.
SHARD_PAIRS = 1 << 15
_OTHER_FILES = 256  # number of open files that a process may need besides the shards
_INDEX = "index.json"  # written last, with the number of shards and the fingerprint of all rows

Pairs = Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class TokenizedPairs:
    """A tokenized parallel corpus. Each row has the token ids of one side of a pair, then EOS.

    Attributes:
        source, target: rows of each side; row n of `target` is the translation of row n of
            `source`.
        index_parts: one int64 array per shard, with the index that the pair of each row had in the
            corpus before cleaning.
        removed: dict mapping each reason for removal to the number of pairs removed for that
            reason.
        fingerprint: SHA-256 (hex) of the rows. The string is empty if no hash was computed.
    """

    source: TokenRows | JoinedRows
    target: TokenRows | JoinedRows
    index_parts: Sequence[np.ndarray]
    removed: dict[str, int]
    fingerprint: str = ""

    @classmethod
    def join(cls, parts: Sequence["TokenizedPairs"], fingerprint: str = "") -> "TokenizedPairs":
        """Joins one or more consecutive parts of a corpus without copying the token ids."""
        if len(parts) == 1:
            return dataclasses.replace(parts[0], fingerprint=fingerprint)
        return cls(
            JoinedRows([part.source for part in parts]),
            JoinedRows([part.target for part in parts]),
            [array for part in parts for array in part.index_parts],
            {reason: sum(part.removed[reason] for part in parts) for reason in parts[0].removed},
            fingerprint,
        )

    @property
    def indices(self) -> np.ndarray:
        """Index of each row's pair before cleaning, `(rows,)` int64."""
        return np.concatenate(self.index_parts)


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """The pairs of one shard before they are tokenized.

    Attributes:
        index: index of the shard.
        first: index of the first pair of the shard in the corpus.
        pairs: N pairs.
        repeated: `(N,)` bool, True for each pair that equals an earlier pair and is therefore
            removed. `None` means that repeated pairs are kept.
    """

    index: int
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
    """Opens a tokenized corpus after tokenizing all shards that are missing or damaged.

    The content of the shards does not depend on the number of processes. If the process is killed,
    the next call continues with the shards that are missing. If another process is preparing the
    same corpus, this call waits for that process.

    Args:
        folder: folder of the shards. Each combination of source, vocabulary and settings needs a
            folder of its own, because this function does not check how shards were made.
        chunks: function that returns an iterator over all chunks of the source.
        tokenize: function that tokenizes a chunk. The function must be picklable if several
            processes tokenize several chunks.
        count: function that returns the number of pairs in the source, or `None` if the number is
            unknown. The number is used only to display progress and to limit `processes`.
        processes: number of processes that tokenize; `None` means the number of CPU cores.

    Raises:
        UserError: the shards cannot be written or opened, or are damaged right after they were
            written; three worker processes died on the same chunk; or `chunks` or `tokenize`
            raised the error.
    """
    if tokens := open_tokens(folder):
        return tokens
    with only_writer(folder, "tokenizing", wait=True):
        tokens = open_tokens(folder)  # another process may have written the shards in the meantime
        if not tokens:
            _write(folder, chunks, tokenize, count(), processes or os.cpu_count() or 1)
            # Mapping the shards again frees the pages that were read for the fingerprint.
            tokens = open_tokens(folder)
    if not tokens:
        raise UserError(
            f"files in {folder} are damaged: set MACARON_TF_CACHE to a folder on another disk"
        )
    return tokens


def _write(folder, chunks, tokenize, total: int | None, processes: int) -> None:
    """Writes the shards that are missing or damaged, then the index file.

    The arguments are the same as in `prepare`, except that `total` is the result of `count`.
    """
    for leftover in folder.glob(".tmp-*"):  # files of a killed process
        leftover.unlink(missing_ok=True)
    count = 0
    with Progress("tokenizing", "pairs", total) as progress:

        def missing_chunks() -> Iterator[Chunk]:
            nonlocal count
            for chunk in chunks():
                count += 1
                if load_tokens(_shard_path(folder, chunk.index)) is None:
                    yield chunk
                else:
                    progress.advance(len(chunk.pairs))

        chunks_to_write = missing_chunks()
        first_two = list(itertools.islice(chunks_to_write, 2))
        max_processes = -(-total // SHARD_PAIRS) if total else processes
        processes = min(processes, max_processes) if len(first_two) > 1 else 1
        with Processes(processes, (folder, tokenize)) as pool:
            for pair_count in pool.map(_write_shard, itertools.chain(first_two, chunks_to_write)):
                progress.advance(pair_count)
    if parts := _load_shards(folder, count):
        tokens = TokenizedPairs.join(parts)
        digest = fingerprint([*tokens.source.arrays(), *tokens.target.arrays()])
        record = {"shards": count, "fingerprint": digest}
        storage.write_atomic(folder / _INDEX, json.dumps(record).encode())


def _write_shard(context: tuple[pathlib.Path, Callable], chunk: Chunk) -> int:
    """Tokenizes a chunk, writes its shard, and returns the number of pairs in the chunk."""
    folder, tokenize = context
    save_tokens(_shard_path(folder, chunk.index), tokenize(chunk))
    return len(chunk.pairs)


def _shard_path(folder: pathlib.Path, index: int) -> pathlib.Path:
    return folder / f"shard-{index:05d}"


def open_tokens(folder: pathlib.Path) -> TokenizedPairs | None:
    """Opens a finished corpus.

    Returns:
        The corpus, or `None` if it is missing, unfinished or damaged.

    Raises:
        UserError: this process may not open as many files as the corpus has shards.
    """
    try:
        record = storage.read_json(folder / _INDEX, shards=int, fingerprint=str)
        count, digest = record["shards"], record["fingerprint"]
    except UserError:
        return None
    parts = _load_shards(folder, count)
    return TokenizedPairs.join(parts, digest) if parts else None


def _load_shards(folder: pathlib.Path, count: int) -> list[TokenizedPairs] | None:
    """Memory-maps the shards of a corpus, or returns `None` if a shard is missing or damaged."""
    _allow_open_files(count, folder)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        parts = list(threads.map(load_tokens, (_shard_path(folder, i) for i in range(count))))
    loaded = [part for part in parts if part is not None]
    return loaded if len(loaded) == count else None


def _allow_open_files(count: int, folder: pathlib.Path) -> None:
    """Increases this process's limit on open files if the limit is too low for all shards.

    Every mapped file stays open. The usual limit of 1,024 open files is too low for a corpus of 30
    million pairs (916 shards), because the process also opens other files.

    Raises:
        UserError: the operating system's hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if 0 <= hard < needed:
        raise UserError(
            f"{folder} needs {needed} open files: as root, raise the limit by `ulimit -Hn {needed}`"
        )
    if 0 <= soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def save_tokens(path: pathlib.Path, tokens: TokenizedPairs) -> None:
    """Writes a shard as two files, PATH.tokens and then PATH.json. Each write is atomic."""
    source, target = tokens.source, tokens.target
    # The int64 arrays come first, so that all arrays are aligned.
    arrays = {"source_offsets": source.offsets, "target_offsets": target.offsets}
    arrays |= {"indices": tokens.indices, "source_ids": source.ids, "target_ids": target.ids}
    mend = "make room or set MACARON_TF_CACHE to another folder, then run the same command again"
    with storage.atomic_output_path(f"{path}.tokens", mend) as temporary_path:
        with open(temporary_path, "wb") as file:
            for array in arrays.values():
                file.write(array.data)
        digest = storage.file_digest(temporary_path)
    layout = {name: [str(array.dtype), len(array)] for name, array in arrays.items()}
    record = {"removed": tokens.removed, "sha256": digest, "arrays": layout}
    with storage.atomic_output_path(f"{path}.json", mend) as temporary_path:
        pathlib.Path(temporary_path).write_text(json.dumps(record, indent=2), encoding="utf-8")


def load_tokens(path: pathlib.Path) -> TokenizedPairs | None:
    """Memory-maps a shard that `save_tokens` wrote.

    Returns:
        The shard, or `None` if PATH.tokens or PATH.json is missing or unreadable, or if the SHA-256
        of PATH.tokens differs from the SHA-256 in PATH.json.
    """
    try:
        record = storage.read_json(f"{path}.json", arrays=dict, removed=dict)
        if storage.file_digest(f"{path}.tokens") != record["sha256"]:
            return None
        with open(f"{path}.tokens", "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        arrays, offset = {}, 0
        for name, (dtype, count) in record["arrays"].items():
            arrays[name] = np.ndarray(count, dtype, mapped, offset)
            offset += arrays[name].nbytes
        source, target = (
            TokenRows(arrays[f"{side}_ids"], arrays[f"{side}_offsets"])
            for side in ("source", "target")
        )
        removed = {str(reason): int(count) for reason, count in record["removed"].items()}
        return TokenizedPairs(source, target, [arrays["indices"]], removed)
    except (UserError, *storage.FILE_ERRORS, ValueError, KeyError, TypeError):
        return None
