"""Cleaning, tokenization and caching of sentence pairs, and batches in a few static shapes."""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from macaron_tf.data.batches import BucketBatches, longest_rows
from macaron_tf.data.rows import CHUNK_PAIRS, FORMAT, Chunk, Pairs, TokenizedPairs, prepare
from macaron_tf.data.sampler import Batch, Draw, bucket_shapes, choose_lengths
from macaron_tf.data.sources.names import HeldOut
from macaron_tf.data.sources.readers import count_texts, source_fingerprint, stream_pairs
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.errors import UserError
from macaron_tf.io.files import cache_directory
from macaron_tf.io.progress import Progress
from macaron_tf.settings import INT32, Count, Fraction, Natural, Settings
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.normalization import in_chunks
from macaron_tf.text.token_rows import TokenRows


@dataclasses.dataclass(frozen=True)
class CleaningConfig(Settings):
    """Settings for the removal of unsuitable training pairs. White space separates words.

    Attributes:
        min_length: minimum number of words on each side of a pair.
        max_length: maximum number of words on each side of a pair; `None` means no limit.
        max_ratio: maximum ratio of the longer to the shorter side in words; `None` means no limit.
        deduplicate: whether to keep only the first of several equal pairs.
        max_tokens: maximum number of tokens on each side of a pair, including EOS.
    """

    section: ClassVar[str] = "data.cleaning"

    min_length: Count = 1
    max_length: Count | None = 175
    max_ratio: Annotated[float, Ge(1)] | None = None
    deduplicate: bool = False
    max_tokens: Annotated[int, Ge(2), INT32] = 256

    def check(self) -> None:
        if self.max_length is not None and self.max_length < self.min_length:
            raise self.error(f"max_length={self.max_length} is less than min_length")


@dataclasses.dataclass(frozen=True)
class BpeDropoutConfig(Settings):
    """BPE-dropout for training data.

    Each pair occurs `copies` times in an epoch, each time with another random tokenization. The
    tokenizations are drawn once, and are the same in all epochs.

    Attributes:
        dropout: probability of skipping a BPE merge; 0 means no BPE-dropout.
        copies: number of random tokenizations of each pair in an epoch.
        seed: seed of the random tokenizations.
    """

    section: ClassVar[str] = "data.bpe_dropout"

    dropout: Fraction = 0.0
    copies: Count = 1
    seed: Natural = 0

    def check(self) -> None:
        if self.copies > 1 and not self.dropout:
            raise self.error(f"copies={self.copies} needs BPE-dropout: raise dropout")


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


class Repeats:
    """Detector of repeated pairs. The detector stores a hash of 16 bytes for each distinct pair."""

    def __init__(self):
        # Sorted, distinct hashes. The first entry, zero, is a sentinel below all hashes.
        self._digests = np.zeros(1, "S16")

    def find(self, pairs: Pairs) -> np.ndarray:
        """Finds the repetitions among the next N pairs of the corpus, and remembers all N pairs."""
        texts = ("\t".join(pair).encode("utf-8", "surrogatepass") for pair in pairs)
        digests = [hashlib.blake2b(text, digest_size=16).digest() for text in texts]
        distinct, first = np.unique(np.array(digests, "S16"), return_index=True)
        insert_positions = np.searchsorted(self._digests, distinct)
        is_known = self._digests[np.minimum(insert_positions, len(self._digests) - 1)] == distinct
        self._digests = np.insert(self._digests, insert_positions[~is_known], distinct[~is_known])
        is_repeated = np.ones(len(digests), bool)
        is_repeated[first[~is_known]] = False
        return is_repeated


def clean_pairs(
    pairs: Pairs, config: CleaningConfig, repeated: np.ndarray | None = None
) -> tuple[np.ndarray, dict[str, int]]:
    """Selects the (source, target) pairs that meet the limits on word counts.

    Returns:
        Ascending int64 indices of the kept pairs, and a dict mapping each reason for removal to the
        number of removed pairs. The reasons are "empty", "too short", "too long", "ratio" and
        "duplicate". A pair counts only for the first reason that applies, in this order.
    """
    word_counts = [[len(side.split()) for side in pair] for pair in pairs]
    shorter, longer = np.sort(np.array(word_counts, int).reshape(-1, 2), axis=1).T  # (N,) each
    reasons = {
        "empty": shorter == 0,
        "too short": shorter < config.min_length,
        "too long": config.max_length is not None and longer > config.max_length,
        "ratio": config.max_ratio is not None and longer > config.max_ratio * shorter,
        "duplicate": repeated is not None and repeated,
    }
    is_kept, counts = np.ones(len(pairs), bool), {}
    for reason, applies in reasons.items():
        counts[reason] = int(np.sum(is_kept & applies))
        is_kept &= np.logical_not(applies)
    return np.flatnonzero(is_kept), counts


@dataclasses.dataclass(frozen=True, eq=False)
class PairTokenizer:
    """Function that cleans and tokenizes pairs.

    The source and target languages are the first two languages of `vocabulary`.
    """

    vocabulary: PieceVocabulary
    cleaning: CleaningConfig
    bpe_dropout: BpeDropoutConfig = BpeDropoutConfig()

    def __call__(self, chunk: Chunk) -> TokenizedPairs:
        """Cleans and tokenizes the pairs of a chunk.

        Returns:
            Rows of token ids and EOS. `indices` are those of the pairs in the chunk. `removed` has
            the reasons of `clean_pairs`, and also "no token" and "too many tokens". These two
            reasons count each copy of a pair separately.
        """
        indices, removed = clean_pairs(chunk.pairs, self.cleaning, chunk.repeated)
        copies, sides = self.bpe_dropout.copies, []
        with Progress("tokenizing", "lines", 2 * copies * len(indices)) as progress:
            for side, language in enumerate(self.vocabulary.languages[:2]):
                rows = []
                for copy in range(copies):
                    lines = progress.over(chunk.pairs[i][side] for i in indices)
                    rows.append(self._rows(lines, language, side, copy, chunk.index))
                joined = TokenRows.joined(rows, self.vocabulary.size)
                sides.append(joined.with_end(self.vocabulary.special.end))
        indices = np.tile(indices, copies)
        min_lengths, max_lengths = np.sort([sides[0].lengths, sides[1].lengths], axis=0)
        # A row of one id has only EOS.
        is_empty, is_too_long = min_lengths < 2, max_lengths > self.cleaning.max_tokens
        removed["no token"] = int(is_empty.sum())
        removed["too many tokens"] = int((is_too_long & ~is_empty).sum())
        kept = np.flatnonzero(~is_empty & ~is_too_long)
        source, target = (side.take(kept) for side in sides)
        return TokenizedPairs(source, target, indices[kept], removed)

    def _rows(self, lines: Iterable[str], language: str, *stream: int) -> TokenRows:
        """Tokenizes lines. `stream` is the index of the side, of the copy and of the chunk."""
        if not self.bpe_dropout.dropout:
            return self.vocabulary.encode_rows(lines, language)
        # Each combination of side, copy and chunk has its own seed. Chunk 0 adds nothing to it.
        seeds = [self.bpe_dropout.seed, *(stream if stream[-1] else stream[:2])]
        [seed] = np.random.SeedSequence(seeds).generate_state(1)
        rows = self.vocabulary.sample_lines(lines, self.bpe_dropout.dropout, int(seed), language)
        return TokenRows.from_lists(rows, self.vocabulary.size)


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
        bpe_dropout: BpeDropoutConfig = BpeDropoutConfig(),
        tfds: Tfds | None = None,
        processes: int | None = None,
    ) -> "TranslationData":
        """Cleans and tokenizes a split of a parallel corpus, or opens its tokens from the cache.

        Args:
            target_split: split of the target sides; `None` means `split`. If `target_split` differs
                from `split`, sources and targets are not translations of each other, and the longer
                split is cut to the length of the shorter split.
        """
        splits = list(dict.fromkeys((split, target_split or split)))
        languages = vocabulary.languages[:2]
        if tfds and tfds.download:
            count_texts(source, split, languages, tfds)  # downloads the dataset if it is missing

        def fingerprint() -> str:
            return "".join(source_fingerprint(source, name, languages, tfds) for name in splits)

        source_digest = fingerprint()
        # The hash of the vocabulary also covers its normalization.
        settings = [dataclasses.asdict(cleaning), dataclasses.asdict(bpe_dropout)]
        record = [FORMAT, CHUNK_PAIRS, source_digest, vocabulary.hash, settings]
        name = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
        folder = cache_directory() / "tokens" / name

        def chunks() -> Iterator[Chunk]:
            repeats = Repeats()
            sides = (stream_pairs(source, name, *languages, tfds) for name in splits)
            texts = ((pairs[0][0], pairs[-1][1]) for pairs in zip(*sides, strict=False))
            parts = in_chunks(texts, CHUNK_PAIRS)
            for index, pairs in enumerate(itertools.chain([next(parts, [])], parts)):
                if fingerprint() != source_digest:
                    raise UserError(f"{source} changed while it was being read: start again")
                repeated = repeats.find(pairs) if cleaning.deduplicate else None
                yield Chunk(index, pairs, repeated)

        def count() -> int | None:
            counts = [count_texts(source, name, languages, tfds) for name in splits]
            return None if None in counts else min(counts)

        tokenize = PairTokenizer(vocabulary, cleaning, bpe_dropout)
        tokens = prepare(folder, chunks, tokenize, count, processes)
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
        repeated = Repeats().find(pairs) if cleaning.deduplicate else None
        tokens = PairTokenizer(vocabulary, cleaning)(Chunk(0, pairs, repeated))
        draw = make_draw and make_draw(tokens.indices)
        return cls(tokens, vocabulary.special.pad, batching, draw)

    def fingerprint(self) -> str:
        return self.tokens.fingerprint or super().fingerprint()

    def summary(self) -> str:
        """Returns a description of the data in one line."""
        example_count, details = super().summary().split(" examples, ")
        source, target = self.tokens.source, self.tokens.target
        return (
            f"{example_count} pairs ({_removal_text(self.tokens.removed)}), "
            f"{source.size:,} source and {target.size:,} target tokens, {details}"
        )

    def gather(self, batch: Batch) -> dict[str, np.ndarray]:
        sides = {"source": self.tokens.source, "target": self.tokens.target}
        return {name: rows.padded(*batch, self.pad_id) for name, rows in sides.items()}
