"""From pairs of lines to rows of ids, kept on disk under a fingerprint of all that shaped them."""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from macaron_tf.cache import cache_directory
from macaron_tf.data.bpe_dropout import sample_lines
from macaron_tf.data.cache import FORMAT, TokenizedPairs, TokenRows, load_tokens, save_tokens
from macaron_tf.data.cleaning import CleaningConfig, clean_pairs
from macaron_tf.data.sources import read_pairs, source_fingerprint
from macaron_tf.data.vocabulary import Vocabulary
from macaron_tf.errors import UserError
from macaron_tf.special_ids import EOS


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
