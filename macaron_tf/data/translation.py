"""Cleaning, tokenization and caching of sentence pairs, and batches in a few static shapes."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from annotated_types import Ge

from macaron_tf.data.batches import BucketBatches, longest_rows
from macaron_tf.data.processes import Processes
from macaron_tf.data.rows import FORMAT, Store
from macaron_tf.data.sampler import Batch, Draw, bucket_shapes, choose_lengths
from macaron_tf.data.sources.names import HeldOut
from macaron_tf.data.sources.readers import count_texts, source_fingerprint, stream_pairs
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io.files import cache_directory, only_writer
from macaron_tf.io.paths import as_path
from macaron_tf.io.progress import Progress
from macaron_tf.settings import INT32, Count, Settings
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.normalization import in_chunks
from macaron_tf.text.token_rows import TokenRows, map_arrays

# Number of pairs per chunk. The number is part of the format, because a resumed run skips chunks.
CHUNK_PAIRS = 1 << 15

Pairs = Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class CleaningConfig(Settings):
    """Settings for the removal of unsuitable training pairs. White space separates words.

    Attributes:
        max_length: maximum number of words on each side of a pair; `None` means no limit.
        max_ratio: maximum ratio of the longer to the shorter side in words; `None` means no limit.
        deduplicate: whether to keep only the first of several equal pairs.
        max_tokens: maximum number of tokens on each side of a pair, including EOS.
    """

    section: ClassVar[str] = "data.cleaning"

    max_length: Count | None = 175
    max_ratio: Annotated[float, Ge(1)] | None = None
    deduplicate: bool = False
    max_tokens: Annotated[int, Ge(2), INT32] = 256


@dataclasses.dataclass(frozen=True)
class BatchingConfig(Settings):
    """Size and shapes of batches.

    Attributes:
        max_tokens: maximum number of padded tokens per batch (rows times padded length). Source and
            target are counted separately.
        shapes: maximum number of different batch shapes.
        length_multiple: number that divides every padded length. On Multi30k with 8 shapes, the
            share of real tokens is 87.6% for multiples of 2, 85.6% for multiples of 4 and 77.0% for
            multiples of 8. TPUs prefer multiples of 8.
        row_multiple: number that divides the number of rows per batch, unless a batch has fewer
            rows. With 8, a batch divides evenly among 2, 4 or 8 replicas and fits the tiles of
            accelerators.
    """

    section: ClassVar[str] = "data.batching"

    max_tokens: Count = 4096
    shapes: Count = 8
    length_multiple: Count = 2
    row_multiple: Count = 8


@dataclasses.dataclass(frozen=True)
class TokenizedPairs:
    """A tokenized parallel corpus. Each row has the token ids of one side of a pair, then EOS.

    Attributes:
        indices: `(N,)` int64, index of each pair before cleaning; `None` for a corpus in the cache.
        fingerprint: SHA-256 (hex) of the rows. The string is empty if no hash was computed.
    """

    source: TokenRows
    target: TokenRows
    indices: np.ndarray | None
    removed: dict[str, int]
    fingerprint: str = ""

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays of a shard."""
        names = "source_offsets", "source_ids", "target_offsets", "target_ids"
        return dict(zip(names, [*self.source.arrays(), *self.target.arrays()], strict=True))


class Chunk(NamedTuple):
    """`CHUNK_PAIRS` consecutive pairs, or fewer at the end, before they are tokenized.

    Attributes:
        repeated: `(N,)` bool, True for each pair that equals an earlier pair and is therefore
            removed. `None` means that repeated pairs are kept.
    """

    pairs: Pairs
    repeated: np.ndarray | None = None


def find_repeats(pairs: Pairs, seen: set[bytes]) -> np.ndarray:
    """Finds repetitions in the next N pairs, and adds their hashes to the earlier ones, `seen`."""
    is_repeated = []
    for pair in pairs:
        text = "\t".join(pair).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=16).digest()
        is_repeated.append(digest in seen)
        seen.add(digest)
    return np.array(is_repeated, bool)


def clean_pairs(
    pairs: Pairs, config: CleaningConfig, repeated: np.ndarray | None = None
) -> tuple[np.ndarray, dict[str, int]]:
    """Selects the (source, target) pairs that meet the limits on word counts.

    Returns:
        Ascending int64 indices of the kept pairs, and a dict mapping each reason for removal to the
        number of removed pairs. The reasons are "empty", "too long", "ratio" and "duplicate". A
        pair counts only for the first reason that applies, in this order.
    """
    word_counts = [[len(side.split()) for side in pair] for pair in pairs]
    shorter, longer = np.sort(np.array(word_counts, int).reshape(-1, 2), axis=1).T  # (N,) each
    reasons = {
        "empty": shorter == 0,
        "too long": config.max_length is not None and longer > config.max_length,
        "ratio": config.max_ratio is not None and longer > config.max_ratio * shorter,
        "duplicate": repeated is not None and repeated,
    }
    is_kept, counts = np.ones(len(pairs), bool), {}
    for reason, applies in reasons.items():
        counts[reason] = int(np.sum(is_kept & applies))
        is_kept &= np.logical_not(applies)
    return np.flatnonzero(is_kept), counts


def tokenize_pairs(
    vocabulary: PieceVocabulary, cleaning: CleaningConfig, chunk: Chunk
) -> TokenizedPairs:
    """Cleans and tokenizes the pairs of a chunk.

    The source and target languages are the first two languages of `vocabulary`.

    Returns:
        Rows of token ids and EOS. `indices` are those of the pairs in the chunk. `removed` has the
        reasons of `clean_pairs`, and also "no token" and "too many tokens".
    """
    indices, removed = clean_pairs(chunk.pairs, cleaning, chunk.repeated)
    sides = []
    with Progress("tokenizing", "lines", 2 * len(indices)) as progress:
        for side, language in enumerate(vocabulary.languages[:2]):
            lines = progress.over(chunk.pairs[i][side] for i in indices)
            sides.append(vocabulary.encode_rows(lines, language).with_end(vocabulary.special.end))
    min_lengths, max_lengths = np.sort([sides[0].lengths, sides[1].lengths], axis=0)
    # A row of one id has only EOS.
    is_empty, is_too_long = min_lengths < 2, max_lengths > cleaning.max_tokens
    removed["no token"] = int(is_empty.sum())
    removed["too many tokens"] = int((is_too_long & ~is_empty).sum())
    kept = np.flatnonzero(~is_empty & ~is_too_long)
    source, target = (side.take(kept) for side in sides)
    return TokenizedPairs(source, target, indices[kept], removed)


def _write(store: Store, chunks: Iterator[Chunk], tokenize, count, processes) -> None:
    """Tokenizes the chunks that are missing in a store, and joins all chunks in the end.

    The rows do not depend on the number of processes.

    Args:
        tokenize: function that tokenizes a chunk. The function must be picklable if several
            processes tokenize several chunks.
        count: number of pairs, or `None` if the number is unknown, to display progress.
    """
    with (
        Progress("tokenizing", "pairs", count) as progress,
        Processes(processes or os.cpu_count() or 1, tokenize) as pool,
    ):
        for chunk in itertools.islice(chunks, len(store.shards.get("part", ()))):
            progress.advance(len(chunk.pairs))
        for tokens in pool.map(operator.call, chunks):
            store.add("part", tokens.arrays())
            for reason, removed in tokens.removed.items():
                store.state[reason] = store.state.get(reason, 0) + removed
            store.save()
            progress.advance(len(tokens.source) + sum(tokens.removed.values()))
    store.join("train")
    store.finished = True
    store.save()


def _removal_text(removed: dict[str, int]) -> str:
    """Describes how many pairs were removed and why, as in "removed: 3 empty, 1 ratio"."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in removed.items() if count)
    return f"removed: {reasons}" if reasons else "none removed"


class TranslationData(BucketBatches):
    """Batches of a tokenized parallel corpus.

    A batch has "source" `(B, L)` int32 and "target" `(B, L)` int32, padded rows of token ids and
    EOS. B is as large as `batching.max_tokens` and `batching.row_multiple` allow. Evaluation
    batches also have "index" `(B,)` int32, the index of each pair before cleaning. Rows of padding
    have the index -1.
    """

    def __init__(
        self,
        tokens: TokenizedPairs,
        pad_id: int,
        batching: BatchingConfig = BatchingConfig(),
        draw: Draw | None = None,
    ):
        self.tokens, self.pad_id = tokens, pad_id
        if not (count := len(tokens.source)):
            removed = _removal_text(tokens.removed)
            raise UserError(f"no pair of texts is left to batch ({removed}): check them")
        rows = [tokens.source, tokens.target]
        lengths = longest_rows(rows, count)
        lengths = choose_lengths(lengths, batching.shapes, batching.length_multiple)
        shapes = bucket_shapes(lengths, batching.max_tokens, batching.row_multiple)
        super().__init__(rows, count, shapes, indices=tokens.indices, draw=draw)

    @classmethod
    def build(
        cls,
        source: str,
        split: str | HeldOut,
        vocabulary: PieceVocabulary,
        *,
        target_split: str | None = None,
        cleaning: CleaningConfig = CleaningConfig(),
        batching: BatchingConfig = BatchingConfig(),
        tfds: Tfds | None = None,
        processes: int | None = None,
    ) -> "TranslationData":
        """Cleans and tokenizes a split of a parallel corpus, or opens its tokens from the cache.

        If the process was killed, the next call tokenizes only the chunks that are missing. Damaged
        files are written again from the beginning. If another process is preparing the same corpus,
        this call waits for that process.

        Args:
            target_split: split of the target sides; `None` means `split`. If `target_split` differs
                from `split`, sources and targets are not translations of each other, and the longer
                split is cut to the length of the shorter split.
        """
        splits = list(dict.fromkeys((split, target_split or split)))
        languages = vocabulary.languages[:2]

        def fingerprint() -> str:
            return "".join(source_fingerprint(source, name, languages, tfds) for name in splits)

        source_digest = fingerprint()
        # The hash of the vocabulary also covers its normalization.
        record = [FORMAT, CHUNK_PAIRS, source_digest, vocabulary.hash, dataclasses.asdict(cleaning)]
        name = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
        folder = as_path(cache_directory() / "tokens" / name)

        def chunks() -> Iterator[Chunk]:
            seen: set[bytes] = set()
            sides = (stream_pairs(source, name, *languages, tfds) for name in splits)
            texts = ((pairs[0][0], pairs[-1][1]) for pairs in zip(*sides, strict=False))
            parts = in_chunks(texts, CHUNK_PAIRS)
            for pairs in itertools.chain([next(parts, [])], parts):
                if fingerprint() != source_digest:
                    raise UserError(f"{source} changed while it was being read: start again")
                repeated = find_repeats(pairs, seen) if cleaning.deduplicate else None
                yield Chunk(pairs, repeated)

        with only_writer(folder, "tokenizing", wait=True):
            store = Store(folder)
            with contextlib.suppress(UserError):  # of missing or damaged files
                store = Store.open(folder).check()
            if not store.finished:
                tokenize = functools.partial(tokenize_pairs, vocabulary, cleaning)
                count = count_texts(source, split, languages, tfds)
                _write(store, chunks(), tokenize, count, processes)
            store.clean()
        [shard] = store.shards["train"]
        found = map_arrays(folder / shard.name, shard.arrays)
        sides = [TokenRows(found[f"{n}_ids"], found[f"{n}_offsets"]) for n in ("source", "target")]
        tokens = TokenizedPairs(*sides, None, store.state, shard.sha256)
        return cls(tokens, vocabulary.special.pad, batching)

    @classmethod
    def from_pairs(
        cls,
        pairs: Pairs,
        vocabulary: PieceVocabulary,
        *,
        cleaning: CleaningConfig = CleaningConfig(),
        batching: BatchingConfig = BatchingConfig(),
        make_draw: Callable[[np.ndarray], Draw] | None = None,
    ) -> "TranslationData":
        """Cleans and tokenizes pairs in memory, without the cache.

        Args:
            make_draw: function that takes the indices `(N,)` in `pairs` of the pairs that remain
                after cleaning, and returns the argument `draw` of `BucketBatches`. `None` means
                that each pair occurs once per epoch.
        """
        repeated = find_repeats(pairs, set()) if cleaning.deduplicate else None
        tokens = tokenize_pairs(vocabulary, cleaning, Chunk(pairs, repeated))
        draw = make_draw and make_draw(tokens.indices)
        return cls(tokens, vocabulary.special.pad, batching, draw)

    def fingerprint(self) -> str:
        return self.tokens.fingerprint or super().fingerprint()

    def summary(self) -> str:
        """Returns a description of the data in one line."""
        return f"{super().summary()}; {_removal_text(self.tokens.removed)}"

    def gather(self, batch: Batch) -> dict[str, np.ndarray]:
        sides = {"source": self.tokens.source, "target": self.tokens.target}
        return {name: rows.padded(*batch, self.pad_id) for name, rows in sides.items()}
