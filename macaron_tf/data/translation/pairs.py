"""Which pairs of a corpus are fit to learn from, and how many were not, for each reason."""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from macaron_tf.data.sources.readers import read_pairs, source_fingerprint
from macaron_tf.errors import UserError
from macaron_tf.io.files import cache_directory
from macaron_tf.special_ids import EOS
from macaron_tf.text.token_rows import FORMAT, TokenizedPairs, TokenRows, load_tokens, save_tokens
from macaron_tf.text.vocabulary import Vocabulary, sample_lines


@dataclasses.dataclass(frozen=True)
class CleaningConfig:
    """Limits of a training pair. Words are what white space separates.

    Args:
        min_length: least number of words on each side.
        max_length: greatest number of words on each side; None = no limit.
        max_ratio: greatest ratio of the two numbers of words; None = no limit.
        deduplicate: keep the first of equal pairs only.
        max_tokens: greatest number of pieces on each side, EOS included: the longest row of a
            batch, hence never without a limit.
    """

    min_length: int = 1
    max_length: int | None = 175
    max_ratio: float | None = None
    deduplicate: bool = False
    max_tokens: int = 256

    def __post_init__(self):
        if self.min_length < 1:
            raise UserError(f"min_length is {self.min_length}: it must be 1 or more")
        if self.max_length is not None and self.max_length < self.min_length:
            raise UserError(
                f"max_length {self.max_length} is less than min_length {self.min_length}: raise it"
            )
        if self.max_ratio is not None and self.max_ratio < 1:
            raise UserError(f"max_ratio is {self.max_ratio}: it must be 1 or more")
        if self.max_tokens < 2:
            raise UserError(f"max_tokens is {self.max_tokens}: it must be 2 or more (EOS is one)")


def clean_pairs(
    pairs: Sequence[tuple[str, str]], config: CleaningConfig
) -> tuple[np.ndarray, dict[str, int]]:
    """Chooses the pairs within the limits on words.

    Args:
        pairs: (source, target) lines.
        config: the limits.

    Returns:
        Indices of the kept pairs, int64, ascending; and the number of removed pairs by reason:
        "empty", "too short", "too long", "ratio", "duplicate" (the first that applies).
    """
    counts = dict.fromkeys(("empty", "too short", "too long", "ratio", "duplicate"), 0)
    kept = []
    seen: set[tuple[str, str]] = set()
    for index, pair in enumerate(pairs):
        words = [len(side.split()) for side in pair]
        least, most = min(words), max(words)
        if least == 0:
            counts["empty"] += 1
        elif least < config.min_length:
            counts["too short"] += 1
        elif config.max_length is not None and most > config.max_length:
            counts["too long"] += 1
        elif config.max_ratio is not None and most > config.max_ratio * least:
            counts["ratio"] += 1
        elif config.deduplicate and pair in seen:
            counts["duplicate"] += 1
        else:
            if config.deduplicate:
                seen.add(pair)
            kept.append(index)
    return np.asarray(kept, np.int64), counts


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """BPE-dropout for training: each pair occurs `copies` times, cut differently each time.

    One epoch of the batches is then `copies` passes over the pairs.

    Args:
        dropout: probability that a merge is left out; 0 = no sampling.
        copies: number of samples of each pair.
        seed: decides the samples.
    """

    dropout: float = 0.0
    copies: int = 1
    seed: int = 0

    def __post_init__(self):
        if not 0 <= self.dropout <= 1:
            raise UserError(f"BPE-dropout is {self.dropout}: it must lie between 0 and 1")
        if self.copies < 1 or (self.copies > 1 and not self.dropout):
            raise UserError(
                f"{self.copies} copies of each pair with BPE-dropout {self.dropout}: "
                "use 1 copy, or a dropout above 0"
            )


def tokenized_split(
    source: str,
    split: str,
    vocabulary: Vocabulary,
    cleaning: CleaningConfig,
    languages: tuple[str, str],
    *,
    sampling: SamplingConfig | None = None,
    data_dir: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
    download: bool = False,
) -> TokenizedPairs:
    """Reads, cleans and tokenizes a split, or takes it from the cache; a damaged one is made anew.

    Args:
        source, split, data_dir, download: as for `sources.read_pairs`.
        vocabulary: cuts lines into ids.
        cleaning: limits of a pair.
        languages: source and target language.
        sampling: BPE-dropout; none when None.
        cache_dir: where tokenized splits are kept; `tokens` in `files.cache_directory()` when
            None.

    Returns:
        The rows, memory-mapped.

    Raises:
        UserError: as `read_pairs`; no pair is left; the cache cannot be written.
    """
    sampling = sampling or SamplingConfig()
    what = (source, split, *languages, data_dir)
    root = pathlib.Path(cache_dir) if cache_dir else cache_directory() / "tokens"
    try:
        identity = source_fingerprint(*what)
        tokens = load_tokens(root / _fingerprint(identity, vocabulary, cleaning, sampling))
    except UserError:
        if not download:
            raise
        tokens = None
    if tokens is not None:
        return tokens
    pairs = read_pairs(*what, download=download)
    tokens = tokenize(pairs, vocabulary, cleaning, languages, sampling)
    if not len(tokens.indices):
        raise UserError(
            f"no pair of {source}, split {split!r}, is left after cleaning "
            f"({counted(tokens.removed)}): check the languages or loosen the limits"
        )
    folder = root / _fingerprint(source_fingerprint(*what), vocabulary, cleaning, sampling)
    save_tokens(folder, tokens)
    # Mapped again, a large corpus leaves the memory.
    return load_tokens(folder) or tokens


def tokenize(
    pairs: Sequence[tuple[str, str]],
    vocabulary: Vocabulary,
    cleaning: CleaningConfig,
    languages: Sequence[str],
    sampling: SamplingConfig | None = None,
) -> TokenizedPairs:
    """Cleans pairs and cuts them into ids + EOS.

    Args:
        pairs: (source, target) lines.
        vocabulary: cuts lines into ids.
        cleaning: limits on words before, on tokens after.
        languages: source and target language.
        sampling: BPE-dropout; none when None.

    Returns:
        The rows; `removed` has the reasons of `clean_pairs` and "no token", "too many tokens"
        (of all copies, where there are several).
    """
    sampling = sampling or SamplingConfig()
    indices, removed = clean_pairs(pairs, cleaning)
    sides = []
    for side, language in enumerate(languages[:2]):
        lines = [pairs[i][side] for i in indices]
        rows = []
        for copy in range(sampling.copies):
            if sampling.dropout:
                # A stream of its own for each side and copy.
                state = np.random.SeedSequence([sampling.seed, side, copy]).generate_state(1)
                rows += sample_lines(vocabulary, lines, sampling.dropout, int(state[0]), language)
            else:
                rows += vocabulary.encode_lines(lines, language)
        sides.append(TokenRows.from_lists([[*row, EOS] for row in rows], vocabulary.size))
    indices = np.tile(indices, sampling.copies)
    least = np.minimum(sides[0].lengths, sides[1].lengths)
    most = np.maximum(sides[0].lengths, sides[1].lengths)
    empty, long = least < 2, most > cleaning.max_tokens  # an EOS alone is no sentence
    removed["no token"] = int(empty.sum())
    removed["too many tokens"] = int((long & ~empty).sum())
    kept = np.flatnonzero(~empty & ~long)
    source, target = (side.taken(kept) for side in sides)
    return TokenizedPairs(source, target, indices[kept], removed)


def counted(removed: dict[str, int]) -> str:
    """Words for the numbers of removed pairs.

    Args:
        removed: numbers by reason.

    Returns:
        Such as "removed: 3 empty, 1 ratio".
    """
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in removed.items() if count)
    return f"removed: {reasons}" if reasons else "none removed"


def _fingerprint(
    identity: str, vocabulary: Vocabulary, cleaning: CleaningConfig, sampling: SamplingConfig
) -> str:
    """Name of a cache folder; the vocabulary's hash covers the normalization."""
    settings = [dataclasses.asdict(cleaning), dataclasses.asdict(sampling)]
    record = [FORMAT, identity, vocabulary.hash, settings]
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
