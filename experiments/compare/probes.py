"""Synthetic tasks that show what a causal block can compute: recall, copying, storage and state.

A probe draws rows of token ids `(N, L)` and labels `(N, L)`. A model predicts the label of a
position from the ids up to this position. Positions without a label have the label 0, which is also
the id of padding, so that ids and labels begin at 1. Each probe has a training length, and is also
evaluated at two and four times this length.

References: Arora et al. 2023 (Zoology) for `recall`; Poli et al. 2024 (Mechanistic Design and
Scaling, MAD), section 3.1 and appendix B, for in-context, fuzzy and noisy recall, selective
copying, memorization and compression; Gu and Dao 2023 (Mamba), section 4.1, for `induction`;
Merrill et al. 2024 (The Illusion of State), section 5, for `parity` and `s5`. Rows are shorter than
in the papers, so that a model learns a probe in a quarter of a minute on one core.
"""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np

LENGTHS = (1, 2, 4)  # lengths of evaluation, as multiples of the training length
Rows = tuple[np.ndarray, np.ndarray]  # ids (N, L) and labels (N, L)
Draw = Callable[[np.random.Generator, int, int], Rows]


@dataclasses.dataclass(frozen=True)
class Probe:
    """A synthetic task.

    Attributes:
        draw: function that draws N rows of length L, from a random generator, N and L.
        vocab_size: number of ids, with that of padding.
        length: training length L.
        answers: number of different labels. A model that ignores the input is right once
            in so many.
        summarizes: whether all labels are predicted from the hidden state of the last position.
    """

    draw: Draw
    vocab_size: int
    length: int
    answers: int
    summarizes: bool = False


def _subsets(rng: np.random.Generator, rows: int, size: int, count: int) -> np.ndarray:
    """Draws `count` different integers below `size` for each row, `(N, count)`, in random order."""
    return np.argsort(rng.random((rows, size)), axis=1)[:, :count]


def _labelled(ids: np.ndarray, positions: np.ndarray, labels: np.ndarray) -> Rows:
    result = np.zeros_like(ids)
    np.put_along_axis(result, positions, labels, axis=1)
    return ids, result


_KEYS = 64  # number of keys and of values in `recall`
_POWER = 0.01  # exponent of the power law


def recall(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """Multi-query associative recall: L / 8 pairs of a key and a value, then each key once again.

    The distance of a query to the pairs follows a power law, p(g) ~ g^(0.01 - 1), because words
    that were used recently are used again. All other positions have random ids. The label of a
    query is the value of its key.
    """
    pairs, space = length // 8, (length - length // 4) // 2
    keys, values = (_subsets(rng, rows, _KEYS, pairs) for _ in range(2))  # (N, P)
    ids = rng.integers(1, 2 * _KEYS + 1, (rows, length))
    ids[:, : 2 * pairs] = np.stack([keys + 1, values + 1 + _KEYS], axis=2).reshape(rows, -1)
    # The greatest P sums of log-probability and Gumbel noise draw without replacement.
    scores = (_POWER - 1) * np.log(np.arange(1, space + 1)) + rng.gumbel(size=(rows, space))
    positions = 2 * pairs + 2 * np.argsort(-scores, axis=1)[:, :pairs]  # (N, P)
    np.put_along_axis(ids, positions, keys + 1, axis=1)
    return _labelled(ids, positions, values + 1 + _KEYS)


_SYMBOLS = 8  # number of keys and of values of MAD's recall
_NOISE = 16  # number of ids of noise


def in_context_recall(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """Pairs of a key and a value, which each row assigns anew; the label of a repeated key."""
    keys = rng.integers(_SYMBOLS, size=(rows, length // 2))  # (N, L / 2)
    values = np.take_along_axis(rng.integers(_SYMBOLS, size=(rows, _SYMBOLS)), keys, axis=1)
    ids = np.stack([keys + 1, values + 1 + _SYMBOLS], axis=2).reshape(rows, length)
    labels = np.where(_is_repeated(keys), values + 1 + _SYMBOLS, 0)  # at the key's position
    return ids, np.stack([labels, np.zeros_like(labels)], axis=2).reshape(rows, length)


def _is_repeated(keys: np.ndarray) -> np.ndarray:
    """Returns for each entry of `keys (N, K)` whether the row has the same entry before it."""
    same = keys[:, :, None] == keys[:, None, :]  # (N, K, K)
    return np.tril(same, -1).any(axis=2)


def noisy_recall(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """`in_context_recall` in which ids of noise take a fifth of the positions."""
    count = 2 * (2 * length // 5)  # ids of pairs
    ids = rng.integers(1 + 2 * _SYMBOLS, 1 + 2 * _SYMBOLS + _NOISE, (rows, length))
    # Noise stands between pairs, not within.
    starts = np.sort(_subsets(rng, rows, length - count // 2, count // 2), axis=1)  # of pairs
    places = starts + np.arange(count // 2)
    places = np.stack([places, places + 1], axis=2).reshape(rows, count)
    pair_ids, pair_labels = in_context_recall(rng, rows, count)
    np.put_along_axis(ids, places, pair_ids, axis=1)
    return _labelled(ids, places, pair_labels)


_MOTIF = 3  # maximum length of keys and values in `fuzzy_recall`
_MOTIFS = 4  # number of its keys


def fuzzy_recall(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """`in_context_recall` of keys and values of one to three ids each."""
    ids, labels = np.zeros((2, rows, length), int)

    def motif(offset: int) -> tuple[int, ...]:
        size = rng.integers(1, 1 + _MOTIF)
        return tuple((offset + rng.integers(1, 1 + _SYMBOLS, size)).tolist())

    for row in range(rows):
        values: dict[tuple[int, ...], tuple[int, ...]] = {}
        while len(values) < _MOTIFS:
            values[motif(0)] = motif(_SYMBOLS)
        seen: set[tuple[int, ...]] = set()
        text: list[int] = []
        target: list[int] = []
        while len(text) < length:
            key = [*values][rng.integers(_MOTIFS)]
            # The last id of the key has the label of the value's first id, and so on.
            answers = values[key] if key in seen else (0,) * len(values[key])
            target += [*(0,) * (len(key) - 1), *answers, 0]
            text += [*key, *values[key]]
            seen.add(key)
        ids[row], labels[row] = text[:length], target[:length]
    return ids, labels


_COPIED = 4  # number of symbols in `selective_copying`


def selective_copying(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """Four symbols at random positions among blanks, which the end of the row repeats in order."""
    blank, ask = 2 * _SYMBOLS + 1, 2 * _SYMBOLS + 2
    positions = np.sort(_subsets(rng, rows, length - _COPIED, _COPIED), axis=1)
    symbols = rng.integers(1, blank, (rows, _COPIED))
    ids = np.full((rows, length), blank)
    np.put_along_axis(ids, positions, symbols, axis=1)
    ids[:, -_COPIED:] = ask
    return _labelled(ids, np.tile(np.arange(length - _COPIED, length), (rows, 1)), symbols)


_FACTS = np.random.default_rng(0).integers(129, 257, 129)  # the value of each key, for all seeds


def memorization(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """Random keys, each before a blank, whose label is the key's value.

    The 128 values are the same in all rows, so that the weights must store them.
    """
    keys = rng.integers(1, 129, (rows, length // 2))
    ids = np.stack([keys, np.full_like(keys, 257)], axis=2).reshape(rows, length)
    labels = np.stack([np.zeros_like(keys), _FACTS[keys]], axis=2).reshape(rows, length)
    return ids, labels


KEPT = 8  # number of symbols that `compression` keeps


def compression(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """Random symbols. The last position must tell the last eight of them."""
    ids = rng.integers(1, 17, (rows, length))
    return _labelled(ids, np.tile(np.arange(length - KEPT, length), (rows, 1)), ids[:, -KEPT:])


def induction(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """Random symbols with a trigger at five positions, which the same symbol follows each time."""
    ids = rng.integers(1, 17, (rows, length))
    positions = np.sort(2 * _subsets(rng, rows, length // 2, 5), axis=1)
    follower = np.broadcast_to(rng.integers(1, 17, (rows, 1)), positions.shape)
    np.put_along_axis(ids, positions, 17, axis=1)
    np.put_along_axis(ids, positions + 1, follower, axis=1)
    return _labelled(ids, positions[:, 1:], follower[:, 1:])


def parity(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """Random bits. The label of a position is the parity of the bits so far."""
    bits = rng.integers(2, size=(rows, length))
    return bits + 1, np.cumsum(bits, axis=1) % 2 + 3


_SWAPS = np.tile(np.arange(5), (11, 1))  # (11, 5), the identity and all swaps of two places
for _swap, _pair in enumerate(itertools.combinations(range(5), 2)):
    _SWAPS[_swap + 1, _pair] = _pair[::-1]


def s5(rng: np.random.Generator, rows: int, length: int) -> Rows:
    """Random swaps among five objects. The label of a position is the place of the first object.

    This is as hard as the word problem of the group S5, which swaps generate: by Barrington's
    theorem, no circuit of constant depth computes the place of one object, but a recurrence does.
    """
    swaps = rng.integers(len(_SWAPS), size=(rows, length))
    places = np.empty_like(swaps)
    place = np.zeros(rows, int)
    for position in range(length):
        places[:, position] = place = _SWAPS[swaps[:, position], place]
    return swaps + 1, places + 1 + len(_SWAPS)


PROBES = {
    "recall": Probe(recall, 2 * _KEYS + 1, 64, _KEYS),
    "in_context_recall": Probe(in_context_recall, 2 * _SYMBOLS + 1, 64, _SYMBOLS),
    "noisy_recall": Probe(noisy_recall, 2 * _SYMBOLS + _NOISE + 1, 64, _SYMBOLS),
    "fuzzy_recall": Probe(fuzzy_recall, 2 * _SYMBOLS + 1, 64, _SYMBOLS),
    "selective_copying": Probe(selective_copying, 2 * _SYMBOLS + 3, 64, 2 * _SYMBOLS),
    "memorization": Probe(memorization, 258, 32, 128),
    "compression": Probe(compression, 17, 32, 16, summarizes=True),
    "induction": Probe(induction, 18, 64, 16),
    "parity": Probe(parity, 5, 32, 2),
    "s5": Probe(s5, 17, 32, 5),
}
